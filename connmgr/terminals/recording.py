"""Recordings of terminals for asciinema: written as asciicast, version 2, and read again.

Readers get a recording's description, its text, or the same as asciicast, version 3.
"""

from __future__ import annotations

import codecs
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from connmgr.computing import give_way
from connmgr.errors import RecordingFailed
from connmgr.paths import CREATE
from connmgr.shares import room

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
            file = os.fdopen(os.open(self._directory / file_name, CREATE, 0o600), "w", encoding="utf-8")
        except OSError as error:
            self._ended(file_name)
            raise RecordingFailed(f"The recording's file cannot be created: {error.strerror}.") from error
        header = {"version": 2, "width": columns, "height": rows, "timestamp": int(time.time()), "env": {"TERM": term}}
        # Players ignore members that they do not know.
        members = {HOLDER: holder, **(about or {})}
        header |= {name: value for name, value in members.items() if value is not None}

        def grow(size: int) -> int:
            return self._grant(file_name, holder, size)

        return Recording(file, self._limit, header, size=first, grow=grow, ended=lambda: self._ended(file_name))

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
        """Return the files of all recordings, including recordings under way."""
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
            sizes = {file: length for file, (_, length) in files.items()} | self._running
            holders = {file: self._holder(file) for file in sizes} | {name: holder}
            ended = sorted((at, file) for file, (at, _) in files.items() if file not in self._running)
            removable = [file for _, file in ended if holder is None or holders[file] == holder]
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
        used = ((holders[name], length) for name, length in sizes.items())
        return room(self._total, holder, used) >= size

    def _ended(self, name: str) -> None:
        with self._lock:
            self._running.pop(name, None)

    def _files(self) -> dict[str, tuple[float, int]]:
        """Return when each file was last written, in seconds since 1970, and its bytes."""
        files: dict[str, tuple[float, int]] = {}
        for path in self._directory.glob("*" + SUFFIX):
            # The user may have removed it meanwhile.
            with suppress(FileNotFoundError):
                status = path.lstat()
                files[path.name] = status.st_mtime, status.st_size
        return files

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
        size: int,
        grow: Callable[[int], int],
        ended: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cut: str | None = None
        """Why it ended before its terminal: ``limit`` or ``error``."""
        self._file = file
        self._room, self._granted = limit, size
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


TAIL_BYTES = 256 << 10
"""Where the last event of a recording is looked for."""

PIECE_CHARACTERS = 64 << 10
"""Characters of a recording that are passed on together."""

LINE_CHARACTERS = 8192
"""Longest line that is searched as a whole; a longer one is searched in parts that overlap by the text's length."""

AROUND_CHARACTERS = 300

_MICROSECONDS = 1_000_000

# ECMA-48: CSI, then strings (OSC, DCS, APC, PM, SOS), then other sequences; the last two also unfinished at the end.
_MOVES = re.compile(r"\x1b\[[0-9;]*[ABEFHfd]|\r\n|\r|\n|\x1bE|\x1bD")
"""What leaves a line: whoever moves the cursor up, down or to a place writes what belongs elsewhere."""

_CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f]"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[]PX^_][^\x07\x1b]{0,4096}\x1b?|[ -/]*)?\Z")


@dataclass(frozen=True)
class Recorded:
    """A recording's file, and what its header and last line say."""

    id: str
    path: Path
    connection: str | None
    opener: str | None
    """The id of the token that opened the terminal; None for the owner."""

    command: str | None
    columns: int
    rows: int
    term: str
    began: int
    seconds: float | None
    size: int


class Line(NamedTuple):
    """A line that was printed ``seconds`` after the beginning."""

    seconds: float
    text: str


def describe(path: Path) -> Recorded | None:
    """Return what a file says about itself; None if it is not a recording of ours, or gone."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline(HEADER_CHARACTERS))
            if not isinstance(header, dict) or header.get("version") != 2:
                return None
            size = os.fstat(file.fileno()).st_size
            # The duration is the last event's time. A recording has up to 64 MiB, so only its end is read.
            file.seek(max(0, size - TAIL_BYTES))
            seconds = _last_time(file.read(TAIL_BYTES))
        return Recorded(
            id=path.stem,
            path=path,
            connection=_text(header.get(CONNECTION)),
            opener=_text(header.get(OPENER)),
            command=_text(header.get(COMMAND)),
            columns=int(header["width"]),
            rows=int(header["height"]),
            term=str(header.get("env", {}).get("TERM", "")),
            began=int(header["timestamp"]),
            seconds=seconds,
            size=size,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _last_time(tail: bytes) -> float | None:
    # The last line may still be being written.
    for line in reversed(tail.split(b"\n")[:-1]):
        event = _event(line.decode(errors="replace"))
        if event is not None:
            return event[0]
    return None


def _event(line: str) -> tuple[float, str, str] | None:
    """Return the time, the kind and the data of an event's line; None for any other, such as one that is cut off."""
    with suppress(ValueError, TypeError):
        time, kind, data = json.loads(line)
        if isinstance(kind, str) and isinstance(data, str):
            return float(time), kind, data
    return None


def events(path: Path) -> Iterator[tuple[float, str, str]]:
    """Yield the events of a recording: seconds from its beginning, ``o`` or ``r``, and the output or the size."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        file.readline(HEADER_CHARACTERS)
        for line in file:
            event = _event(line)
            if event is not None:
                yield event


def as_version_3(recorded: Recorded) -> Iterator[bytes]:
    """Yield the recording in asciicast's version 3: a new header, and times from event to event.

    :raises OSError: the file cannot be read.
    """
    header: dict[str, Any] = {
        "version": 3,
        "term": {"cols": recorded.columns, "rows": recorded.rows, "type": recorded.term},
        "timestamp": recorded.began,
    }
    if recorded.command is not None:
        header["command"] = recorded.command
    piece = json.dumps(header) + "\n"
    before = 0
    for seconds, kind, data in events(recorded.path):
        # Counted in whole microseconds, so that rounding does not add up over a day's events.
        now = max(before, round(seconds * _MICROSECONDS))
        piece += json.dumps([(now - before) / _MICROSECONDS, kind, data], ensure_ascii=False) + "\n"
        before = now
        if len(piece) > PIECE_CHARACTERS:
            yield piece.encode()
            piece = ""
            give_way()
    yield piece.encode()


def lines(path: Path, overlap: int = 0) -> Iterator[Line]:
    """Yield the text of a recording line by line, without control sequences; parts of long lines ``overlap``."""
    rest, began = "", 0.0
    for count, (seconds, kind, data) in enumerate(events(path)):
        if kind != "o":
            continue
        if not count % 64:
            give_way()
        began = began if rest else seconds
        unfinished = _UNFINISHED.search(rest + data)
        cut = unfinished.start() if unfinished else len(rest + data)
        *whole, last = _MOVES.split((rest + data)[:cut])
        for line in whole:
            yield Line(began, _CONTROLS.sub("", line))
            began = seconds
        while len(last) > LINE_CHARACTERS:
            yield Line(began, _CONTROLS.sub("", last[:LINE_CHARACTERS]))
            last, began = last[LINE_CHARACTERS - overlap :], seconds
        rest = last + (rest + data)[cut:]
    yield Line(began, _CONTROLS.sub("", rest))


def search(recorded: Recorded, text: str) -> Iterator[Line | None]:
    """Yield the lines that contain ``text`` in any case, shortened around it; None after each other line."""
    needle = text.casefold()
    for line in lines(recorded.path, len(text)):
        at = line.text.casefold().find(needle)
        if at < 0:
            yield None
            continue
        first = max(0, at - (AROUND_CHARACTERS - len(text)) // 2)
        yield Line(line.seconds, line.text[first : first + AROUND_CHARACTERS].strip())
