"""The command ``connmgr``, and ``python -m connmgr``."""

import gc


def main() -> None:
    """Run the command line."""
    # A collection finds nothing while modules are loaded, and all of them together take a tenth of the time until then.
    gc.disable()
    from connmgr.cli import main as run

    run()


if __name__ == "__main__":
    main()
