"""A terminal emulator: what xterm would show after some output. It knows nothing of machines, links or clients."""
