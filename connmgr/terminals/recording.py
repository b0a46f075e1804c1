"""Recordings of terminals for asciinema (asciicast, version 2)."""

from __future__ import annotations

import codecs
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from connmgr.errors import RecordingFailed

SUFFIX = ".cast"
FLUSH_SECONDS = 1.0

DAY_SECONDS = 86400

logger = logging.getLogger("connmgr.terminals")


class Recordings:
    """The directory of recordings; each ends after ``limit`` bytes, and is removed after ``days``; 0 keeps it."""

    def __init__(self, directory: Path, *, limit: int, days: float) -> None:
        self._directory = directory
        self._limit = limit
        self._days = days

    def begin(self, name: str, columns: int, rows: int, term: str) -> Recording:
        """Begin the recording ``name``, and remove those that are too old.

        :raises RecordingFailed: it cannot be written.
        """
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self.tidy()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.fdopen(os.open(self._directory / (name + SUFFIX), flags, 0o600), "w", encoding="utf-8")
        except OSError as error:
            raise RecordingFailed(f"The recording cannot be begun: {error.strerror}.") from error
        return Recording(file, self._limit, columns, rows, term)

    def tidy(self) -> None:
        """Remove the recordings that are too old."""
        if not self._days:
            return
        oldest = time.time() - self._days * DAY_SECONDS
        for path in self._directory.glob("*" + SUFFIX):
            # Another daemon may have removed it first.
            with suppress(FileNotFoundError):
                if path.lstat().st_mtime < oldest:
                    path.unlink()


class Recording:
    """A file with a terminal's output. It ends with its terminal, at its limit, or when its disk is full.

    Belongs to one thread.
    """

    def __init__(
        self,
        file: TextIO,
        limit: int,
        columns: int,
        rows: int,
        term: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cut: str | None = None
        """Why it ended before its terminal: ``limit`` or ``error``."""
        self._file = file
        self._room = limit
        self._clock = clock
        self._began = clock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unflushed = False
        header = {"version": 2, "width": columns, "height": rows, "timestamp": int(time.time()), "env": {"TERM": term}}
        self._write(json.dumps(header))

    def output(self, data: bytes) -> None:
        """Record output, in pieces of any size."""
        text = self._decoder.decode(data)
        if text:
            self._event("o", text)

    def resized(self, columns: int, rows: int) -> None:
        """Record that the terminal has another size."""
        self._event("r", f"{columns}x{rows}")

    @property
    def fileno(self) -> int:
        """The descriptor of the file, while it is open."""
        return self._file.fileno()

    @property
    def unflushed(self) -> bool:
        """Whether recorded output may not be in the file yet."""
        return self._unflushed

    def flush(self) -> None:
        """Write all recorded output to the file."""
        self._unflushed = False
        if not self._file.closed:
            self._guarded(self._file.flush)

    def close(self) -> None:
        """End the recording. Calling it again does nothing."""
        if self.cut is None and (rest := self._decoder.decode(b"", final=True)):
            self._event("o", rest)
        if not self._file.closed:
            self._guarded(self._file.close)

    def _event(self, kind: str, data: str) -> None:
        if not self._file.closed:
            self._write(json.dumps([round(self._clock() - self._began, 6), kind, data], ensure_ascii=False))

    def _write(self, line: str) -> None:
        # No decoder produces half a surrogate pair, which a file could not contain.
        size = len(line.encode()) + 1
        if size > self._room:
            self.cut = "limit"
            self.close()
            return
        self._room -= size
        self._unflushed = True
        self._guarded(lambda: self._file.write(line + "\n"))

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            logger.warning("A recording ends: %s", error.strerror)
            self.cut = "error"
            with suppress(OSError):
                self._file.close()
