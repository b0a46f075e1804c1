"""Recordings of terminals for asciinema (asciicast, version 2)."""

from __future__ import annotations

import codecs
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from connmgr.errors import RecordingFailed
from connmgr.shares import of_tokens

SUFFIX = ".cast"
FLUSH_SECONDS = 1.0

DAY_SECONDS = 86400

STEP_BYTES = 1024 * 1024
"""A recording asks for room by this much, because each time the directory is read."""

HOLDER = "connmgr_token"
"""The member of a recording's header with the id of the token whose it is; the owner's have none."""

CONNECTION, OPENER, COMMAND = "connmgr_connection", "connmgr_opener", "command"
"""Members of the header: the connection's id, the id of the token that opened the terminal, and what runs."""

COMMAND_CHARACTERS = 1000
HEADER_CHARACTERS = 16384

_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

logger = logging.getLogger("connmgr.terminals")


class Recordings:
    """The directory of recordings. Safe to use from several threads.

    One ends after ``limit`` bytes, and is removed ``days`` days after its end; 0 keeps it. All together have at most
    ``total`` bytes; then the oldest that have ended are removed. A token's recordings have a share of that
    (:func:`connmgr.shares.of_tokens`), and only its own are removed for them: nobody removes the traces of others by
    recording more.
    """

    def __init__(self, directory: Path, *, limit: int, total: int, days: float) -> None:
        self._directory = directory
        self._limit = limit
        self._total = total
        self._days = days
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        """The bytes that each file under way may have, by file names; it may have written fewer."""
        self._holders: dict[str, str | None] = {}
        """Whose the files are, by file names, as far as they were read."""

    def begin(
        self,
        name: str,
        columns: int,
        rows: int,
        term: str,
        holder: str | None = None,
        about: Mapping[str, str | None] | None = None,
    ) -> Recording:
        """Begin the recording ``name`` for ``holder``, a token or the owner, and remove those that are too old.

        ``about`` has further members of its header; those that are None are left out.

        :raises RecordingFailed: it cannot be written, or the recordings of running terminals leave no room.
        """
        file_name = name + SUFFIX
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self.tidy()
            first = min(STEP_BYTES, self._limit)
            if self._grant(file_name, holder, first) < first:
                raise RecordingFailed(
                    "There is no room for another recording: those of running terminals use all max-recordings bytes, "
                    "or the token's share of them."
                )
            # O_EXCL and O_NOFOLLOW: never the file or the target of a link that somebody has put there.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.fdopen(os.open(self._directory / file_name, flags, 0o600), "w", encoding="utf-8")
        except OSError as error:
            self._ended(file_name)
            raise RecordingFailed(f"The recording's file cannot be created: {error.strerror}.") from error
        header = {"version": 2, "width": columns, "height": rows, "timestamp": int(time.time()), "env": {"TERM": term}}
        # Players ignore members that they do not know.
        members = {HOLDER: holder, **(about or {})}
        header |= {name: value for name, value in members.items() if value is not None}

        def grow(size: int) -> int:
            return self._grant(file_name, holder, size)

        return Recording(file, self._limit, header, granted=first, grow=grow, ended=lambda: self._ended(file_name))

    def tidy(self) -> None:
        """Remove the recordings that are too old."""
        if not self._days:
            return
        oldest = time.time() - self._days * DAY_SECONDS
        with self._lock:
            for name, (ended_at, _) in self._files().items():
                if ended_at < oldest and name not in self._running:
                    self._remove(name)

    def paths(self) -> list[Path]:
        """Return the files of all recordings, those under way included."""
        return list(self._directory.glob("*" + SUFFIX))

    def path(self, name: str) -> Path | None:
        """Return where the recording ``name`` is or would be; None if that is not the uuid of a terminal."""
        # A client sends it: with a slash it would lead elsewhere.
        return self._directory / (name + SUFFIX) if _NAME.fullmatch(name) else None

    def is_active(self, name: str) -> bool:
        """Whether the recording ``name`` is under way."""
        with self._lock:
            return name + SUFFIX in self._running

    def _grant(self, name: str, holder: str | None, size: int) -> int:
        """Let the file ``name`` have ``size`` more bytes; return how many it gets, 0 if nothing may be removed."""
        with self._lock:
            files = self._files()
            sizes = {one: taken for one, (_, taken) in files.items()} | self._running
            holders = {one: self._holder(one) for one in sizes} | {name: holder}
            ended = sorted((at, one) for one, (at, _) in files.items() if one not in self._running)
            removable = [one for _, one in ended if holder is None or holders[one] == holder]
            while not self._fits(sizes, holders, holder, size):
                if not removable:
                    return 0
                oldest = removable.pop(0)
                logger.info("Removing %s for a newer recording.", oldest)
                self._remove(oldest)
                del sizes[oldest]
            self._holders[name] = holder
            self._running[name] = self._running.get(name, 0) + size
        return size

    def _fits(self, sizes: Mapping[str, int], holders: Mapping[str, str | None], holder: str | None, size: int) -> bool:
        if sum(sizes.values()) + size > self._total:
            return False
        one, together = of_tokens(self._total)
        of_holder = sum(taken for name, taken in sizes.items() if holders[name] == holder)
        of_all = sum(taken for name, taken in sizes.items() if holders[name] is not None)
        return holder is None or (of_holder + size <= one and of_all + size <= together)

    def _ended(self, name: str) -> None:
        with self._lock:
            self._running.pop(name, None)

    def _files(self) -> dict[str, tuple[float, int]]:
        """Return when each file was last written, in seconds since 1970, and its bytes."""
        found: dict[str, tuple[float, int]] = {}
        for path in self._directory.glob("*" + SUFFIX):
            # The user may have removed it meanwhile.
            with suppress(FileNotFoundError):
                status = path.lstat()
                found[path.name] = status.st_mtime, status.st_size
        return found

    def _holder(self, name: str) -> str | None:
        if name not in self._holders:
            try:
                with (self._directory / name).open(encoding="utf-8") as file:
                    header = json.loads(file.readline(HEADER_CHARACTERS))
                self._holders[name] = header.get(HOLDER) if isinstance(header, dict) else None
            except (OSError, ValueError):
                # Not a recording of ours, or not readable: it counts as the owner's, so that no token removes it.
                self._holders[name] = None
        return self._holders[name]

    def _remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)
        self._holders.pop(name, None)


class Recording:
    """A file with a terminal's output. It ends with its terminal, at its limit, or when its disk is full.

    It has ``granted`` bytes at first, asks ``grow`` for more, which returns how many it got, and calls ``ended``
    when it has ended. Belongs to one thread.
    """

    def __init__(
        self,
        file: TextIO,
        limit: int,
        header: Mapping[str, object],
        *,
        granted: int,
        grow: Callable[[int], int],
        ended: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cut: str | None = None
        """Why it ended before its terminal: ``limit`` or ``error``."""
        self._file = file
        self._room, self._granted = limit, granted
        self._grow, self._ended = grow, ended
        self._clock = clock
        self._began = clock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unflushed = False
        self._write(json.dumps(header))
        # At once: readers know the recording by its header, and only the first output after a flush asks for another.
        self.flush()

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
            self._ended()

    def _event(self, kind: str, data: str) -> None:
        if not self._file.closed:
            self._write(json.dumps([round(self._clock() - self._began, 6), kind, data], ensure_ascii=False))

    def _write(self, line: str) -> None:
        # encode() cannot fail: the decoder replaces malformed bytes, so no lone surrogate is in the text.
        size = len(line.encode()) + 1
        if size <= self._room and size > self._granted:
            self._granted += self._grow(min(self._room, max(size, STEP_BYTES)) - self._granted)
        if size > min(self._room, self._granted):
            self.cut = "limit"
            self.close()
            return
        self._room -= size
        self._granted -= size
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
            self._ended()
