"""The command line. ``front`` is its entry, and runs the plainest commands itself; ``root`` has all commands."""

COMPLETION_VARIABLE = "_CONNMGR_COMPLETE"
"""The completion scripts of ``connmgr completion`` set this variable to ask for completions."""
