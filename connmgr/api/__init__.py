"""The HTTP API: one module for each group of endpoints, named as the group is."""
