"""Recordings as they are read: their description, their text, and the same as asciicast, version 3."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from connmgr.shares import give_way
from connmgr.terminals.recording import COMMAND, CONNECTION, HEADER_CHARACTERS, OPENER

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
    wanted = text.casefold()
    for line in lines(recorded.path, len(text)):
        at = line.text.casefold().find(wanted)
        if at < 0:
            yield None
            continue
        first = max(0, at - (AROUND_CHARACTERS - len(text)) // 2)
        yield Line(line.seconds, line.text[first : first + AROUND_CHARACTERS].strip())
