"""Reads, writes, lists and changes files of a session's host, as the session's user.

A path is bytes: absolute, relative to the session's directory, or beginning with ``~/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone

from connmgr.contract.fs import EntryResponse
from connmgr.engine.rpc import STALL_SECONDS, Exchange, RemoteProgram
from connmgr.engine.script import new_nonce
from connmgr.errors import PolicyDenied, TransferFailed
from connmgr.fs import remote
from connmgr.fs.bodies import Blob, Digest
from connmgr.fs.listing import Listing, allowed_in, allowed_matches, parse_entry, split_pattern
from connmgr.fs.path_rules import Gate, PathJudge
from connmgr.fs.remote import (
    DISK_BLOCK_BYTES,
    DISK_BYTES_A_SECOND,
    LISTING_BYTES,
    RemoteFileSystem,
    chunked,
    portioned,
    portions,
    records_of,
)

WHOLE_BYTES = 64 << 10
"""Largest file that is read completely before its size is reported, in bytes."""

UNSIZED_BYTES = 16 << 20
"""Most bytes that are read of a file with a small reported size; files in /proc report 0."""

DESCRIPTION_BYTES = 64 << 10
"""Most bytes of a file's description, with a link's target."""

_NUMBER = re.compile(rb"[0-9]{1,20}")


class FileReader:
    """A file that is being read: its ``size`` in bytes, and its content, once, by iteration; close it afterwards."""

    def __init__(self, fs: RemoteFileSystem, path: bytes) -> None:
        with ExitStack() as cleanup:
            self._exchange = exchange = cleanup.enter_context(fs.run(remote.READ, [path]))
            self.size = _number(exchange.answer())
            self._pieces = exchange.data()
            if self.size <= WHOLE_BYTES:
                # The size of such a file may be wrong: /proc reports 0 and /sys 4,096, whatever the content (proc(5)).
                content = _limited(self._pieces, UNSIZED_BYTES)
                if not exchange.succeeded():
                    raise TransferFailed("The file could not be read to its end; read it again.")
                self.size, self._pieces = len(content), iter([content])
            self._cleanup = cleanup.pop_all()

    def __iter__(self) -> Iterator[bytes]:
        """Yield exactly ``size`` bytes, even if the file grows meanwhile.

        :raises TransferFailed: there are fewer.
        """
        remaining = self.size
        while remaining:
            piece = next(self._pieces, b"")
            if not piece:
                raise TransferFailed("The file became shorter while it was read, or the link broke.")
            # A file that grows while it is read ends where it ended at first, as its size was told already.
            yield piece[:remaining]
            remaining -= min(remaining, len(piece))
        self._exchange.expect_end()

    def close(self) -> None:
        """End the remote program. Calling it again does nothing."""
        self._cleanup.close()


NOTHING = "nothing"
"""In place of a file's SHA-256: the path must not exist."""


@dataclass(frozen=True)
class FileAttributes:
    """A file's attributes: permissions if it is new, and the time of its last change, or None.

    ``replaces`` is the SHA-256, in hexadecimal, of the one file that it may replace, or :data:`NOTHING`. With an
    ``owner``, ``uid:gid``, the file gets both and the permissions, even if it exists. It is then never set-id for
    another user, nor before it has its name.
    """

    mode: int | None = None
    modified: datetime | None = None
    replaces: str = ""
    owner: str = ""

    @property
    def stamp(self) -> str:
        """The time in the format of POSIX's touch, in UTC."""
        return self.modified.astimezone(timezone.utc).strftime("%Y%m%d%H%M.%S") if self.modified else ""


def write(fs: RemoteFileSystem, path: bytes, blob: Blob, mode: int | None, replaces: str = "") -> None:
    """Write ``blob`` to ``path`` in one step, when it is completely on disk; raise FileExists or FileChanged."""
    # An existing file keeps its mode and owner; a new one gets `mode`, or the mode that the remote umask allows. A
    # link is followed. `replaces` is as in FileAttributes.
    attributes = FileAttributes(mode, None, replaces)
    _put(fs, path, blob.pieces(), blob.size, lambda: (blob.size, blob.sha256), attributes)


def put_back(fs: RemoteFileSystem, path: bytes, content: bytes, attributes: FileAttributes, sha256: str) -> None:
    """Write ``content``, whose checksum is ``sha256``; otherwise as :func:`write`."""
    _put(fs, path, [content], len(content), lambda: (len(content), sha256), attributes)


def receive(
    fs: RemoteFileSystem, path: bytes, pieces: Iterable[bytes], size: int | None, attributes: FileAttributes
) -> tuple[int, str]:
    """Write ``pieces`` to ``path`` while they arrive; otherwise as :func:`write`.

    ``size`` is their size in bytes, None if it is unknown.

    :returns: the number of bytes, and their SHA-256 in hexadecimal, with which the file was compared.
    """
    digest, passed = Digest(), 0

    def digested() -> Iterator[bytes]:
        nonlocal passed
        for piece in pieces:
            digest.update(piece)
            passed += len(piece)
            yield piece

    try:
        _put(fs, path, digested(), size, lambda: (passed, digest.close()), attributes)
        return passed, digest.close()
    finally:
        digest.close()


def _put(
    fs: RemoteFileSystem,
    path: bytes,
    pieces: Iterable[bytes],
    size: int | None,
    facts: Callable[[], tuple[int, str]],
    attributes: FileAttributes,
) -> None:
    sizes = portions(size or 0)
    arguments: list[str | bytes] = [
        path,
        _octal(attributes.mode),
        new_nonce(),
        str(DISK_BLOCK_BYTES),
        attributes.stamp,
        attributes.replaces,
        str(len(sizes)) if len(sizes) > 1 else "",
        attributes.owner,
    ]
    chunks = chunked(pieces) if size is None else portioned(pieces, sizes)
    with fs.run(remote.WRITE, arguments) as exchange:
        # A remote host that can read exact sizes needs no acknowledgement for each piece.
        exact = exchange.answer() == b"exact"
        exchange.stream(chunks, lambda: b"end %d %b" % (facts()[0], facts()[1].encode()), acknowledged=not exact)
        exchange.answer(STALL_SECONDS + facts()[0] / DISK_BYTES_A_SECOND)


def make_temporary(fs: RemoteFileSystem) -> bytes:
    """Create a new directory for temporary files that only the session's user can enter, and return its path.

    :raises PolicyDenied: there is a gate: rules over paths could not restrict a program that runs from there.
    """
    if fs.gate is not None:
        raise PolicyDenied("A token with path rules may not put a program on the machine.")
    with fs.run(remote.MAKE_TEMPORARY, [new_nonce()]) as exchange:
        return exchange.answer()


def list_directory(fs: RemoteFileSystem, path: bytes, *, recursive: bool = False) -> Listing:
    """Return the entries of a directory by name, without ``.`` and ``..``; links are not followed.

    With ``recursive`` also the content of its subdirectories, by relative paths.
    """
    judge = PathJudge(fs.gate) if fs.gate is not None else None
    with fs.run(remote.LIST, [path, "1" if recursive else ""], judge) as exchange:
        exchange.answer()
        records = _entries(exchange)
        return Listing(allowed_in(records, fs.gate, judge.real) if fs.gate and judge else records)


def matching(fs: RemoteFileSystem, pattern: bytes) -> Listing:
    """Return the files that match ``pattern``, as the remote shell expands it; links are not followed.

    With a gate, wildcards do not pass through links either, and forbidden files are left out.
    :raises PolicyDenied: there is a gate, and ``..`` follows a wildcard in the pattern.
    """
    if fs.gate is not None:
        return _matching_allowed(fs, pattern, fs.gate)
    with fs.run(remote.GLOB, [pattern]) as exchange:
        exchange.answer()
        return Listing(_entries(exchange))


def _matching_allowed(fs: RemoteFileSystem, pattern: bytes, gate: Gate) -> Listing:
    lead, rest = split_pattern(pattern)
    if not rest:
        return Listing([])
    judge = PathJudge(gate)
    with fs.run(remote.GLOB, [lead or b".", rest], judge) as exchange:
        exchange.answer()
        return Listing(allowed_matches(_entries(exchange), gate, judge.real, lead))


def _entries(exchange: Exchange) -> Iterator[bytes]:
    """Yield the description of each entry.

    :raises TransferFailed: at the end, if the listing is incomplete.
    """
    # One record behind: the last one is the program's word that the listing is whole, and not an entry.
    before = b""
    for record in records_of(exchange, LISTING_BYTES):
        if before:
            yield before
        before = record
    if before != b"end":
        raise TransferFailed("The link broke during the listing.")


def stat_file(fs: RemoteFileSystem, path: bytes, *, follow: bool) -> EntryResponse:
    """Describe one file; with ``follow`` a link's target."""
    with fs.run(remote.STAT, [path, "1" if follow else ""]) as exchange:
        exchange.answer()
        records = list(records_of(exchange, DESCRIPTION_BYTES))
    if len(records) != 2 or not records[1].startswith(b"target "):
        raise TransferFailed("The remote host did not describe the file.")
    target = records[1].removeprefix(b"target ").removesuffix(b"\nx")
    return parse_entry(records[0], path, target or None)


def remove(fs: RemoteFileSystem, path: bytes, *, recursive: bool, timeout: float, only: str = "") -> None:
    """Remove a file, a link itself, an empty directory, or with ``recursive`` a directory with its content."""
    # With `only`, the SHA-256 of a file in hexadecimal, any other file stays: FileChanged.
    _do(fs, remote.REMOVE, [path, "1" if recursive else "", only], timeout)


def make_directory(
    fs: RemoteFileSystem, path: bytes, mode: int | None, *, parents: bool, timeout: float, owner: str = ""
) -> None:
    """Create a directory; with ``parents`` its missing parents too, and an existing directory is not an error."""
    # Where `fs` is pinned it gets the owner, `uid:gid`, if its user may give it.
    _do(fs, remote.MKDIR, [path, _octal(mode), "1" if parents else "", owner], timeout)


def move(fs: RemoteFileSystem, source: bytes, target: bytes, *, overwrite: bool, timeout: float) -> None:
    """Rename a file or directory; an existing file is replaced only with ``overwrite``, a directory never."""
    _do(fs, remote.MOVE, [source, target, "1" if overwrite else ""], timeout)


def change_attributes(
    fs: RemoteFileSystem,
    path: bytes,
    mode: int | None,
    owner: str | None,
    group: str | None,
    *,
    timeout: float,
    facts: str = "",
    sha256: str = "",
) -> None:
    """Change a file's permissions, owner and group, where given; a link is followed.

    Where ``fs`` is pinned, none is, and a file is left alone that does not have ``facts`` (its mode in octal, user and
    group) and the checksum ``sha256``, where given: FileChanged.

    :raises PolicyDenied: there is a gate: a link of somebody else could lead chmod and chown elsewhere.
    """
    if fs.gate is not None:
        raise PolicyDenied("A token with path rules may not change modes and owners.")
    words = ["" if mode is None else f"{mode:05o}", owner or "", group or "", facts, sha256]
    _do(fs, remote.ATTRIBUTES, [path, *words], timeout)


def _do(fs: RemoteFileSystem, program: RemoteProgram, arguments: Sequence[str | bytes], timeout: float) -> None:
    with fs.run(program, arguments) as exchange:
        exchange.answer(timeout)


def _octal(mode: int | None) -> str:
    return "" if mode is None else f"{mode:04o}"


def _number(text: bytes) -> int:
    # int() would accept signs, blanks and underscores, and any number of digits.
    if not _NUMBER.fullmatch(text):
        raise TransferFailed("The remote host's description of the file is malformed.")
    return int(text)


def _limited(pieces: Iterator[bytes], limit: int) -> bytes:
    collected = bytearray()
    for piece in pieces:
        collected += piece
        if len(collected) > limit:
            raise TransferFailed(f"The remote host sent more than {limit} bytes.")
    return bytes(collected)
