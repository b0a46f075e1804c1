"""Copies a single file to a connection, from one, or between two."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, NamedTuple

import click

from connmgr.cli.cp.places import STREAM, Place, Remote, own_name
from connmgr.cli.exits import Failure
from connmgr.client import Client, ClientError, Download, FileEntry, Progress

_PLACE = "place"
"""The member of an error's details that is the name of a connection."""


class Manner(NamedTuple):
    """How a file is copied: with its time if ``dated``; with ``mode``, or by default its own mode minus ``umask``.

    An existing file keeps its mode, unless ``exact``.
    """

    mode: int | None
    exact: bool
    dated: bool
    umask: int


class Marks(NamedTuple):
    """What a copy gets besides its content: permissions, and the time of its last change, or None."""

    mode: int | None
    modified: datetime | None


def copy(client: Client, start: Place, end: Place, manner: Manner, progress: Progress | None) -> int:
    """Copy a file of which at least one side is on a connection; return its size in bytes.

    :raises Failure: reading or writing the local file failed.
    """
    if isinstance(start, str) and isinstance(end, Remote):
        return _up(client, start, end, manner, progress)
    if isinstance(start, Remote) and isinstance(end, str):
        return _down(client, start, end, manner, progress)
    if isinstance(start, Remote) and isinstance(end, Remote):
        return _across(client, start, end, manner, progress)
    raise click.UsageError("One of the two must be a file of a connection, CONNECTION:path.")


def _up(client: Client, start: str, end: Remote, manner: Manner, progress: Progress | None) -> int:
    if start == STREAM and end.is_directory:
        raise click.UsageError("What comes from standard input has no name: name the file.")
    try:
        with contextlib.ExitStack() as stack:
            file = sys.stdin.buffer if start == STREAM else stack.enter_context(Path(start).expanduser().open("rb"))
            marks = Marks(manner.mode, None)
            if start != STREAM:
                status = os.fstat(file.fileno())
                if stat.S_ISDIR(status.st_mode):
                    raise Failure(f"{start} is a directory; -r copies directories.")
                when = datetime.fromtimestamp(status.st_mtime, timezone.utc) if manner.dated else None
                marks = Marks(stat.S_IMODE(status.st_mode) & 0o777 if manner.mode is None else manner.mode, when)
            return _write(client, file, end, own_name(start), marks, progress)
    except OSError as error:
        raise Failure(f"{start}: {error.strerror}") from error


def _write(
    client: Client, source: IO[bytes] | Download, end: Remote, name: str, marks: Marks, progress: Progress | None
) -> int:
    """Send ``source`` to a file, or into a directory under ``name``."""
    # The source can be sent only once, so check first whether the target is a directory.
    target = end.named(name) if _is_directory(client, end) or end.is_directory else end
    with _on(target):
        return client.fs.upload(
            target.connection,
            source,
            target.path,
            mode=marks.mode,
            modified=marks.modified,
            progress=progress,
            session=target.session,
        )


def _is_directory(client: Client, place: Remote) -> bool:
    try:
        return stat_of(client, place).type == "directory"
    except ClientError as error:
        if error.code != "no_such_file":
            raise
        return False


def stat_of(client: Client, place: Remote) -> FileEntry:
    """Describe a file of a connection."""
    with _on(place):
        return client.fs.stat(place.connection, place.directory, session=place.session)


@contextlib.contextmanager
def _on(place: Remote) -> Iterator[None]:
    """Note in an error about a file which connection the file is on, unless the error comes from another one."""
    try:
        yield
    except ClientError as error:
        error.details.setdefault(_PLACE, place.name)
        raise


@contextlib.contextmanager
def locating() -> Iterator[None]:
    """Put the connection before the path that the message of an error begins with.

    Not with --all, whose messages stand below the names of connections, equal ones once.
    """
    try:
        yield
    except ClientError as error:
        name = error.details.pop(_PLACE, None)
        if name is None or not error.message.startswith("/"):
            raise
        said = f"{name}:{error.message}"
        raise ClientError(said, error.code, error.status, error.details, error.retry_after) from error


def _down(client: Client, start: Remote, end: str, manner: Manner, progress: Progress | None) -> int:
    if end == STREAM:
        return _send(client, start, sys.stdout.buffer, progress)
    entry = stat_of(client, start)
    if entry.type == "directory":
        raise Failure(f"{start} is a directory; -r copies directories.")
    bits = entry.mode & 0o777 & ~manner.umask if manner.mode is None else manner.mode
    target = Path(end).expanduser()
    if target.is_dir():
        target /= Path(start.path).name
    try:
        with _replacing(target, bits, exact=manner.exact) as file:
            size = _send(client, start, file, progress)
            if manner.dated and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.utime(file.fileno(), (entry.modified.timestamp(), entry.modified.timestamp()))
    except OSError as error:
        raise Failure(f"{target}: {error.strerror}") from error
    return size


def _send(client: Client, start: Remote, file: IO[bytes], progress: Progress | None) -> int:
    with _on(start):
        size = client.fs.download(start.connection, start.path, file, progress, session=start.session)
    file.flush()
    return size


def _across(client: Client, start: Remote, end: Remote, manner: Manner, progress: Progress | None) -> int:
    entry = stat_of(client, start)
    if entry.type == "directory":
        raise Failure(f"{start} is a directory; -r copies directories.")
    marks = Marks(entry.mode & 0o777 if manner.mode is None else manner.mode, entry.modified if manner.dated else None)
    source = start.connection, start.path
    with client.clone() as reading, _on(start), reading.fs.open(*source, session=start.session) as content:
        return _write(client, content, end, Path(start.path).name, marks, progress)


@contextlib.contextmanager
def _replacing(target: Path, mode: int, *, exact: bool) -> Iterator[IO[bytes]]:
    """Open a new file that replaces ``target`` once it is complete; a device or pipe is written directly.

    An existing file keeps its mode, unless ``exact``.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as device:
            yield device
        return
    target = Path(os.path.realpath(target))
    descriptor, name = tempfile.mkstemp(prefix=".connmgr-", dir=target.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        draft.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() and not exact else mode)
        draft.replace(target)
    except BaseException:
        draft.unlink()
        raise
