"""Blobs: bytes that a client session has uploaded, stored until they are used or expire."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from connmgr.errors import BlobQuotaExceeded, StartupError, UnknownBlob
from connmgr.fs.spool import Content, Room, Spool
from connmgr.shares import Shares, of_tokens

PIECE_BYTES = 192 << 10
"""Bytes of a blob read at once, just below the size that the C library returns to the system."""


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
    _content: Content = field(repr=False)
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
    and of the files. ``ttl`` is in seconds. ``directory`` is for blobs
    that do not fit into memory; it is created, mode 0700, if missing.
    """

    def __init__(self, directory: Path, *, quota: int, ttl: float) -> None:
        """Create the directory.

        :raises StartupError: it cannot be created, or something else is there.
        """
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            reason = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise StartupError(f"Blobs cannot be kept in {directory}: {reason}.") from error
        self._directory = directory
        self._room = Room()
        self._quota = quota
        self._ttl = ttl
        # Guards all attributes below, and each blob's readers.
        self._lock = threading.Lock()
        self._blobs: dict[str, Blob] = {}
        self._used = 0
        self._shares = Shares(*of_tokens(quota))
        self._timer: threading.Timer | None = None

    def spool(self, holder: str | None = None) -> Spool:
        """Return a new spool, whose bytes count towards the quota, and the share of the token ``holder``."""
        return Spool(Content(self._directory, self._room, holder), partial(self._claim, holder))

    def store(self, owner: object, spool: Spool, holder: str | None = None) -> str:
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
                    f"All blobs together may have {self._quota} bytes; each is kept for {self._ttl:g} s."
                )
            if size > 0 and not self._shares.take(holder, size):
                raise BlobQuotaExceeded(
                    f"The blobs of a token may have {self._shares.one} of {self._quota} bytes, those of all tokens "
                    f"{self._shares.together}; each is kept for {self._ttl:g} s."
                )
            self._used += size
