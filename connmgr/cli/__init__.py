"""The command line: ``front`` begins what is typed, and runs the plainest command itself; ``root`` has all commands."""

COMPLETION_VARIABLE = "_CONNMGR_COMPLETE"
"""The completion scripts of ``connmgr completion`` set this variable to ask for completions."""
