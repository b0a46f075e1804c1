"""The words that call this program again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def program() -> list[str]:
    """Return the words that call this installation's ``connmgr`` from any directory.

    A symbolic link to it, such as pipx makes, is kept: after an upgrade it leads to the new program.
    """
    called = Path(sys.argv[0]).absolute()
    for script in (called, Path(sys.executable).with_name("connmgr")):
        if script.name == "connmgr" and script.is_file() and os.access(script, os.X_OK):
            return [str(script)]
    return [sys.executable, "-m", "connmgr"]
