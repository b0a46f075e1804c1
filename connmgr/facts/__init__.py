"""Facts about the machines of connections: short programs there, what they may print, and many machines at once."""
