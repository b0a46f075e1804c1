"""Which files on both sides are equal by their SHA-256; each side computes its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from connmgr.cli.cp.places import Place, Remote
from connmgr.cli.cp.plan import REQUEST_PATHS, Equal, Pairs
from connmgr.client import Client

PIECE_BYTES = 256 << 10

Sums = Callable[[Sequence[str]], dict[str, str]]


def comparing(client: Client, start: Place, end: Place) -> Equal:
    """Return a function that tells which files in the directories ``start`` and ``end`` are equal.

    A file that cannot be read is equal to no other.
    """
    sums = [_there(client, one) if isinstance(one, Remote) else _here(Path(one).expanduser()) for one in (start, end)]

    def equal(pairs: Pairs) -> set[str]:
        paths = [one.path for one, _ in pairs if one.size]
        first, second = (of(paths) for of in sums)
        return {one.path for one, _ in pairs if not one.size or first.get(one.path, "") == second.get(one.path)}

    return equal


def of_file(client: Client, place: Place) -> str | None:
    """Return the SHA-256 of one file, None if it cannot be read.
    :raises ClientError: the machine has no program for it, or the connection has no such file.
    """
    if not isinstance(place, Remote):
        return _of_file(Path(place).expanduser(), 0)
    return next(iter(client.fs.checksum(place.connection, place.path, session=place.session).values()), None)


def _there(client: Client, directory: Remote) -> Sums:
    def of(paths: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(paths), REQUEST_PATHS):
            some = paths[start : start + REQUEST_PATHS]
            found |= client.fs.checksum(directory.connection, directory.directory, some, session=directory.session)
        return found

    return of


def _here(directory: Path) -> Sums:
    def of(paths: Sequence[str]) -> dict[str, str]:
        found = {path: _of_file(directory / path, os.O_NOFOLLOW) for path in paths}
        return {path: digest for path, digest in found.items() if digest is not None}

    return of


def _of_file(path: Path, flags: int) -> str | None:
    digest = hashlib.sha256()
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
    except OSError:
        return None
    return digest.hexdigest()
