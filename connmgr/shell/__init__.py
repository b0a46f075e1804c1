"""Which shells run: started, found and ended by connection."""
