"""The operations of a model step on the CPU, in C++."""
