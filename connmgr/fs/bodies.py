"""Bodies of requests: used while they arrive, or stored as blobs until they are used or expire."""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import queue
import stat
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from connmgr.errors import (
    BlobQuotaExceeded,
    ConnmgrError,
    InvalidRequest,
    NoSpace,
    SourceFailed,
    StartupError,
    TransferFailed,
    UnknownBlob,
)
from connmgr.processes import most_open_files
from connmgr.shares import Shares, of_tokens

PIECE_BYTES = 192 << 10
"""Bytes of a blob read at once, just below the size that the C library returns to the system."""

IN_MEMORY_BYTES = 1 << 20
"""Most bytes of a blob in memory; a larger one goes to a file without a name, which no other program can read."""

ALL_IN_MEMORY_BYTES = 32 << 20
"""Most bytes of all blobs in memory; further blobs are written to files, whatever their size."""

OVERHEAD_BYTES = 2 << 10
"""Memory for a blob besides its content."""

MAX_FILES = 2048
"""Most blobs in files, each of which is open; at most a quarter of the process's limit of open files."""

QUEUED_PIECES = 8
"""Most pieces of an upload that wait to be hashed."""

PORTION_BYTES = 8 << 20
"""Bytes of a file that a client receives, after each of which the system begins to write them to the disk."""

_SYNC_FILE_RANGE_WRITE = 2

_FULL = "The daemon's own disk has no space left for the blob."

More = Callable[[], bool]
"""Receives more of a body; returns False when it is complete."""


class ArrivingBody:
    """The bytes of one body: the parser of its request appends them, and one thread takes them, once.

    Bytes are received only on demand, so a client that sends faster must wait. The server sets ``more`` when a thread
    begins to answer. Before that, or if the whole request came at once, there are only the bytes that came with the
    header.
    """

    def __init__(self) -> None:
        self.more: More = lambda: False
        self.size = 0
        """The number of bytes that have arrived."""

        self.until: int | None = None
        """A descriptor that becomes readable when nobody wants more. If set, the sender may pause without limit."""

        self._pieces: deque[bytes] = deque()
        self._line: bytes | None = None

    @property
    def has_line(self) -> bool:
        """Whether its first line was taken, so that the rest is not kept."""
        return self._line is not None

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[bytes]:
        """Yield the body to its end.

        :raises connmgr.errors.ConnmgrError: it is incomplete or malformed.
        """
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if not self.more():
                return

    def first_line(self, most: int) -> bytes:
        """Return the first line of the body without its newline; the iteration then begins behind it.

        Called again, as for a request that waited for an approval, it returns the same line.

        :raises InvalidRequest: the body has no newline within ``most`` bytes; otherwise as the iteration.
        """
        if self._line is None:
            collected = bytearray()
            for piece in self:
                collected += piece
                if b"\n" in piece or len(collected) > most:
                    break
            line, newline, rest = bytes(collected).partition(b"\n")
            if not newline or len(line) > most:
                raise InvalidRequest(f"The body does not begin with a line of JSON of at most {most} bytes.")
            self._line = line
            if rest:
                self._pieces.appendleft(rest)
        return self._line

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        if data:
            self.size += len(data)
            self._pieces.append(data)

    def getfile(self) -> ArrivingBody:
        """Return the ``wsgi.input`` of the application."""
        return self

    def close(self) -> None:
        """Drop unread bytes."""
        self._pieces.clear()


class ArrivingInput:
    """The rest of a body as the input of a command (:class:`connmgr.engine.stdin_pipe.Input`).

    One thread iterates, and any may stop it. It may pause as long as its sender likes.
    """

    def __init__(self, body: ArrivingBody) -> None:
        self.failed = False
        self.size = 0
        """Bytes that the remote host has accepted."""

        self._body = body
        self._stopped = False
        self._lock = threading.Lock()
        self._wake, self._waker = os.pipe()
        body.until = self._wake

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._body:
                yield piece
                if self._stopped:
                    return
        except ConnmgrError:
            # The client has left, or the body is malformed. The command must not take a part for the whole.
            self.failed = not self._stopped

    def passed(self, size: int) -> None:
        self.size += size

    def stop(self) -> None:
        with self._lock:
            if not self._stopped:
                self._stopped = True
                # The other end becomes readable (end of file), which wakes a thread in poll() for good: unlike a byte,
                # nobody can read it away.
                os.close(self._waker)

    def close(self) -> None:
        """Release its descriptors, when nobody iterates any more."""
        self.stop()
        self._body.until = None
        os.close(self._wake)


class PassedFile:
    """A regular file that a client has open and whose ``descriptor`` it has passed; it is closed with this.

    It is read and written from where the client stands in it, and the client sees how far that is.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        try:
            at = os.lseek(descriptor, 0, os.SEEK_CUR) if stat.S_ISREG(status.st_mode) else None
        except OSError:
            # Opened with O_PATH, for its name alone.
            at = None
        if at is None:
            # Reading a pipe or a terminal could keep this thread for ever.
            os.close(descriptor)
            raise InvalidRequest("passed: The descriptor is not of a regular file that is open.")
        self.left = max(0, status.st_size - at)
        """The bytes that were left to read at the beginning."""

        self._at = self._begun = at

    def pieces(self) -> Iterator[bytes]:
        """Yield exactly ``left`` bytes.

        :raises SourceFailed: there are fewer, or they cannot be read.
        """
        left = self.left
        while left:
            try:
                piece = os.read(self._descriptor, min(PIECE_BYTES, left))
            except OSError as error:
                raise SourceFailed(f"The file to send cannot be read: {error.strerror}.") from error
            if not piece:
                raise SourceFailed(f"The file to send ended after {self.left - left} of {self.left} bytes.")
            left -= len(piece)
            yield piece

    def write(self, data: bytes) -> None:
        """Write all of ``data``; raise TransferFailed if that fails, such as on a full disk."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise TransferFailed(f"The file to receive into cannot be written: {error.strerror}.") from error
        self._at += len(data)
        if self._at - self._begun >= PORTION_BYTES:
            begin_to_flush(self._descriptor, self._begun, self._at - self._begun)
            self._begun = self._at

    def close(self) -> None:
        os.close(self._descriptor)


def begin_to_flush(descriptor: int, start: int, size: int) -> None:
    """Have the system begin to write these bytes of a file to the disk, without waiting for that."""
    # Otherwise ext4 does it all when the file replaces another one by rename(2) (auto_da_alloc in ext4(5)), and the
    # client waits 70 ms for 100 MB after the last byte. Only Linux has the call, and a system that refuses it flushes
    # as it likes.
    begin = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if begin is not None:
        begin(descriptor, ctypes.c_int64(start), ctypes.c_int64(size), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))


@dataclass
class Blob:
    """A stored blob: ``size`` in bytes, ``sha256`` in hexadecimal, time of storing (``time.monotonic``).

    :class:`Blobs` counts its ``readers``, and closes it when it is ``dropped`` and the last reader is done.
    """

    owner: object
    holder: str | None
    size: int
    sha256: str
    stored: float
    _content: BlobContent = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    readers: int = 0
    dropped: bool = False

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces; several readers may do so at once."""
        for offset in range(0, self.size, PIECE_BYTES):
            with self._lock:
                piece = self._content.read(offset, PIECE_BYTES)
            yield piece

    def close(self) -> None:
        """Free its memory or disk space."""
        self._content.close()


class Blobs:
    """The blobs of all client sessions. Safe to use from several threads.

    ``quota`` limits the bytes of all blobs, incoming ones included; tokens have shares of it (:mod:`connmgr.shares`),
    and of the files. ``ttl`` is in seconds. ``directory`` is for blobs that do not fit into memory; it is created, mode
    0700, if missing.
    """

    def __init__(self, directory: Path, *, quota: int, ttl: float) -> None:
        """Create the directory.

        :raises StartupError: it cannot be created, or something else is there.
        """
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            reason = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise StartupError(f"Blobs cannot be stored in {directory}: {reason}.") from error
        self._directory = directory
        self._room = BlobRoom()
        self._quota = quota
        self._ttl = ttl
        # Guards all attributes below, and each blob's readers.
        self._lock = threading.Lock()
        self._blobs: dict[str, Blob] = {}
        self._used = 0
        self._shares = Shares(*of_tokens(quota))
        self._timer: threading.Timer | None = None

    def spool(self, holder: str | None = None) -> BlobSpool:
        """Return a new spool, whose bytes count towards the quota, and the share of the token ``holder``."""
        return BlobSpool(BlobContent(self._directory, self._room, holder), partial(self._claim, holder))

    def store(self, owner: object, spool: BlobSpool, holder: str | None = None) -> str:
        """Store the content of ``spool`` for the client session ``owner``, and return the blob's uuid.

        ``holder`` is that of the spool.

        :raises BlobQuotaExceeded: the quota is exhausted.
        :raises NoSpace: the daemon's disk is full.
        """
        content, digest = spool.release()
        identifier = str(uuid.uuid4())
        with self._lock:
            self._blobs[identifier] = Blob(owner, holder, len(spool), digest, time.monotonic(), content)
            self._schedule()
        return identifier

    @contextmanager
    def borrowed(self, owner: object, identifier: str) -> Iterator[Blob]:
        """Yield a blob of ``owner``; if it expires meanwhile, it can still be read to its end.

        :raises UnknownBlob: it does not exist, has expired, or belongs to another session.
        """
        with self._lock:
            blob = self._blobs.get(identifier)
            if blob is None or blob.owner is not owner or self._expired(blob):
                raise UnknownBlob(identifier)
            blob.readers += 1
        try:
            yield blob
        finally:
            with self._lock:
                blob.readers -= 1
                self._free(blob)

    @property
    def number(self) -> int:
        """The number of stored blobs."""
        return len(self._blobs)

    @property
    def used(self) -> int:
        """The bytes of all blobs, incoming ones included."""
        return self._used

    def close(self) -> None:
        """Drop every blob."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._drop(list(self._blobs))

    def _expired(self, blob: Blob) -> bool:
        return blob.stored + self._ttl <= time.monotonic()

    def _expire(self) -> None:
        with self._lock:
            self._timer = None
            self._drop([identifier for identifier, blob in self._blobs.items() if self._expired(blob)])
            self._schedule()

    def _schedule(self) -> None:
        """Schedule the removal of the oldest blob for its expiry."""
        if self._timer is None and self._blobs:
            oldest = next(iter(self._blobs.values()))
            self._timer = threading.Timer(max(0.1, oldest.stored + self._ttl - time.monotonic()), self._expire)
            self._timer.name, self._timer.daemon = "expire-blobs", True
            self._timer.start()

    def _drop(self, identifiers: list[str]) -> None:
        for identifier in identifiers:
            blob = self._blobs.pop(identifier)
            blob.dropped = True
            self._free(blob)

    def _free(self, blob: Blob) -> None:
        if blob.dropped and not blob.readers:
            blob.close()
            self._used -= blob.size
            self._shares.give_back(blob.holder, blob.size)

    def _claim(self, holder: str | None, size: int) -> None:
        with self._lock:
            if size < 0:
                self._shares.give_back(holder, -size)
            if size > 0 and self._used + size > self._quota:
                raise BlobQuotaExceeded(
                    f"The quota of {self._quota} bytes for blobs is used up; each blob is kept for {self._ttl:g} s."
                )
            if size > 0 and not self._shares.take(holder, size):
                raise BlobQuotaExceeded(
                    f"The quota for blobs is used up: of {self._quota} bytes one token may use {self._shares.one}, and "
                    f"all tokens together {self._shares.together}; each blob is kept for {self._ttl:g} s."
                )
            self._used += size


class Digest:
    """The SHA-256 of bytes as they arrive; large content is hashed in a thread, which :meth:`close` ends."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._pieces: queue.Queue[bytes] = queue.Queue(QUEUED_PIECES)
        self._thread: threading.Thread | None = None

    def update(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        self._size += len(data)
        if self._size <= IN_MEMORY_BYTES:
            self._sha256.update(data)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="sha256", daemon=True)
            self._thread.start()
        self._pieces.put(data)

    def _follow(self) -> None:
        while piece := self._pieces.get():
            self._sha256.update(piece)

    def close(self) -> str:
        """Return the digest in hexadecimal; nothing can be added afterwards."""
        if self._thread is not None:
            self._pieces.put(b"")
            self._thread.join()
            self._thread = None
        return self._sha256.hexdigest()


class BlobRoom:
    """The memory and the files that all blobs share. Safe to use from several threads."""

    def __init__(self) -> None:
        self._most_files = min(MAX_FILES, most_open_files() // 4)
        self._lock = threading.Lock()
        self._bytes = 0
        self._files = 0
        self._shares = Shares(*of_tokens(self._most_files))

    def take_memory(self, size: int) -> bool:
        """Reserve ``size`` bytes of memory if available; a negative size returns them."""
        with self._lock:
            if size > 0 and self._bytes + size > ALL_IN_MEMORY_BYTES:
                return False
            self._bytes += size
            return True

    def take_file(self, holder: str | None) -> None:
        """Reserve one file for ``holder``, a token, or None for the owner.

        :raises BlobQuotaExceeded: too many are in use, or tokens have their share.
        """
        with self._lock:
            if self._files >= self._most_files:
                raise BlobQuotaExceeded(
                    f"Too many blobs in files ({self._most_files}), and the memory for blobs is full: try again when "
                    "some have expired."
                )
            if not self._shares.take(holder):
                raise BlobQuotaExceeded(
                    f"The token has used its share of the {self._most_files} files for blobs, and the memory for blobs "
                    "is full: try again when some of its blobs have expired."
                )
            self._files += 1

    def give_file_back(self, holder: str | None) -> None:
        with self._lock:
            self._shares.give_back(holder)
            self._files -= 1


class BlobContent:
    """Bytes written once, then read; in memory while there is :class:`BlobRoom`, else in a file."""

    def __init__(self, directory: Path, room: BlobRoom, holder: str | None = None) -> None:
        self._directory = directory
        self._room, self._holder = room, holder
        self._file: IO[bytes] = io.BytesIO()
        self._reserved = 0
        self._in_file = False

    def write(self, data: bytes) -> None:
        """Add ``data`` at the end; raise :class:`BlobQuotaExceeded` without room, OSError for a full disk."""
        if not (self._in_file or self._hold(len(data))):
            self._move_to_file()
        self._file.write(data)

    def _hold(self, size: int) -> bool:
        needed = size if self._reserved else size + OVERHEAD_BYTES
        if self._reserved + needed > IN_MEMORY_BYTES + OVERHEAD_BYTES or not self._room.take_memory(needed):
            return False
        self._reserved += needed
        return True

    def _move_to_file(self) -> None:
        self._room.take_file(self._holder)
        self._in_file = True
        memory = self._file
        self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - closed by close()
        memory.seek(0)
        self._file.write(memory.read())
        self._let_go()

    def _let_go(self) -> None:
        self._room.take_memory(-self._reserved)
        self._reserved = 0

    def flush(self) -> None:
        """Write buffered bytes, or raise OSError for a full disk."""
        self._file.flush()

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``offset`` on; for one thread at a time."""
        self._file.seek(offset)
        return self._file.read(size)

    def close(self) -> None:
        """Free memory and disk space; calling it again does nothing."""
        if self._file.closed:
            return
        # Closing a file writes its buffer once more, and fails again on a full disk.
        with suppress(OSError):
            self._file.close()
        self._let_go()
        if self._in_file:
            self._room.give_file_back(self._holder)


class BlobSpool:
    """Buffers a blob's bytes as they arrive, as waitress's buffer of a request body, until :meth:`Blobs.store`.

    ``claim`` is called with the number of bytes before they are stored, and with a negative number when they are freed.
    After a fault further bytes are received but not stored; :meth:`release` raises it.
    """

    def __init__(self, content: BlobContent, claim: Callable[[int], None]) -> None:
        self._content: BlobContent | None = content
        self._claim = claim
        self._digest = Digest()
        self._size = 0
        self._failure: ConnmgrError | None = None

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return True

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        if self._content is None or self._failure is not None or not data:
            return
        try:
            self._claim(len(data))
            self._size += len(data)
            self._content.write(data)
            self._digest.update(data)
        except BlobQuotaExceeded as error:
            self._fail(error)
        except OSError:
            self._fail(NoSpace(_FULL))

    def getfile(self) -> BlobSpool:
        """Return the ``wsgi.input`` of the application."""
        return self

    def release(self) -> tuple[BlobContent, str]:
        """Return the content and its SHA-256; the caller closes it, and returns its bytes to the quota.

        :raises ConnmgrError: the bytes could not be stored.
        """
        if self._content is not None:
            try:
                self._content.flush()
            except OSError:
                self._fail(NoSpace(_FULL))
        if self._failure is not None:
            raise self._failure
        content, self._content = self._content, None
        if content is None:
            raise ValueError("the spool was released or closed before")
        return content, self._digest.close()

    def close(self) -> None:
        """Drop unreleased content; calling it again does nothing."""
        if self._content is not None:
            self._content.close()
            self._content = None
            self._digest.close()
            self._claim(-self._size)

    def _fail(self, error: ConnmgrError) -> None:
        self.close()
        self._failure = error
