"""Searches an audit log, the newest entries first, without holding a file in memory."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from connmgr.audit.entry import text_of
from connmgr.audit.log import backwards, link_of, opened
from connmgr.vault.names import base_of

SEARCH_SECONDS = 2.0
"""A longer search returns the entries found so far, and where to continue."""

CLOCK_STEP = timedelta(hours=1)
"""Entries are ordered by their numbers; the clock may have been set back by this much between two of them."""

HEAD_BYTES = 250
"""Bytes at the beginning of an entry that contain its time."""

_TIME = re.compile(rb'"time":"([0-9T:.Z-]{24})"')

Sees = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class EntryFilter:
    """The conditions of a search, all of which an entry must meet. Times are aware."""

    since: datetime | None = None
    until: datetime | None = None
    token: str | None = None
    """The id of a token, or its name."""
    connection: str | None = None
    """A uuid, or the name in the entry. A uuid also finds entries about elevated connections over it."""
    caller: str | None = None
    """A client's name, or the id of its session."""
    action: str | None = None
    code: str | None = None

    def __call__(self, entry: Mapping[str, Any]) -> bool:
        """Whether ``entry`` meets the conditions."""
        members = {
            "token": ("token", "tokenName"),
            "connection": ("connection", "connectionName", "connections", "connectionNames"),
            "caller": ("client", "session"),
            "action": ("action",),
            "code": ("code",),
        }
        return all(
            any(_is_of(value, entry.get(member), _IDS.get(name, str)) for member in members[name])
            for name, value in self.texts()
        )

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield the texts that an entry must contain, each with its member."""
        for name in ("token", "connection", "caller", "action", "code"):
            value = getattr(self, name)
            if value is not None:
                yield name, value


def search(
    path: Path, filter: EntryFilter, sees: Sees, limit: int, before: int | None = None
) -> tuple[list[dict[str, Any]], int | None]:
    """Return at most ``limit`` entries with numbers below ``before``, and the ``before`` to continue with.

    That is None at the end. There may be fewer entries than ``limit``, even none.
    :raises OSError: a file cannot be read.
    """
    deadline = time.monotonic() + SEARCH_SECONDS
    # In the form of the entries' encoder.
    # Without the closing quote, because the id of an elevated connection begins with that of the one below it.
    needles = [json.dumps(value).encode()[:-1] for _, value in filter.texts()]
    since, until = (text_of(at) if at else "" for at in (filter.since, filter.until))
    earliest = text_of(filter.since - CLOCK_STEP) if filter.since else ""
    entries: list[dict[str, Any]] = []
    last = b""
    for line in _lines(path, before):
        at = _time_of(line)
        if at is None:
            continue
        if len(entries) == limit or time.monotonic() > deadline:
            return entries, _number_of(last)
        # From the newest on, entries become older; `earliest` allows for a clock that was set back between two.
        if at < earliest:
            break
        last = line
        if since <= at and (not until or at <= until) and all(needle in line for needle in needles):
            entry = _entry(line)
            if entry and (before is None or entry["seq"] < before) and filter(entry) and sees(entry):
                entries.append(entry)
    return entries, None


def _lines(path: Path, before: int | None) -> Iterator[bytes]:
    with opened(path) as files:
        for file in files:
            file.seek(0)
            first = link_of(file.readline())
            if before is not None and first and first.seq >= before:
                continue
            yield from backwards(file, _end(file, before))


def _end(file: BinaryIO, before: int | None) -> int:
    """Return the offset of a line feed after which no entry below the number ``before`` begins."""
    low, high = 0, file.seek(0, os.SEEK_END)
    end = high
    while before is not None and high - low > 1:
        middle = (low + high) // 2
        file.seek(middle)
        # The rest of the line in which the middle is; the next one is whole.
        file.readline()
        at, link = file.tell(), link_of(file.readline())
        if link is None or link.seq >= before:
            end, high = (at, middle) if link else (end, middle)
        else:
            low = middle
    return end


def _time_of(line: bytes) -> str | None:
    """Return the time of an entry, without parsing the rest; None for a line that is not an entry."""
    match = _TIME.search(line, 0, HEAD_BYTES)
    return match and match[1].decode()


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("seq"), int) else None


def _number_of(line: bytes) -> int | None:
    entry = _entry(line)
    return entry["seq"] if entry else None


_IDS: Mapping[str, Callable[[str], str]] = {"connection": base_of}
"""Functions by the conditions whose values may also be a part of what entries have."""


def _is_of(value: str, member: object, part: Callable[[str], str]) -> bool:
    members = member if isinstance(member, list) else [member]
    return any(isinstance(member, str) and value in (member, part(member)) for member in members)
