"""One function per operation of a model step, in several implementations of one meaning."""
