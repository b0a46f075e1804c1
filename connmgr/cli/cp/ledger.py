"""Counts of files that were copied, left out and failed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import click

from connmgr.cli.exits import FAILED
from connmgr.cli.output import counted
from connmgr.printable import visible

HERE, THERE = "here", "there"
UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass
class Ledger:
    """The counts of one run: files that are no directories, and the ``bytes`` of their content.

    ``equal`` files existed already; ``left`` were links, devices and the like, which were not to be copied.
    """

    files: int = 0
    bytes: int = 0
    equal: int = 0
    left: int = 0
    failures: list[str] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    """The same in parts: side, path and message."""

    began: float = field(default_factory=time.monotonic)

    def fail(self, side: str, path: object, reason: str) -> None:
        """Record a file that could not be copied: the side, its path there, and the reason."""
        self.failed.append({"side": side, "path": str(path), "message": reason})
        self.failures.append(f"{side}: {visible(str(path))}: {visible(reason)}")

    def as_object(self) -> dict[str, Any]:
        """Return all counts and failures for JSON."""
        return {
            "exitCode": FAILED if self.failures else 0,
            "files": self.files,
            "bytes": self.bytes,
            "equal": self.equal,
            "left": self.left,
            "failures": self.failed,
        }

    def summary(self, *, timed: bool = True) -> str:
        """Return all counts as a line, with the time that they took if ``timed``."""
        taken = f" in {time.monotonic() - self.began:.1f} s" if timed else ""
        parts = [
            f"{counted(self.files, 'file')}, {amount(self.bytes)}{taken}",
            *([f"{self.equal} equal"] if self.equal else []),
            *([f"{self.left} left out (links need -a)"] if self.left else []),
            *([f"{len(self.failures)} failed"] if self.failures else []),
        ]
        return ", ".join(parts)

    def tell(self, *, summary: bool) -> None:
        """Print the failures, and with ``summary`` the counts, on stderr."""
        for line in self.failures:
            click.echo(f"connmgr: {line}", err=True)
        if summary:
            click.echo(self.summary(), err=True)


def amount(size: float) -> str:
    """Return a number of bytes in its largest unit."""
    for unit in UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {UNITS[-1]}"
