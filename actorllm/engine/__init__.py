"""Putting the actors together: topology, ring, door, and the facades that a program uses."""
