"""Blobs: bytes that a client session has uploaded, until they are written somewhere or expire."""

from __future__ import annotations

import hashlib
import queue
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from connmgr.errors import BlobQuotaExceeded, ConnmgrError, NoSpace, StartupError, UnknownBlob

IN_MEMORY = 1 << 20
"""Bytes up to which a blob is kept in memory; a larger one goes to a file without a name, readable by nobody else."""

PIECE = 192 << 10
"""Bytes of a blob that are read at once: many, but no more than the C library keeps at hand."""

AHEAD = 8
"""Pieces of an upload that may wait for being hashed."""

_FULL = "The daemon's own disk has no space left for the blob."


class Digest:
    """The SHA-256 of bytes as they arrive; of many it is computed in a thread of its own, which :meth:`close` ends."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._size = 0
        self._pieces: queue.Queue[bytes] = queue.Queue(AHEAD)
        self._thread: threading.Thread | None = None

    def update(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        self._size += len(data)
        if self._size <= IN_MEMORY:
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


class Spool:
    """Takes a blob's bytes as they arrive: waitress's buffer of a request body, until :meth:`Blobs.store` takes it on.

    ``claim`` is told of more bytes before they are kept, and of those that are given back. What goes wrong meanwhile
    ends the keeping but not the receiving, and is raised by :meth:`release`.
    """

    def __init__(self, directory: Path, claim: Callable[[int], None]) -> None:
        self._file: IO[bytes] | None = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by close(), or by whom release() hands it to
            max_size=IN_MEMORY, dir=str(directory)
        )
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
        if self._file is None or self._failure is not None or not data:
            return
        try:
            self._claim(len(data))
            self._size += len(data)
            self._file.write(data)
            self._digest.update(data)
        except BlobQuotaExceeded as error:
            self._fail(error)
        except OSError:
            self._fail(NoSpace(_FULL))

    def getfile(self) -> Spool:
        """Return what the application finds as ``wsgi.input``."""
        return self

    def release(self) -> tuple[IO[bytes], str]:
        """Return the file and the SHA-256 of what it holds; whoever calls this closes it and gives the bytes back.

        :raises ConnmgrError: the bytes could not be kept.
        """
        if self._file is not None:
            try:
                self._file.flush()
            except OSError:
                self._fail(NoSpace(_FULL))
        if self._failure is not None:
            raise self._failure
        file, self._file = self._file, None
        if file is None:
            raise ValueError("the spool was released or closed before")
        return file, self._digest.close()

    def close(self) -> None:
        """Drop what was not released. Calling it again does nothing."""
        if self._file is not None:
            # What could not be written is tried once more when the file is closed.
            with suppress(OSError):
                self._file.close()
            self._file = None
            self._digest.close()
            self._claim(-self._size)

    def _fail(self, error: ConnmgrError) -> None:
        self.close()
        self._failure = error


@dataclass
class Blob:
    """A stored blob: ``size`` in bytes, ``sha256`` in hexadecimal, and when it was stored (``time.monotonic``).

    :class:`Blobs` counts its ``readers`` and closes it once it is ``dropped`` and the last one is done.
    """

    owner: object
    size: int
    sha256: str
    stored: float
    _file: IO[bytes] = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    readers: int = 0
    dropped: bool = False

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces; several readers may do so at once."""
        for offset in range(0, self.size, PIECE):
            with self._lock:
                self._file.seek(offset)
                piece = self._file.read(PIECE)
            yield piece

    def close(self) -> None:
        """Free its memory or disk space."""
        self._file.close()


class Blobs:
    """The blobs of all client sessions. Safe to use from several threads.

    ``quota`` is in bytes for all blobs together, those on their way in included; ``ttl`` in seconds; ``directory``
    holds the larger ones; it is made, mode 0700, if there is none.
    """

    def __init__(self, directory: Path, *, quota: int, ttl: float) -> None:
        """Make the directory.

        :raises StartupError: it cannot be made, or something else is there.
        """
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            reason = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise StartupError(f"Blobs cannot be kept in {directory}: {reason}.") from error
        self._directory = directory
        self._quota = quota
        self._ttl = ttl
        # Guards everything below, and each blob's readers.
        self._lock = threading.Lock()
        self._blobs: dict[str, Blob] = {}
        self._used = 0
        self._timer: threading.Timer | None = None

    def spool(self) -> Spool:
        """Return a new spool, whose bytes count as the blobs' do."""
        return Spool(self._directory, self._claim)

    def store(self, owner: object, spool: Spool) -> str:
        """Keep what ``spool`` has taken for the client session ``owner``, and return the blob's uuid.

        :raises BlobQuotaExceeded: there was no room for it.
        :raises NoSpace: the daemon's disk is full.
        """
        file, digest = spool.release()
        identifier = str(uuid.uuid4())
        with self._lock:
            self._blobs[identifier] = Blob(owner, len(spool), digest, time.monotonic(), file)
            self._schedule()
        return identifier

    @contextmanager
    def borrowed(self, owner: object, identifier: str) -> Iterator[Blob]:
        """Lend a blob that ``owner`` has stored; one that expires meanwhile can be read to its end.

        :raises UnknownBlob: there is none, it has expired, or it is another session's.
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
        """How many blobs are stored."""
        return len(self._blobs)

    @property
    def used(self) -> int:
        """The bytes of all blobs together, those on their way in included."""
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
        """Have the oldest blob dropped when its time is over."""
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

    def _claim(self, size: int) -> None:
        with self._lock:
            if size > 0 and self._used + size > self._quota:
                raise BlobQuotaExceeded(
                    f"All blobs together may have {self._quota} bytes; each is kept for {self._ttl:g} s."
                )
            self._used += size
