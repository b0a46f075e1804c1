"""This program's own terminal, connected to one of a remote host."""
