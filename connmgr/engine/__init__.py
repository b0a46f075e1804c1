"""A shell and its commands on a bare transport: runs commands and keeps state on every connection type."""
