"""``connmgr cp``: copy a file to or from a connection."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import click
from click.shell_completion import CompletionItem

from connmgr.cli.address import reach
from connmgr.cli.daemon import connect
from connmgr.cli.exits import Failure
from connmgr.cli.names import ConnectionName
from connmgr.cli.outcome import ensure_shell, session_option
from connmgr.cli.progress import transferring
from connmgr.client import Client, ClientError, FileEntry, Progress

STREAM = "-"


@dataclass(frozen=True)
class Remote:
    """A path on a connection; the empty path is the shell's directory."""

    connection: str
    path: str
    session: str | None

    def named(self, name: str) -> Remote:
        """Return the path of ``name`` within this one."""
        return replace(self, path=f"{self.path.rstrip('/')}/{name}" if self.path else name)

    @property
    def is_directory(self) -> bool:
        return not self.path or self.path.endswith("/")


class CopyPath(ConnectionName):
    """A local path, ``CONNECTION:path``, or ``-``."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        files = [CompletionItem(incomplete, type="file")]
        if _is_local(incomplete):
            return files
        return [CompletionItem(f"{item.value}:") for item in super().shell_complete(ctx, param, incomplete)] or files


@click.command()
@click.argument("source", type=CopyPath())
@click.argument("target", type=CopyPath())
@click.option("--mode", metavar="OCTAL", help="Permissions of a new file.  [default: those of SOURCE]")
@session_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress on the terminal.")
def cp(source: str, target: str, mode: str | None, session: str | None, *, quiet: bool) -> None:
    """Copy a file to, from or between connections.

    CONNECTION:path is a file of a connection. The path starts from the directory of the shell there, unless it is
    absolute or begins with ~/. A path that begins with / . or ~ is one of this machine, and - is standard input or
    output. A directory as TARGET takes the file under its own name. The file gets its name once it is there whole.
    """
    bits = _bits(mode)
    client = connect()
    start, end = _place(client, source, session), _place(client, target, session)
    with transferring(source, quiet=quiet) as progress:
        if isinstance(start, Remote) and isinstance(end, Remote):
            _across(client, start, end, bits, progress)
        elif isinstance(start, Remote) and isinstance(end, str):
            _down(client, start, end, bits, progress)
        elif isinstance(start, str) and isinstance(end, Remote):
            _up(client, start, end, bits, progress)
        else:
            raise click.UsageError("One of the two must be a file of a connection, CONNECTION:path.")


def _place(client: Client, text: str, session: str | None) -> Remote | str:
    if _is_local(text) or ":" not in text:
        return text
    name, _, path = text.partition(":")
    id = reach(client, name)
    ensure_shell(client, id, session, name)
    return Remote(id, path, session)


def _is_local(text: str) -> bool:
    return text == STREAM or text.startswith(("/", ".", "~"))


def _bits(mode: str | None) -> int | None:
    if mode is None:
        return None
    try:
        bits = int(mode, 8)
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0o7777:
        raise click.BadParameter(f"{mode!r} is not an octal mode such as 0644.", param_hint="--mode")
    return bits


def _up(client: Client, start: str, end: Remote, mode: int | None, progress: Progress | None) -> None:
    if start == STREAM and end.is_directory:
        raise click.UsageError("What comes from standard input has no name: name the file.")
    try:
        with contextlib.ExitStack() as stack:
            file = sys.stdin.buffer if start == STREAM else stack.enter_context(Path(start).expanduser().open("rb"))
            if mode is None and start != STREAM:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o777
            blob = client.fs.blob(file, progress)
    except OSError as error:
        raise Failure(f"{start}: {error.strerror}") from error
    _write(client, blob, end, Path(start).name, mode)


def _write(client: Client, blob: str, end: Remote, name: str, mode: int | None) -> None:
    target = end.named(name) if end.is_directory else end
    try:
        _put(client, blob, target, mode)
    except ClientError as error:
        if error.code != "wrong_file_type" or end.is_directory or _stat(client, end).type != "directory":
            raise
        _put(client, blob, end.named(name), mode)


def _put(client: Client, blob: str, place: Remote, mode: int | None) -> None:
    client.fs.write(place.connection, blob, place.path, mode=mode, session=place.session)


def _stat(client: Client, place: Remote) -> FileEntry:
    return client.fs.stat(place.connection, place.path, session=place.session)


def _down(client: Client, start: Remote, end: str, mode: int | None, progress: Progress | None) -> None:
    if end == STREAM:
        _send(client, start, sys.stdout.buffer, progress)
        return
    entry = _stat(client, start)
    if entry.type == "directory":
        raise Failure(f"{start.path} is a directory; cp copies single files.")
    bits = entry.mode & 0o777 & ~_umask() if mode is None else mode
    target = Path(end).expanduser()
    if target.is_dir():
        target /= Path(start.path).name
    try:
        with _replacing(target, bits) as file:
            _send(client, start, file, progress)
    except OSError as error:
        raise Failure(f"{target}: {error.strerror}") from error


def _send(client: Client, start: Remote, file: IO[bytes], progress: Progress | None) -> None:
    client.fs.download(start.connection, start.path, file, progress, session=start.session)
    file.flush()


def _across(client: Client, start: Remote, end: Remote, mode: int | None, progress: Progress | None) -> None:
    entry = _stat(client, start)
    with client.clone() as reading, reading.fs.open(start.connection, start.path, session=start.session) as content:
        blob = client.fs.blob(content, progress)
    _write(client, blob, end, Path(start.path).name, entry.mode & 0o777 if mode is None else mode)


@contextlib.contextmanager
def _replacing(target: Path, mode: int) -> Iterator[IO[bytes]]:
    """Open a new file that replaces ``target`` once it is whole; a device or pipe is written directly."""
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
        draft.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else mode)
        draft.replace(target)
    except BaseException:
        draft.unlink()
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
