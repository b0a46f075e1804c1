"""What the remote host tells of files: records in the formats of find and stat, listings of them, and what of a listing
callers with rules over paths may see.
"""

from __future__ import annotations

import heapq
import re
import stat
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice

from connmgr.contract.fs import EntryResponse
from connmgr.errors import PolicyDenied, TransferFailed
from connmgr.fs.path_rules import READ, Gate

RUN_ENTRIES = 4096
"""Entries sorted at once; sorting blocks other threads."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character",
    stat.S_IFBLK: "block",
}
_FIND_TYPES = dict(zip(b"fdlpscb", _TYPES.values(), strict=True))
# The mode and find's letter for the type, ``644=f``, or stat's ``81a4``.
_RECORD = re.compile(
    rb"(?:(?P<bits>[0-7]{1,10})=(?P<letter>[!-9;-~])|(?P<mode>[0-9a-fA-F]{1,8})):(?P<size>[0-9]{1,20})"
    rb":(?P<seconds>-?[0-9]{1,20})(?:\.(?P<fraction>[0-9]*))?:(?P<uid>[0-9]{1,20}):(?P<gid>[0-9]{1,20})"
    rb":(?P<owner>[^:\0]*):(?P<group>[^:\0]*):(?P<name>[^\0]*)"
)


class Listing:
    """The entries of a directory, described by ``records``, in the order of their names.

    Records are kept as text, in a tenth of the memory, and each iteration parses them.
    :raises TransferFailed: one of ``records`` describes no file.
    """

    def __init__(self, records: Iterable[bytes]) -> None:
        self._runs: list[list[bytes]] = []
        keyed = map(_keyed, records)
        # Sorted in runs that are merged when they are read: one sort of a million entries would stop all other threads.
        while run := list(islice(keyed, RUN_ENTRIES)):
            run.sort()
            self._runs.append(run)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[EntryResponse]:
        for keyed in heapq.merge(*self._runs):
            name, _, record = keyed.partition(b"\0")
            yield parse_entry(record, name)


def parse_entry(record: bytes, name: bytes, target: bytes | None = None) -> EntryResponse:
    """Return the description of the file ``name`` in ``record``.

    :raises TransferFailed: it describes no file.
    """
    fields = _matched(record)
    # find prints octal bits and a letter, stat hexadecimal bits with the type in them.
    bits = int(fields["bits"], 8) if fields["bits"] else int(fields["mode"], 16)
    kind = _FIND_TYPES.get(fields["letter"][0]) if fields["letter"] else _TYPES.get(stat.S_IFMT(bits))
    return EntryResponse(
        name=name,
        type=kind or "unknown",
        size=int(fields["size"]),
        mode=stat.S_IMODE(bits),
        modified=_time(int(fields["seconds"]), fields["fraction"] or b""),
        uid=int(fields["uid"]),
        gid=int(fields["gid"]),
        owner=_owner(fields["owner"], fields["uid"]),
        group=_owner(fields["group"], fields["gid"]),
        target=target,
    )


def name_of(record: bytes) -> bytes:
    """Return the name in ``record``; raise TransferFailed if it describes no file."""
    return _matched(record)["name"][1:].removeprefix(b"./").removesuffix(b"\n")


def renamed(record: bytes, name: bytes) -> bytes:
    """Return ``record`` with another name."""
    path = name if name.startswith(b"/") else b"./" + name
    return record[: _matched(record).start("name") + 1] + path + b"\n"


def _keyed(record: bytes) -> bytes:
    """Return ``record`` with the name first, delimited by NUL, which no name contains."""
    start = _matched(record).start("name")
    # The format adds a slash before the path, which begins with ./ if it is relative, and a newline after it.
    return record[start + 1 :].removeprefix(b"./").removesuffix(b"\n") + b"\0" + record[:start]


def _matched(record: bytes) -> re.Match[bytes]:
    match = _RECORD.fullmatch(record)
    if match is None:
        raise TransferFailed("The remote host's description of the file is malformed.")
    return match


def _time(seconds: int, fraction: bytes) -> datetime:
    """Return seconds since 1970 as a time, at most the calendar's end."""
    try:
        return _EPOCH + timedelta(seconds=seconds, microseconds=int(fraction[:6].ljust(6, b"0")))
    except OverflowError:
        return datetime.max.replace(tzinfo=timezone.utc)


def _owner(name: bytes, number: bytes) -> str:
    # GNU's and busybox's stat print UNKNOWN for an id that the system does not list.
    return (number if name == b"UNKNOWN" else name).decode(errors="replace")


_WILDCARD = re.compile(rb"[*?[\\]")


def allowed_in(records: Iterable[bytes], gate: Gate, directory: bytes) -> Iterator[bytes]:
    """Yield the entries of a directory that ``gate`` allows to be read."""
    return (record for record in records if gate.allows(READ, _below(directory, name_of(record))))


def _below(directory: bytes, name: bytes) -> bytes:
    return directory.rstrip(b"/") + b"/" + name


def allowed_matches(records: Iterable[bytes], gate: Gate, start: bytes, lead: bytes) -> Iterator[bytes]:
    """Yield the entries that ``gate`` allows to be read, by whole paths; ``start`` is the real path of ``lead``."""
    directory = b""
    for record in records:
        if record.startswith(b"="):
            directory = record[1:].removeprefix(b".").removeprefix(b"/")
            continue
        name = _below(directory, name_of(record)).removeprefix(b"/")
        if gate.allows(READ, _below(start, name)):
            yield renamed(record, _below(start, name) if lead.startswith(b"~/") else lead + name)


def split_pattern(pattern: bytes) -> tuple[bytes, bytes]:
    """Return the directory at the beginning of ``pattern``, with its slash, and the rest from the first wildcard on."""
    parts = pattern.rstrip(b"/").split(b"/")
    wild = (at for at, part in enumerate(parts) if _WILDCARD.search(part))
    at = next(wild, len(parts) - 1)
    rest = [part for part in parts[at:] if part not in (b"", b".")]
    if b".." in rest:
        raise PolicyDenied("A token with path rules cannot use `..` after a wildcard in a pattern.")
    return b"".join(part + b"/" for part in parts[:at]), b"/".join(rest)
