"""The HTTP API: one module per group of endpoints, with the name of the group."""
