"""What ``connmgr cp`` copies: its operands and options, the content of both sides, the part to copy, and the report.

It loads no library, because the front copies single files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.client import FileEntry

STREAM = "-"
WILDCARDS = frozenset("*?[")


class RemotePath(NamedTuple):
    """A path on a connection; the empty path is the shell's directory."""

    connection: str
    path: str
    session: str | None
    name: str = ""
    """The connection's path in the vault, for messages."""

    def child(self, name: str) -> RemotePath:
        """Return the path of ``name`` within this one."""
        return self._replace(path=f"{self.path.rstrip('/')}/{name}" if self.path else name)

    @property
    def is_directory(self) -> bool:
        """Whether it can only be a directory."""
        return not self.path or self.path.endswith("/")

    @property
    def own_name(self) -> str:
        """The last name in the path, ``""`` for a path such as ``dir/.``: it means the directory's content alone."""
        return "" if self.path.endswith(("/.", "/..")) or self.path in (".", "..", "~") else Path(self.path).name

    @property
    def directory(self) -> str:
        """The path for requests on a directory."""
        return self.path or "."

    def __str__(self) -> str:
        return visible(f"{self.name}:{self.path}")


CopyOperand = RemotePath | str
"""A file of a connection, a local path, or ``-``."""


def has_wildcards(path: str) -> bool:
    """Whether the machine's shell would expand ``path``."""
    return bool(WILDCARDS & set(path))


def is_remote(text: str) -> bool:
    """Whether ``text`` names a file of a connection."""
    return ":" in text and not is_local(text)


def is_local(text: str) -> bool:
    """Whether ``text`` begins like a local path, whatever follows."""
    return text == STREAM or text.startswith(("/", ".", "~"))


def within(operand: CopyOperand, name: str) -> CopyOperand:
    """Return the operand of ``name`` in a directory, or the directory itself if ``name`` is empty."""
    if not name:
        return operand
    return operand.child(name) if isinstance(operand, RemotePath) else str(Path(operand) / name)


def own_name(operand: CopyOperand) -> str:
    """Return the name that a copy of ``operand`` gets; empty for a path that means only a directory's content."""
    if isinstance(operand, RemotePath):
        return operand.own_name
    return "" if operand.endswith(("/.", "/..")) or operand in (".", "..") else PurePosixPath(operand).name


REQUEST_PATHS = 5000
"""Paths per request; that many long ones fit into a request's body."""

FILE, DIRECTORY, LINK, OTHER = "file", "directory", "link", "other"


class CopyOptions(NamedTuple):
    """The options of one run: ``recursive`` copies directories, ``keep`` keeps links, modes and times of directories.

    With ``checksum`` equal files are found by their content. A new copy has ``mode``, by default that of its source,
    and here without the permissions of ``umask``. ``session``, ``fresh`` and ``sudo`` say by which shells it copies.
    """

    recursive: bool
    keep: bool
    excludes: tuple[str, ...]
    mode: int | None
    checksum: bool
    umask: int
    session: str | None
    fresh: bool
    sudo: str | None


class TreeEntry(NamedTuple):
    """A file in a directory: its path from there, its ``size`` in bytes, ``modified`` in seconds, a link's target.

    The empty path means what an operand names: a single file is a tree of one.
    """

    path: str
    kind: str
    size: int
    mode: int
    modified: float
    target: str = ""


Pairs = Sequence[tuple[TreeEntry, TreeEntry]]
Equal = Callable[[Pairs], Container[str]]
"""Returns the paths of the pairs that are equal; the two files of a pair have the same size."""


class CopyPlan(NamedTuple):
    """The files to copy; ``whole`` if nothing in the directory is left out."""

    directories: list[TreeEntry]
    files: list[TreeEntry]
    links: list[TreeEntry]
    leaves: list[TreeEntry]
    """The directories that are empty or cannot be read."""

    whole: bool

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def requests(self) -> Iterator[list[str]]:
        """The paths to ask for, in lists that fit into one request; one empty list means everything."""
        if self.whole:
            yield []
            return
        paths = [entry.path for entry in (*self.files, *self.links, *self.leaves)]
        for start in range(0, len(paths), REQUEST_PATHS):
            yield paths[start : start + REQUEST_PATHS]

    @property
    def is_empty(self) -> bool:
        return not (self.directories or self.files or self.links)


def of_entry(entry: FileEntry) -> TreeEntry:
    """Return the description of a connection's file."""
    kind = entry.type if entry.type in (FILE, DIRECTORY, LINK) else OTHER
    return TreeEntry(entry.name, kind, entry.size, entry.mode, entry.modified.timestamp())


def leads_out(path: str) -> bool:
    """Whether a path leads out of the directory."""
    return any(part in ("", ".", "..") for part in path.split("/"))


def of_same_time(pairs: Pairs) -> set[str]:
    """Return the paths of the pairs whose times of last change are in the same second."""
    return {entry.path for entry, other in pairs if entry.modified // 1 == other.modified // 1}


def plan(
    source: Sequence[TreeEntry],
    target: Iterable[TreeEntry],
    excludes: Sequence[str],
    report: CopyReport,
    *,
    keep: bool,
    equal: Equal = of_same_time,
) -> CopyPlan:
    """Return the part of ``source`` to copy to ``target``; links only with ``keep``.

    Files are left out if ``equal`` returns their pair, or if one of ``excludes`` matches them or a directory above.
    What an operand names itself is neither excluded nor left out for its kind.
    """
    there = {entry.path: entry for entry in target}
    included = _without_excludes(source, excludes)
    # A tree that is copied whole goes as one archive of its directory, without a list of members.
    whole = len(included) == len(source)
    # The directories that something is in: an archive of their files brings them, too.
    holding = {entry.path.rpartition("/")[0] for entry in source}
    same = equal(
        [
            (entry, other)
            for entry in included
            if (other := there.get(entry.path)) and entry.kind == other.kind == FILE and entry.size == other.size
        ]
    )
    directories, files, links, leaves = list[TreeEntry](), list[TreeEntry](), list[TreeEntry](), list[TreeEntry]()
    for entry in included:
        other = there.get(entry.path)
        if entry.kind == DIRECTORY:
            # An archive of files brings their directories; only those without content have to be named.
            if entry.path not in holding:
                leaves.append(entry)
            if other is None or other.kind != DIRECTORY:
                directories.append(entry)
        elif entry.path and (entry.kind == OTHER or (entry.kind == LINK and not keep)):
            report.left += 1
            # An archive leaves out devices and pipes by itself, but not links.
            whole = whole and entry.kind == OTHER
        elif entry.path and entry.kind == LINK:
            links.append(entry)
        elif entry.path in same:
            report.equal += 1
            whole = False
        else:
            files.append(entry)
    return CopyPlan(directories, files, links, leaves, whole)


def _without_excludes(source: Iterable[TreeEntry], excludes: Sequence[str]) -> list[TreeEntry]:
    out: set[str] = set()
    included = []
    for entry in source:
        if entry.path and (entry.path.rpartition("/")[0] in out or _is_excluded(entry.path, excludes)):
            out.add(entry.path)
        else:
            included.append(entry)
    return included


def _is_excluded(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern matches: one with a slash the whole path, others the last name."""
    parts = path.split("/")
    for pattern in patterns:
        names = pattern.strip("/").split("/")
        if "/" not in pattern.rstrip("/"):
            if fnmatchcase(parts[-1], names[0]):
                return True
        elif len(names) == len(parts) and all(map(fnmatchcase, parts, names)):
            return True
    return False


HERE, THERE = "here", "there"


class CopyReport:
    """The counts of one run: files that are not directories, and the ``bytes`` of their content.

    ``equal`` files existed already; ``left`` were links, devices and the like, which were not to be copied.
    """

    # No dataclass, whose module takes longer to load than a small file to copy.
    def __init__(self) -> None:
        self.files = self.bytes = self.equal = self.left = 0
        self.failures: list[str] = []
        self.failed: list[dict[str, str]] = []
        """The same in parts: side, path and message."""

        self.began = time.monotonic()

    def fail(self, side: str, path: object, reason: str) -> None:
        """Record a file that could not be copied: the side, its path there, and the reason."""
        self.failed.append({"side": side, "path": str(path), "message": reason})
        self.failures.append(f"{side}: {visible(str(path))}: {visible(reason)}")

    def as_object(self) -> dict[str, Any]:
        """Return all counts and failures for JSON."""
        from connmgr.cli.exits import FAILED

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
        # Imported here, as in tell(): a single file has no summary.
        from connmgr.cli.output import amount, plural

        duration = f" in {time.monotonic() - self.began:.1f} s" if timed else ""
        parts = [
            f"{plural(self.files, 'file')}, {amount(self.bytes)}{duration}",
            *([f"{self.equal} equal"] if self.equal else []),
            *([f"{self.left} left out (links need -a)"] if self.left else []),
            *([f"{len(self.failures)} failed"] if self.failures else []),
        ]
        return ", ".join(parts)

    def tell(self, *, summary: bool) -> None:
        """Print the failures, and with ``summary`` the counts, on stderr."""
        import click

        for line in self.failures:
            click.echo(f"connmgr: {line}", err=True)
        if summary:
            click.echo(self.summary(), err=True)
