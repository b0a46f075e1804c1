"""The shell engine: one way to run commands and keep state on every connection type."""
