"""Terminals that live by themselves: programs on a pseudo-terminal of the far side, and what is on their screens."""
