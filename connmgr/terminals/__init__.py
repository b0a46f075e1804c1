"""Terminals that outlive their clients: programs on a pseudo-terminal of the remote host, and their screens."""
