"""The content of a directory, and which part of it is copied."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from connmgr.cli.cp.ledger import HERE, Ledger
from connmgr.client import FileEntry

REQUEST_PATHS = 5000
"""Paths per request; that many long ones fit into a request's body."""

FILE, DIRECTORY, LINK, OTHER = "file", "directory", "link", "other"


class Found(NamedTuple):
    """A file in a directory: its path from there, its ``size`` in bytes, ``modified`` in seconds, a link's target."""

    path: str
    kind: str
    size: int
    mode: int
    modified: int
    target: str = ""


Pairs = Sequence[tuple[Found, Found]]
Equal = Callable[[Pairs], Container[str]]
"""Returns the paths of the pairs that are equal; the two files of a pair have the same size."""


class Plan(NamedTuple):
    """The files to copy; ``whole`` if nothing in the directory is left out."""

    directories: list[Found]
    files: list[Found]
    links: list[Found]
    leaves: list[Found]
    """The directories that are empty or cannot be read."""

    whole: bool

    @property
    def bytes(self) -> int:
        return sum(one.size for one in self.files)

    @property
    def requests(self) -> Iterator[list[str]]:
        """The paths to ask for, in lists that fit into one request; one empty list means everything."""
        if self.whole:
            yield []
            return
        paths = [one.path for one in (*self.files, *self.links, *self.leaves)]
        for start in range(0, len(paths), REQUEST_PATHS):
            yield paths[start : start + REQUEST_PATHS]

    @property
    def is_empty(self) -> bool:
        return not (self.directories or self.files or self.links)


def here(root: Path, ledger: Ledger) -> list[Found]:
    """Return the content of a local directory, sorted; unreadable entries are recorded in ``ledger``."""
    return sorted(_below(root, "", ledger))


def _below(directory: Path, lead: str, ledger: Ledger) -> Iterator[Found]:
    try:
        entries = [*os.scandir(directory)]
    except OSError as error:
        ledger.fail(HERE, directory, error.strerror or str(error))
        return
    for entry in entries:
        try:
            found = of_status(lead + entry.name, entry.stat(follow_symlinks=False))
            if found.kind == LINK:
                found = found._replace(target=str(Path(entry.path).readlink()))
        except OSError as error:
            ledger.fail(HERE, entry.path, error.strerror or str(error))
            continue
        yield found
        if found.kind == DIRECTORY:
            yield from _below(Path(entry.path), f"{found.path}/", ledger)


def of_status(path: str, status: os.stat_result) -> Found:
    """Return the description of a local file."""
    kinds = {stat.S_IFREG: FILE, stat.S_IFDIR: DIRECTORY, stat.S_IFLNK: LINK}
    kind = kinds.get(stat.S_IFMT(status.st_mode), OTHER)
    return Found(path, kind, status.st_size, stat.S_IMODE(status.st_mode), int(status.st_mtime // 1))


def of_entry(entry: FileEntry) -> Found:
    """Return the description of a connection's file."""
    kind = entry.type if entry.type in (FILE, DIRECTORY, LINK) else OTHER
    return Found(entry.name, kind, entry.size, entry.mode, int(entry.modified.timestamp() // 1))


def leads_out(path: str) -> bool:
    """Whether a path leads out of the directory."""
    return any(part in ("", ".", "..") for part in path.split("/"))


def of_same_time(pairs: Pairs) -> set[str]:
    """Return the paths of the pairs whose times of last change are in the same second."""
    return {one.path for one, other in pairs if one.modified == other.modified}


def plan(
    source: Sequence[Found],
    target: Iterable[Found],
    excludes: Sequence[str],
    ledger: Ledger,
    *,
    keep: bool,
    equal: Equal = of_same_time,
) -> Plan:
    """Return the part of ``source`` to copy to ``target``; links only with ``keep``.

    Files are left out if ``equal`` returns their pair, or if one of ``excludes`` matches them or a directory above.
    """
    there = {one.path: one for one in target}
    included = _included(source, excludes)
    whole = len(included) == len(source)
    holding = {one.path.rpartition("/")[0] for one in source}
    same = equal(
        [
            (one, other)
            for one in included
            if (other := there.get(one.path)) and one.kind == other.kind == FILE and one.size == other.size
        ]
    )
    directories, files, links, leaves = list[Found](), list[Found](), list[Found](), list[Found]()
    for one in included:
        other = there.get(one.path)
        if one.kind == DIRECTORY:
            if one.path not in holding:
                leaves.append(one)
            if other is None or other.kind != DIRECTORY:
                directories.append(one)
        elif one.kind == OTHER or (one.kind == LINK and not keep):
            ledger.left += 1
            whole = whole and one.kind == OTHER
        elif one.kind == LINK:
            links.append(one)
        elif one.path in same:
            ledger.equal += 1
            whole = False
        else:
            files.append(one)
    return Plan(directories, files, links, leaves, whole)


def _included(source: Iterable[Found], excludes: Sequence[str]) -> list[Found]:
    out: set[str] = set()
    included = []
    for one in source:
        if one.path.rpartition("/")[0] in out or _excluded(one.path, excludes):
            out.add(one.path)
        else:
            included.append(one)
    return included


def _excluded(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern matches: one with a slash the whole path, others the last name."""
    parts = path.split("/")
    for pattern in patterns:
        wanted = pattern.strip("/").split("/")
        if "/" not in pattern.rstrip("/"):
            if fnmatchcase(parts[-1], wanted[0]):
                return True
        elif len(wanted) == len(parts) and all(map(fnmatchcase, parts, wanted)):
            return True
    return False
