"""Directories as archives in the format tar: read from a far side, and written to one.

Archives are parsed member by member and written anew, so that neither side gets a header made by the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from connmgr.engine.rpc import STALL_SECONDS, Exchange
from connmgr.engine.script import new_nonce
from connmgr.errors import ArchiveRefused, TransferFailed
from connmgr.fs import scripts, tar
from connmgr.fs.calls import Calls
from connmgr.fs.files import BLOCK_BYTES, DISK_BYTES_A_SECOND, Place, chunked, joined, records_of
from connmgr.fs.tar import DIRECTORY, HARD_LINK, LINK, OTHER, Member, Reader

PIECE_BYTES = 192 << 10
"""Bytes of an archive that are passed on at once."""

MAX_LINKS = 100_000
"""Most links in one archive to unpack; each is remembered, so that no member is written through it."""

LINK_BYTES = 64 << 20
NAME_BYTES = 256
"""Memory for those links; each name on the way to a link counts with its length and this overhead."""

COMPLAINT_BYTES = 32 << 10
"""Most bytes of error messages of the far side's tar that are passed on; a pax header may have 64 KiB."""

MEMBERS_A_SECOND = 500
"""Rate at which a far side must at least put members in place, in addition to the time of any answer."""

REPORT_BYTES = 1 << 20
"""Most bytes of a far side's report about entries that it could not move to their place."""

FAILED = "CONNMGR.failed"
"""The pax header with the error messages of the far side's tar."""


@dataclass
class Tally:
    """The transferred ``files``, without directories, and the ``bytes`` of their content."""

    files: int = 0
    bytes: int = 0

    def add(self, member: Member) -> None:
        """Count one more."""
        if member.kind != DIRECTORY:
            self.files += 1
            self.bytes += member.size


@dataclass(frozen=True)
class Failed:
    """A member that could not be put in place."""

    path: bytes
    message: str


class Archive:
    """The content of a directory, or a single file, as an archive, by iteration. Close it afterwards.

    ``members`` are the wanted paths in the directory, with everything below them; without them, all.
    """

    def __init__(self, place: Place, path: bytes, members: Sequence[bytes] = ()) -> None:
        self.tally = Tally()
        self._calls = Calls(place, scripts.ARCHIVE, path, [_named(name) for name in members])
        self._single = path.rstrip(b"/").rpartition(b"/")[2]
        self._lead: list[bytes] | None = []
        self._complaints: list[str] = []

    def __iter__(self) -> Iterator[bytes]:
        """Yield the archive in pieces; raise TransferFailed if the far side sends no complete archive."""
        return joined(self._pieces(), PIECE_BYTES)

    def close(self) -> None:
        """End the far side's part. Calling it again does nothing."""
        self._calls.close()

    def _pieces(self) -> Iterator[bytes | memoryview]:
        for exchange in self._calls:
            self._lead = None if self._calls.lead is not None else []
            yield from self._one(exchange)
        self._complaints += map(_printed, self._calls.missed)
        if self._complaints:
            yield tar.told(FAILED, "\n".join(self._complaints).encode()[:COMPLAINT_BYTES].decode(errors="ignore"))
        yield tar.END

    def _one(self, exchange: Exchange) -> Iterator[bytes | memoryview]:
        reader = Reader(exchange.data())
        try:
            yield from _rewritten(reader, self._passed)
            complaints = reader.rest().decode(errors="replace").splitlines()
        except ArchiveRefused as error:
            raise TransferFailed(f"The far side's tar: {error.message}") from error
        if sum(map(len, self._complaints)) < COMPLAINT_BYTES:
            self._complaints += map(_printed, complaints)

    def _passed(self, member: Member) -> Member | None:
        if member.kind == OTHER:
            return None
        parts = _parts(member.name)
        if self._lead is None:
            # The first member shows whether this run archives a directory or a single file.
            self._lead = _parts(self._calls.lead or (self._single if parts else b""))
            parts = [] if self._lead else parts
        name = b"/".join(self._lead + parts)
        target = b"./" + b"/".join(self._lead + _parts(member.target)) if member.kind == HARD_LINK else member.target
        self.tally.add(member)
        return replace(member, name=_with_end(b"./" + name, member.kind), target=target)


def extract(place: Place, path: bytes, pieces: Iterable[bytes], *, exact: bool, tally: Tally) -> list[Failed]:
    """Unpack an archive into the directory ``path``, which is created if missing; count its members in ``tally``.

    Each file is moved to its place in one step, when the whole archive has arrived. Modes are those of the archive
    minus the far side's umask, with ``exact`` unchanged; never setuid, setgid or sticky.

    :returns: the entries that could not be moved to their place.
    :raises ArchiveRefused: see :class:`Gate`; nothing was written.
    """
    with place.run(scripts.EXTRACT, [path, new_nonce(), str(BLOCK_BYTES)]) as exchange:
        mask, _, takes = exchange.answer().partition(b" ")
        gate, reader = Gate(0 if exact else int(mask, 8), tally), Reader(pieces)
        exchange.stream(chunked(_to_the_end(reader, gate)), acknowledged=takes != b"exact")
        exchange.answer(STALL_SECONDS + tally.bytes / DISK_BYTES_A_SECOND + gate.members / MEMBERS_A_SECOND)
        *failed, end = [*records_of(exchange, REPORT_BYTES)] or [b""]
        if end != b"end":
            raise TransferFailed("The link broke while the files were put in place.")
    return [_failed(record) for record in failed]


_Names = dict[bytes, "_Names | None"]
"""The names in a directory: None for a link, or a dict for a directory on the way to links."""

_NONE: _Names = {}


class Gate:
    """Checks members of an archive before they are unpacked into a directory, and rewrites them.

    :raises ArchiveRefused: a path is absolute or contains ``..``; a later member passes through a link, or would
        replace it; a hard link leads elsewhere; a member is neither a file, a directory nor a link.
    """

    def __init__(self, mask: int, tally: Tally) -> None:
        self.members = 0
        self._mask = mask
        self._tally = tally
        self._links: _Names = {}
        self._count = self._held = 0

    def __call__(self, member: Member) -> Member | None:
        """Return the rewritten member, None for the directory itself."""
        parts = _parts(member.name)
        if not parts:
            return None
        if member.kind == OTHER:
            raise ArchiveRefused(f"{tar.shown(member.name)}: a device or a named pipe, which is never written.")
        name = self._free_of_links(parts, member)
        target = member.target
        if member.kind == HARD_LINK:
            target = b"./" + self._free_of_links(_parts(target), member)
        elif member.kind == LINK:
            self._remember(parts, member)
        self.members += 1
        self._tally.add(member)
        # A directory that its owner may not enter could not be filled.
        mode = member.mode & 0o777 & ~self._mask | (0o700 if member.kind == DIRECTORY else 0)
        kind = member.kind
        return Member(_with_end(b"./" + name, kind), kind, member.size, mode, member.modified, target)

    def _free_of_links(self, parts: list[bytes], member: Member) -> bytes:
        names = self._links
        for part in parts:
            found = names.get(part, _NONE)
            if found is None:
                raise ArchiveRefused(f"{tar.shown(member.name)}: it goes through a link of the same archive.")
            names = found
        if not parts:
            raise ArchiveRefused(f"{tar.shown(member.name)}: a link that leads nowhere.")
        return b"/".join(parts)

    def _remember(self, parts: list[bytes], member: Member) -> None:
        if not member.target:
            raise ArchiveRefused(f"{tar.shown(member.name)}: a link that leads nowhere.")
        self._count += 1
        names = self._links
        for part in parts[:-1]:
            names = self._inner(names, part)
        self._held += len(parts[-1]) + NAME_BYTES
        names[parts[-1]] = None
        if self._count > MAX_LINKS or self._held > LINK_BYTES:
            raise ArchiveRefused(f"An archive may have {MAX_LINKS} links, fewer where their paths are long.")

    def _inner(self, names: _Names, part: bytes) -> _Names:
        found = names.get(part)
        if found is None:
            found = names[part] = {}
            self._held += len(part) + NAME_BYTES
        return found


def _rewritten(reader: Reader, change: Callable[[Member], Member | None]) -> Iterator[bytes | memoryview]:
    """Yield the members of an archive as rewritten by ``change``, without its end."""
    for member in reader:
        changed = change(member)
        if changed is not None:
            yield tar.header(changed)
            yield from reader.content()
            yield tar.padding(changed.size)


def _to_the_end(reader: Reader, gate: Gate) -> Iterator[bytes | memoryview]:
    yield from _rewritten(reader, gate)
    if reader.rest():
        raise ArchiveRefused("Something follows the archive's end.")
    yield tar.END


def _parts(path: bytes) -> list[bytes]:
    """Return the names in a relative path; an empty list for the directory itself.

    :raises ArchiveRefused: it leads out of the directory.
    """
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if path.startswith(b"/") or b".." in parts or len(path) > tar.NAME_BYTES:
        raise ArchiveRefused(f"{tar.shown(path)}: this path leads out of the directory, or is too long.")
    return parts


def _named(path: bytes) -> bytes:
    return b"./" + b"/".join(_parts(path))


def _with_end(name: bytes, kind: str) -> bytes:
    return name + b"/" if kind == DIRECTORY and not name.endswith(b"/") else name


def _printed(line: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _failed(record: bytes) -> Failed:
    reason, _, path = record.partition(b"/")
    return Failed(path, _printed(reason.decode(errors="replace")) or "It could not be put in place")
