"""The operations of a model step, in several implementations of one meaning.

`reference` has one function per operation, in plain torch; `cpu` runs whole steps in C++, without torch.
"""
