"""Live processes and the clients that watch them, served by one thread."""
