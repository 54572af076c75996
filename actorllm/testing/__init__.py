"""For tests of your own.

simulate     a whole engine without an event loop, moved by a seed
schedules    one in an event loop: the production shells, cancelled and cut anywhere, in virtual time
scenarios    how big it is, what is asked of it, and what goes wrong
strategies   messages for hypothesis
"""
