"""The byte pump of daemon and command line: one loop, the endpoints that it serves, and splices between them."""
