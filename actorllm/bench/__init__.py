"""Measures an engine: over HTTP beside its peers, in this process, and as a process that starts."""
