"""What makes a file one that a program must not trust: each function does it to the file at ``path``."""

from __future__ import annotations

import os
from pathlib import Path


def open_to_others(path: Path) -> None:
    path.chmod(0o644)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)
