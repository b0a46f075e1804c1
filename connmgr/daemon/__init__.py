"""The daemon: one process that serves a vault over HTTP."""
