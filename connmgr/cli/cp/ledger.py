"""Counts of files that were copied, left out and failed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import click

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
    began: float = field(default_factory=time.monotonic)

    def fail(self, side: str, path: object, reason: str) -> None:
        """Record a file that could not be copied: the side, its path there, and the reason."""
        self.failures.append(f"{side}: {visible(str(path))}: {visible(reason)}")

    def summary(self) -> str:
        """Return all counts as a line."""
        seconds = time.monotonic() - self.began
        parts = [
            f"{counted(self.files, 'file')}, {amount(self.bytes)} in {seconds:.1f} s",
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
