"""This program's own terminal, lent to one of a far side."""
