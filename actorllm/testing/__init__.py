"""For tests of your own.

simulate     a whole engine without an event loop, moved by a seed
schedules    one in an event loop: the production shells, cancelled and cut anywhere, in virtual time
report       what they say at the end
scenarios    how big it is, what is asked of it, and what goes wrong
replay       a recording of a real engine, run again
strategies   messages for hypothesis
"""
