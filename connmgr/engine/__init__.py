"""A shell and its commands, on a transport alone: one way to run commands and keep state on every connection type."""
