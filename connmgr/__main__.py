"""The command ``connmgr``, and ``python -m connmgr``."""

import gc
import os
import sys


def main() -> None:
    """Run the command line."""
    # A collection finds nothing while modules are loaded, and all of them together take a tenth of the time until then.
    gc.disable()
    _open_missing_streams()
    from connmgr.cli import main as run

    run()


def _open_missing_streams() -> None:
    """Have standard streams that are closed lead nowhere, so that no other file takes their places."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest that is free, which is the stream's own.
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", errors="replace"))


if __name__ == "__main__":
    main()
