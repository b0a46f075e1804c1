"""Stores the bytes of a blob as they arrive: in memory while all blobs have room there, else in a file."""

from __future__ import annotations

import hashlib
import io
import queue
import resource
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from connmgr.errors import BlobQuotaExceeded, ConnmgrError, NoSpace
from connmgr.shares import Shares, of_tokens

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

_FULL = "The daemon's own disk has no space left for the blob."


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


class Room:
    """The memory and the files that all blobs share. Safe to use from several threads."""

    def __init__(self) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_files = MAX_FILES if soft == resource.RLIM_INFINITY else min(MAX_FILES, soft // 4)
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
                    f"{self._most_files} blobs lie in files already, and memory has no room: repeat it when some of "
                    "them have expired."
                )
            if not self._shares.take(holder):
                raise BlobQuotaExceeded(
                    f"Of {self._most_files} files for blobs the token has its share, and memory has no room: repeat it "
                    "when some of its blobs have expired."
                )
            self._files += 1

    def give_file_back(self, holder: str | None) -> None:
        with self._lock:
            self._shares.give_back(holder)
            self._files -= 1


class Content:
    """Bytes written once, then read; in memory while there is :class:`Room`, else in a file."""

    def __init__(self, directory: Path, room: Room, holder: str | None = None) -> None:
        self._directory = directory
        self._room, self._holder = room, holder
        self._file: IO[bytes] = io.BytesIO()
        self._held = 0
        self._in_file = False

    def write(self, data: bytes) -> None:
        """Add ``data`` at the end; raise :class:`BlobQuotaExceeded` without room, OSError for a full disk."""
        if not (self._in_file or self._hold(len(data))):
            self._move_to_file()
        self._file.write(data)

    def _hold(self, size: int) -> bool:
        needed = size if self._held else size + OVERHEAD_BYTES
        if self._held + needed > IN_MEMORY_BYTES + OVERHEAD_BYTES or not self._room.take_memory(needed):
            return False
        self._held += needed
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
        self._room.take_memory(-self._held)
        self._held = 0

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
        # Closing the file retries a failed write.
        with suppress(OSError):
            self._file.close()
        self._let_go()
        if self._in_file:
            self._room.give_file_back(self._holder)


class Spool:
    """Buffers a blob's bytes as they arrive, as waitress's buffer of a request body, until :meth:`Blobs.store`.

    ``claim`` is called with the number of bytes before they are stored, and with a negative number when they are freed.
    After a fault further bytes are received but not stored; :meth:`release` raises it.
    """

    def __init__(self, content: Content, claim: Callable[[int], None]) -> None:
        self._content: Content | None = content
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

    def getfile(self) -> Spool:
        """Return the ``wsgi.input`` of the application."""
        return self

    def release(self) -> tuple[Content, str]:
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
