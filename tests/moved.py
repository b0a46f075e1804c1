"""Runs connmgr on a machine whose clock a test sets: ``python -I tests/moved.py serve`` stands for ``connmgr serve``.

The file that the variable ``MOVED_CLOCK`` names has the seconds by which that clock is ahead. ``datetime`` tells its
time; clocks that nobody sets go on as they are.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import Any

_FILE = Path(os.environ["MOVED_CLOCK"])
_Real = datetime.datetime


class _AnyDatetime(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Real)


class _Moved(_Real, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _Real.now(tz) + datetime.timedelta(seconds=float(_FILE.read_text()))


if __name__ == "__main__":
    # Before anything is imported that takes the class from the module.
    datetime.datetime = _Moved  # type: ignore[misc]
    from connmgr.__main__ import main

    sys.exit(main())
