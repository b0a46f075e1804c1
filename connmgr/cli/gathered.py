"""The outcomes of work on many connections, joined where they are equal and printed once for all that share them."""

from __future__ import annotations

import codecs
import hashlib
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import click

from connmgr.cli.exits import FAILED
from connmgr.cli.output import counted
from connmgr.cli.progress import counting
from connmgr.printable import visible

OK = "ok"
MEMORY_BYTES = 16 << 20
"""Output beyond this goes to a temporary file."""

PIECE_BYTES = 64 << 10
RULE = "-" * 15
_NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>[0-9]+)(?P<after>[^0-9]*)", re.DOTALL)
_LEAST_FOLDED = 3
"""Two names are shorter to read than a range."""

_DIGITS = 18
"""Longest number in a range; longer digits are not machine numbers."""


@dataclass
class _Group:
    """The names that share an outcome; its output lies in the spool from ``at`` on, stdout first."""

    verdict: str
    message: str
    at: int
    sizes: tuple[int, int]
    names: list[str] = field(default_factory=list)

    @property
    def has_output(self) -> bool:
        return any(self.sizes)


class Gathered:
    """Collects outcomes and prints them. However many outcomes are equal, their output is kept once.

    ``order`` has all names in the order in which they are shown.
    """

    def __init__(self, order: Sequence[str]) -> None:
        self._place = {name: place for place, name in enumerate(order)}
        self._groups: dict[bytes, _Group] = {}
        self._spool = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Gathered:
        return self

    def __exit__(self, *raised: object) -> None:
        self._spool.close()

    def add(self, name: str, verdict: str, stdout: bytes = b"", stderr: bytes = b"", message: str = "") -> None:
        """Record the outcome of ``name``: ``ok`` or another verdict, output, and the message of an error."""
        digest = hashlib.sha256()
        for part in (verdict.encode(), message.encode(errors="surrogatepass"), stdout, stderr):
            digest.update(len(part).to_bytes(8, "big") + part)
        group = self._groups.get(digest.digest())
        if group is None:
            at = self._spool.seek(0, 2)
            self._spool.write(stdout)
            self._spool.write(stderr)
            group = _Group(verdict, message, at, (len(stdout), len(stderr)))
            self._groups[digest.digest()] = group
        group.names.append(name)

    def show(self) -> None:
        """Print all outcomes on stdout: successes first, then failures, then errors without output."""
        for group in self._groups.values():
            group.names.sort(key=self._place.__getitem__)
        for group in sorted(self._groups.values(), key=lambda one: (_rank(one), self._place[one.names[0]])):
            names = folded([visible(name) for name in group.names])
            if group.message and not group.has_output:
                click.echo(f"{names}: {group.verdict}: {visible(group.message, lines=True)}")
                continue
            verdict = "" if group.verdict == OK else f": {group.verdict}"
            message = f": {visible(group.message, lines=True)}" if group.message else ""
            click.echo(f"{RULE}\n{names} ({len(group.names)}){verdict}{message}\n{RULE}")
            self._print(group)
        sys.stdout.flush()

    def _print(self, group: _Group) -> None:
        stdout, stderr = group.sizes
        if stdout:
            _write(self._pieces(group.at, stdout))
        if stderr:
            click.echo(f"{RULE} stderr")
            _write(self._pieces(group.at + stdout, stderr))

    def _pieces(self, at: int, size: int) -> Iterator[bytes]:
        self._spool.seek(at)
        while size > 0 and (piece := self._spool.read(min(size, PIECE_BYTES))):
            size -= len(piece)
            yield piece


Ended = tuple[str, str, Callable[[Gathered, str], None]]
"""The uuid of a connection that is done, its verdict, and a function that adds its outcome under a name."""


def together(ended: Iterable[Ended], names: Mapping[str, str]) -> list[str]:
    """Print the outcomes of work on the connections ``names`` when all have ended, and return their verdicts."""
    left = dict(names)
    verdicts = list[str]()
    with Gathered(list(names.values())) as gathered:
        try:
            with counting(list(left.values())) as tell:
                for id, verdict, gather in ended:
                    name = left.pop(id)
                    verdicts.append(verdict)
                    gather(gathered, name)
                    tell(list(left.values()), sum(one != OK for one in verdicts))
        except KeyboardInterrupt:
            # What has ended has ended: its output is all that is left of it.
            for name in left.values():
                gathered.add(name, "interrupted", message="It had not ended when Ctrl-C was pressed.")
            raise
        finally:
            gathered.show()
    return verdicts


def sum_up(verdicts: Sequence[str], of: int, seconds: float, noun: str = "connection") -> None:
    """Print on stderr how work on ``of`` connections, or what else ``noun`` says, has ended.

    :raises click.exceptions.Exit: with 1, it failed on some.
    """
    counts = Counter(verdicts)
    failed = len(verdicts) - counts.pop(OK, 0)
    said = "".join(f", {count} {verdict}" for verdict, count in counts.most_common())
    ran = counted(of, noun) if len(verdicts) == of else f"{len(verdicts)} of {counted(of, noun)}"
    click.echo(f"{ran} in {seconds:.1f} s: {len(verdicts) - failed} ok{said}", err=True)
    if failed:
        raise click.exceptions.Exit(FAILED)


def _rank(group: _Group) -> int:
    if group.verdict == OK:
        return 0
    return 2 if group.message and not group.has_output else 1


def _write(pieces: Iterable[bytes]) -> None:
    """Write output to stdout, ended by a newline: byte by byte, or on a terminal with its control characters visible"""
    sys.stdout.flush()
    last = b""
    if not sys.stdout.isatty():
        for piece in pieces:
            sys.stdout.buffer.write(piece)
            last = piece
    else:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held = ""
        for piece in pieces:
            text = held + decoder.decode(piece)
            # A carriage return is harmless only before a newline, which may be in the next piece.
            held = "\r" if text.endswith("\r") else ""
            sys.stdout.write(visible(text.removesuffix("\r") if held else text, lines=True))
            last = piece
        sys.stdout.write(visible(held + decoder.decode(b"", final=True), lines=True))
        sys.stdout.flush()
    if not last.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def folded(names: Sequence[str]) -> str:
    """Return names as one text; three or more that differ in their last number become ``web[1-3,7]``."""
    parted = [(name, _NUMBERED.fullmatch(name)) for name in names]
    buckets: dict[tuple[str, str, int], list[str]] = {}
    order: dict[tuple[str, str, int] | str, None] = {}
    padded = {
        (found["before"], found["after"])
        for _, found in parted
        if found and found["number"].startswith("0") and len(found["number"]) > 1
    }
    for name, found in parted:
        if found is None or len(found["number"]) > _DIGITS:
            order.setdefault(name)
            continue
        around = found["before"], found["after"]
        key = (*around, len(found["number"]) if around in padded else 0)
        buckets.setdefault(key, []).append(found["number"])
        order.setdefault(key)
    return ", ".join(one if isinstance(one, str) else _range(*one, buckets[one]) for one in order)


def _range(before: str, after: str, width: int, numbers: list[str]) -> str:
    if len(numbers) < _LEAST_FOLDED:
        return ", ".join(f"{before}{number}{after}" for number in numbers)
    runs = []
    ordered = sorted(map(int, numbers))
    for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        members = [f"{number:0{width}}" for _, number in run]
        runs.append(members[0] if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return f"{before}[{','.join(runs)}]{after}"
