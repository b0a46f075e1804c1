"""The commands ``connmgr`` and ``connmgr-ssh``, and ``python -m connmgr``."""

import gc
import os
import sys


def main() -> None:
    """Run the command line."""
    # Importing modules leaves no garbage, and collecting it takes a tenth of the start.
    gc.disable()
    _open_missing_streams()
    from connmgr.cli.front import run

    run(sys.argv[1:])


def ssh() -> None:
    """Run ``connmgr ssh``, for programs that accept only a single word as the name of an ssh program."""
    sys.argv.insert(1, "ssh")
    main()


def _open_missing_streams() -> None:
    """Connect closed standard streams to /dev/null, so that no other file gets their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # open() returns the lowest free descriptor, which is the stream's own.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="replace"))


if __name__ == "__main__":
    main()
