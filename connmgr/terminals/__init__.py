"""Terminals that outlive their clients: programs on a pseudo-terminal of the far side, and their screens."""
