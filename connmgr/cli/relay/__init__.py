"""Carries bytes between this program's descriptors and the far side, in one thread."""
