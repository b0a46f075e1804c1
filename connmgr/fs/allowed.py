"""Filters listings and patterns for callers with rules over paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from connmgr.errors import PolicyDenied
from connmgr.fs.entries import name_of, renamed
from connmgr.fs.gate import READ, Gate

_WILDCARD = re.compile(rb"[*?[\\]")


def in_directory(records: Iterable[bytes], gate: Gate, directory: bytes) -> Iterator[bytes]:
    """Yield the entries of a directory that ``gate`` allows to be read."""
    return (record for record in records if gate.allows(READ, _below(directory, name_of(record))))


def _below(directory: bytes, name: bytes) -> bytes:
    return directory.rstrip(b"/") + b"/" + name


def matched(records: Iterable[bytes], gate: Gate, start: bytes, lead: bytes) -> Iterator[bytes]:
    """Yield the entries that ``gate`` allows to be read, by whole paths; ``start`` is the real path of ``lead``."""
    directory = b""
    for record in records:
        if record.startswith(b"="):
            directory = record[1:].removeprefix(b".").removeprefix(b"/")
            continue
        name = _below(directory, name_of(record)).removeprefix(b"/")
        if gate.allows(READ, _below(start, name)):
            yield renamed(record, _below(start, name) if lead.startswith(b"~/") else lead + name)


def split(pattern: bytes) -> tuple[bytes, bytes]:
    """Return the directory at the beginning of ``pattern``, with its slash, and the rest from the first wildcard on."""
    parts = pattern.rstrip(b"/").split(b"/")
    wild = (at for at, part in enumerate(parts) if _WILDCARD.search(part))
    at = next(wild, len(parts) - 1)
    rest = [part for part in parts[at:] if part not in (b"", b".")]
    if b".." in rest:
        raise PolicyDenied("A caller with rules over paths may not go back by .. from what a pattern matches.")
    return b"".join(part + b"/" for part in parts[:at]), b"/".join(rest)
