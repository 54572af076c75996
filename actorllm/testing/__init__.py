"""For tests of your own.

simulate     a whole engine without an event loop, moved by a seed
scenarios    how big it is, what is asked of it, and what goes wrong
strategies   messages for hypothesis
"""
