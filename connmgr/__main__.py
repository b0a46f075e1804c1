"""``python -m connmgr`` is the command ``connmgr``."""

from connmgr.cli import main

if __name__ == "__main__":
    main()
