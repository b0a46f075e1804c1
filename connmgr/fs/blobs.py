"""Blobs: bytes that a client session has uploaded and not yet written anywhere."""

from __future__ import annotations

import hashlib
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from connmgr.errors import BlobQuotaExceeded, UnknownBlob

IN_MEMORY = 1 << 20
"""Bytes up to which a blob is kept in memory; a larger one goes to a file without a name, readable by nobody else."""

PIECE = 1 << 20


class Spool:
    """Takes a blob's bytes as they arrive: waitress's buffer of a request body, until :meth:`release` hands it on."""

    def __init__(self, directory: Path) -> None:
        self._file: IO[bytes] | None = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by close(), or by whom release() hands it to
            max_size=IN_MEMORY, dir=str(directory)
        )
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __bool__(self) -> bool:
        return True

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        if self._file is not None:
            self._file.write(data)
            self._size += len(data)

    def getfile(self) -> Spool:
        """Return what the application finds as ``wsgi.input``."""
        return self

    def release(self) -> IO[bytes]:
        """Return the file, which whoever calls this closes from now on."""
        file, self._file = self._file, None
        if file is None:
            raise ValueError("the spool was released or closed before")
        return file

    def close(self) -> None:
        """Drop what was not released. Calling it again does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass
class Blob:
    """A stored blob: ``size`` in bytes, ``sha256`` in hexadecimal, and when it was stored (``time.monotonic``)."""

    owner: object
    size: int
    sha256: str
    stored: float
    _file: IO[bytes] = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces of at most 1 MiB; several readers may do so at once."""
        for offset in range(0, self.size, PIECE):
            with self._lock:
                self._file.seek(offset)
                piece = self._file.read(PIECE)
            yield piece

    def close(self) -> None:
        """Free its memory or disk space."""
        with self._lock:
            self._file.close()


class Blobs:
    """The blobs of all client sessions. Safe to use from several threads.

    ``quota`` is in bytes for all blobs together, ``ttl`` in seconds; ``directory`` holds the larger ones (0700).
    """

    def __init__(self, directory: Path, *, quota: int, ttl: float) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self.directory = directory
        self._quota = quota
        self._ttl = ttl
        self._lock = threading.Lock()
        self._blobs: dict[str, Blob] = {}

    def store(self, owner: object, spool: Spool) -> str:
        """Keep what ``spool`` has taken for the client session ``owner``, and return the blob's uuid.

        :raises BlobQuotaExceeded: there is no room for it.
        """
        self._expire()
        size = len(spool)
        with self._lock:
            if sum(blob.size for blob in self._blobs.values()) + size > self._quota:
                raise BlobQuotaExceeded(f"The daemon keeps at most {self._quota} bytes of blobs; write or await some.")
        file = spool.release()
        identifier = str(uuid.uuid4())
        blob = Blob(owner, size, _sha256(file), time.monotonic(), file)
        with self._lock:
            self._blobs[identifier] = blob
        return identifier

    def get(self, owner: object, identifier: str) -> Blob:
        """Return a blob that ``owner`` has stored.

        :raises UnknownBlob: there is none, it has expired, or it is another session's.
        """
        self._expire()
        with self._lock:
            blob = self._blobs.get(identifier)
        if blob is None or blob.owner is not owner:
            raise UnknownBlob(identifier)
        return blob

    def forget(self, owner: object) -> None:
        """Drop the blobs of a client session that has ended."""
        self._drop(lambda blob: blob.owner is owner)

    def close(self) -> None:
        """Drop every blob."""
        self._drop(lambda _: True)

    def _expire(self) -> None:
        oldest = time.monotonic() - self._ttl
        self._drop(lambda blob: blob.stored < oldest)

    def _drop(self, doomed: Callable[[Blob], bool]) -> None:
        with self._lock:
            dropped = [identifier for identifier, blob in self._blobs.items() if doomed(blob)]
            blobs = [self._blobs.pop(identifier) for identifier in dropped]
        for blob in blobs:
            blob.close()


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while piece := file.read(PIECE):
        digest.update(piece)
    return digest.hexdigest()
