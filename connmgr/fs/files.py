"""Reads, writes and describes files of a session's machine, as the session's user.

A path is bytes: absolute, relative to the session's directory, or beginning with ``~/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone

from connmgr.cancellation import NEVER, Cancellation
from connmgr.engine.rpc import STALL_SECONDS, Chunk, Exchange, Helpers, RemoteProgram
from connmgr.engine.script import new_nonce
from connmgr.errors import PolicyDenied, TransferFailed
from connmgr.fs import allowed, scripts
from connmgr.fs.blobs import Blob
from connmgr.fs.entries import Entry, Listing, entry_of
from connmgr.fs.gate import Gate, Judge
from connmgr.fs.spool import Digest
from connmgr.plugin import Transport
from connmgr.printable import visible

WHOLE_BYTES = 64 << 10
"""Largest file that is read completely before its size is reported, in bytes."""

UNSIZED_BYTES = 16 << 20
"""Most bytes that are read of a file with a small reported size; files in /proc report 0."""

LISTING_BYTES = 64 << 20
DESCRIPTION_BYTES = 64 << 10
"""Most bytes of a file's description, with a link's target."""

RECORD_BYTES = 16 << 10
"""Most bytes of an entry, and of a link's target."""

BLOCK_BYTES = 64 << 10
"""Block size of the far side for a large file."""

CHUNK_BYTES = 2 << 20
"""Bytes of one chunk to a far side; each chunk costs a process there."""

DISK_BYTES_A_SECOND = 1 << 20
"""Rate at which a far side must at least flush and check, in bytes per second, besides the time of any answer."""

_NUMBER = re.compile(rb"[0-9]{1,20}")


@dataclass(frozen=True)
class Place:
    """A session's transport, working directory and helpers.

    If there is a ``gate``, it decides about every file operation. A cancelled operation begins no further program.
    """

    transport: Transport
    directory: bytes
    helpers: Helpers = field(default_factory=Helpers)
    gate: Gate | None = None
    cancellation: Cancellation = NEVER

    def run(self, program: RemoteProgram, arguments: Sequence[str | bytes], judge: Judge | None = None) -> Exchange:
        """Run a program of :mod:`connmgr.fs.scripts`; ``judge``, or one for the gate, decides about its questions."""
        if self.gate is not None and judge is None:
            judge = Judge(self.gate)
        if judge is not None:
            program = scripts.held(program)
        subject = " -> ".join(map(self._shown, arguments[: program.paths]))
        words = [self.directory, *arguments]
        return Exchange(
            self.transport,
            self.helpers,
            program,
            words,
            judge=judge,
            subject=subject,
            cancellation=self.cancellation,
        )

    def _shown(self, path: str | bytes) -> str:
        """Return a path for a message, with the directory that a relative one begins in."""
        given = path if isinstance(path, bytes) else path.encode(errors="surrogateescape")
        whole = given if given.startswith((b"/", b"~")) else b"/".join([self.directory.rstrip(b"/"), given])
        return visible(whole.decode(errors="replace"))


class Reading:
    """A file that is being read: its ``size`` in bytes, and its content, once, by iteration; close it afterwards."""

    def __init__(self, place: Place, path: bytes) -> None:
        with ExitStack() as cleanup:
            self._exchange = exchange = cleanup.enter_context(place.run(scripts.READ, [path]))
            self.size = _number(exchange.answer())
            self._pieces = exchange.data()
            if self.size <= WHOLE_BYTES:
                # The reported size of such a file may be wrong, as in /proc and /sys.
                content = _limited(self._pieces, UNSIZED_BYTES)
                if not exchange.succeeded():
                    raise TransferFailed("The file could not be read to its end.")
                self.size, self._pieces = len(content), iter([content])
            self._cleanup = cleanup.pop_all()

    def __iter__(self) -> Iterator[bytes]:
        """Yield exactly ``size`` bytes, even if the file grows meanwhile.

        :raises TransferFailed: there are fewer.
        """
        left = self.size
        while left:
            piece = next(self._pieces, b"")
            if not piece:
                raise TransferFailed("The file became shorter while it was read, or the link broke.")
            yield piece[:left]
            left -= min(left, len(piece))
        self._exchange.settle()

    def close(self) -> None:
        """End the far side's part. Calling it again does nothing."""
        self._cleanup.close()


NOTHING = "nothing"
"""In place of a file's SHA-256: the path must not exist."""


def write(place: Place, path: bytes, blob: Blob, mode: int | None, replaces: str = "") -> None:
    """Write ``blob`` to ``path`` in one step, when it is completely on disk; raise FileExists or FileChanged."""
    # An existing file keeps its mode and owner; a new one gets `mode`, or the mode that the far side's umask allows. A
    # link is followed. `replaces` is as in Marks.
    _put(place, path, [(blob.size, blob.pieces())], lambda: (blob.size, blob.sha256), Marks(mode, None, replaces))


@dataclass(frozen=True)
class Marks:
    """A file's attributes: permissions if it is new, and the time of its last change, or None.

    ``replaces`` is the SHA-256, in hexadecimal, of the one file that it may replace, or :data:`NOTHING`.
    """

    mode: int | None = None
    modified: datetime | None = None
    replaces: str = ""

    @property
    def stamp(self) -> str:
        """The time in the format of POSIX's touch, in UTC."""
        return self.modified.astimezone(timezone.utc).strftime("%Y%m%d%H%M.%S") if self.modified else ""


def receive(place: Place, path: bytes, pieces: Iterable[bytes], size: int | None, marks: Marks) -> tuple[int, str]:
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
        chunks = chunked(digested()) if size is None else [(size, digested())]
        _put(place, path, chunks, lambda: (passed, digest.close()), marks)
        return passed, digest.close()
    finally:
        digest.close()


def _put(
    place: Place, path: bytes, chunks: Iterable[Chunk], facts: Callable[[], tuple[int, str]], marks: Marks
) -> None:
    arguments: list[str | bytes] = [
        path,
        _octal(marks.mode),
        new_nonce(),
        str(BLOCK_BYTES),
        marks.stamp,
        marks.replaces,
    ]
    with place.run(scripts.WRITE, arguments) as exchange:
        exact = exchange.answer() == b"exact"
        exchange.stream(chunks, lambda: b"end %d %b" % (facts()[0], facts()[1].encode()), acknowledged=not exact)
        exchange.answer(STALL_SECONDS + facts()[0] / DISK_BYTES_A_SECOND)


def chunked(pieces: Iterable[bytes | memoryview]) -> Iterator[Chunk]:
    """Yield ``pieces`` in chunks large enough to be worth a process of the far side."""
    return ((len(chunk), [chunk]) for chunk in joined(pieces, CHUNK_BYTES))


def joined(pieces: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of ``size`` or more."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= size:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def make_temporary(place: Place) -> bytes:
    """Create a new directory for temporary files that only the session's user can enter, and return its path.

    :raises PolicyDenied: the place has a gate: rules over paths could not restrict a program that runs from there.
    """
    if place.gate is not None:
        raise PolicyDenied("A caller with rules over paths may not put a program on the machine.")
    with place.run(scripts.MAKE_TEMPORARY, [new_nonce()]) as exchange:
        return exchange.answer()


def list_directory(place: Place, path: bytes, *, recursive: bool = False) -> Listing:
    """Return the entries of a directory by name, without ``.`` and ``..``; links are not followed.

    With ``recursive`` also the content of its subdirectories, by relative paths.
    """
    judge = Judge(place.gate) if place.gate is not None else None
    with place.run(scripts.LIST, [path, "1" if recursive else ""], judge) as exchange:
        exchange.answer()
        records = _entries(exchange)
        return Listing(allowed.in_directory(records, place.gate, judge.real) if place.gate and judge else records)


def matching(place: Place, pattern: bytes) -> Listing:
    """Return the files that match ``pattern``, as the far side's shell expands it; links are not followed.

    With a gate, wildcards do not pass through links either, and forbidden files are left out.
    :raises PolicyDenied: the place has a gate, and ``..`` follows a wildcard in the pattern.
    """
    if place.gate is not None:
        return _matching_allowed(place, pattern, place.gate)
    with place.run(scripts.GLOB, [pattern]) as exchange:
        exchange.answer()
        return Listing(_entries(exchange))


def _matching_allowed(place: Place, pattern: bytes, gate: Gate) -> Listing:
    lead, rest = allowed.split(pattern)
    if not rest:
        return Listing([])
    judge = Judge(gate)
    with place.run(scripts.GLOB, [lead or b".", rest], judge) as exchange:
        exchange.answer()
        return Listing(allowed.matched(_entries(exchange), gate, judge.real, lead))


def _entries(exchange: Exchange) -> Iterator[bytes]:
    """Yield the description of each entry.

    :raises TransferFailed: at the end, if the listing is incomplete.
    """
    before = b""
    for record in records_of(exchange, LISTING_BYTES):
        if before:
            yield before
        before = record
    if before != b"end":
        raise TransferFailed("The link broke during the listing.")


def stat_file(place: Place, path: bytes, *, follow: bool) -> Entry:
    """Describe one file; with ``follow`` a link's target."""
    with place.run(scripts.STAT, [path, "1" if follow else ""]) as exchange:
        exchange.answer()
        records = list(records_of(exchange, DESCRIPTION_BYTES))
    if len(records) != 2 or not records[1].startswith(b"target "):
        raise TransferFailed("The far side did not describe the file.")
    target = records[1].removeprefix(b"target ").removesuffix(b"\nx")
    return entry_of(records[0], path, target or None)


def records_of(exchange: Exchange, limit: int) -> Iterator[bytes]:
    """Yield a program's output after each of its marks, as it comes, at most ``limit`` bytes."""
    mark, total, begun, rest = exchange.mark + b" ", 0, False, b""
    for piece in exchange.data():
        total += len(piece)
        *records, rest = (rest + piece).split(mark)
        if total > limit or len(rest) > RECORD_BYTES:
            raise TransferFailed(f"The far side sends more than {limit if total > limit else RECORD_BYTES} bytes.")
        yield from records if begun else records[1:]  # Output before the first mark belongs to nothing.
        begun = begun or bool(records)
    if not exchange.succeeded():
        raise TransferFailed("The link broke, or the program that describes the file was killed.")
    if begun:
        yield rest


def remove(place: Place, path: bytes, *, recursive: bool, timeout: float) -> None:
    """Remove a file, a link itself, an empty directory, or with ``recursive`` a directory with its content."""
    _do(place, scripts.REMOVE, [path, "1" if recursive else ""], timeout)


def make_directory(place: Place, path: bytes, mode: int | None, *, parents: bool, timeout: float) -> None:
    """Create a directory; with ``parents`` its missing parents too, and an existing directory is not an error."""
    _do(place, scripts.MKDIR, [path, _octal(mode), "1" if parents else ""], timeout)


def move(place: Place, source: bytes, target: bytes, *, overwrite: bool, timeout: float) -> None:
    """Rename a file or directory; an existing file is replaced only with ``overwrite``, a directory never."""
    _do(place, scripts.MOVE, [source, target, "1" if overwrite else ""], timeout)


def _do(place: Place, program: RemoteProgram, arguments: Sequence[str | bytes], timeout: float) -> None:
    with place.run(program, arguments) as exchange:
        exchange.answer(timeout)


def _octal(mode: int | None) -> str:
    return "" if mode is None else f"{mode:o}"


def _number(text: bytes) -> int:
    # int() would accept signs, blanks and underscores, and any number of digits.
    if not _NUMBER.fullmatch(text):
        raise TransferFailed("The far side described the file in an unknown way.")
    return int(text)


def _limited(pieces: Iterator[bytes], limit: int) -> bytes:
    collected = bytearray()
    for piece in pieces:
        collected += piece
        if len(collected) > limit:
            raise TransferFailed(f"The far side sends more than {limit} bytes.")
    return bytes(collected)
