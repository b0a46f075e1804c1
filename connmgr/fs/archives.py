"""Directories as archives in the format tar: read from the remote host, and written to it.

Archives are parsed member by member and written anew as they pass, so that neither side's tar sees a header made by the
other. The formats of POSIX (ustar and pax) and of GNU tar are read. The output is ustar, which every tar understands,
with GNU tar's extensions for longer names and sizes. Times are whole seconds.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from connmgr.engine.rpc import STALL_SECONDS, Exchange
from connmgr.engine.script import new_nonce
from connmgr.errors import ArchiveRefused, TransferFailed
from connmgr.fs import remote
from connmgr.fs.remote import (
    DISK_BLOCK_BYTES,
    DISK_BYTES_A_SECOND,
    ProgramRuns,
    RemoteFileSystem,
    chunked,
    joined,
    records_of,
)

TAR_BLOCK_BYTES = 512
END = bytes(2 * TAR_BLOCK_BYTES)

NAME_BYTES = 8 << 10
"""Longest name of a member, or target of a link, in bytes."""

EXTENSION_BYTES = 64 << 10
"""Most bytes of an extension header in the formats of pax and GNU."""

LEADING_HEADERS = 8
"""Most headers of one file, its own included."""

TRAILER_BYTES = 1 << 20
"""Most bytes after an archive's end: padding, and error messages of the remote tar."""

FILE, HARD_LINK, LINK, DIRECTORY, OTHER = "file", "hard link", "link", "directory", "other"

# The kind of a member is one letter of its header ("typeflag"); 7 is a contiguous file, which today's tars write as a
# file. The header of g holds for all later members, that of V is the name of GNU tar's archive; neither is needed. The
# headers of L and K (GNU tar) and x (pax) come before the one of the file that they describe.
_KINDS = {b"0": FILE, b"\0": FILE, b"7": FILE, b"1": HARD_LINK, b"2": LINK, b"5": DIRECTORY}
_OTHERS = {b"3", b"4", b"6"}
_IGNORED = {b"g", b"V"}
_LEADING = {b"L", b"K", b"x"}
_LETTERS = {FILE: b"0", HARD_LINK: b"1", LINK: b"2", DIRECTORY: b"5"}
_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s8s32s32s16s155s12x")
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_RECORD = re.compile(rb"([0-9]{1,8}) ([^=\0]+)=")
_DECIMAL = re.compile(rb"(-?[0-9]{1,19})(\.[0-9]*)?")
_PAX_FIELDS = {b"path", b"linkpath", b"size", b"mtime"}
_LONGEST = 100
"""Longest name and link target in a header; the field prefix of ustar is not used, because GNU's headers lack it."""
_LONG_NAME = b"././@LongLink"

PIECE_BYTES = 192 << 10
"""Bytes of an archive in one piece."""

MAX_LINKS = 100_000
"""Most links in one archive to unpack. Each link is kept in memory, so that no member is written through it."""

LINK_BYTES = 64 << 20
LINK_OVERHEAD_BYTES = 256
"""Memory for those links; each name on the way to a link counts with its length and this overhead."""

COMPLAINT_BYTES = 32 << 10
"""Most bytes of error messages of the remote tar that are passed on; a pax header may have 64 KiB."""

MEMBERS_A_SECOND = 500
"""Rate at which a remote host must at least put members in place, in addition to the time of any answer."""

REPORT_BYTES = 1 << 20
"""Most bytes of a remote host's report about entries that it could not move to their place."""

_STATUS = re.compile(rb"tar: exit status ([0-9]{1,3})\s*\Z")
"""The last error message of the program on the remote host, if its tar did not exit with 0."""

_STATUS_BYTES = 64

FAILED = "CONNMGR.failed"
"""The pax header with the error messages of the remote tar."""


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
class FailedMember:
    """A member that could not be put in place."""

    path: bytes
    message: str


class Archive:
    """The content of a directory, or a single file, as an archive, by iteration. Close it afterwards.

    ``members`` are the wanted paths in the directory, with everything below them; without them, all.
    """

    def __init__(self, fs: RemoteFileSystem, path: bytes, members: Sequence[bytes] = ()) -> None:
        self.tally = Tally()
        self._runs = ProgramRuns(fs, remote.ARCHIVE, path, [_named(name) for name in members])
        self._single = path.rstrip(b"/").rpartition(b"/")[2]
        self._lead: list[bytes] | None = []
        self._complaints: list[str] = []

    def __iter__(self) -> Iterator[bytes]:
        """Yield the archive in pieces; raise TransferFailed if the remote host's archive is incomplete."""
        return joined(self._pieces(), PIECE_BYTES)

    def close(self) -> None:
        """End the remote program. Calling it again does nothing."""
        self._runs.close()

    def _pieces(self) -> Iterator[bytes | memoryview]:
        for exchange in self._runs:
            self._lead = None if self._runs.lead is not None else []
            yield from self._archive_of(exchange)
        self._complaints += map(_printed, self._runs.missed)
        if self._complaints:
            yield message_header(FAILED, "\n".join(self._complaints).encode()[:COMPLAINT_BYTES].decode(errors="ignore"))
        yield END

    def _archive_of(self, exchange: Exchange) -> Iterator[bytes | memoryview]:
        last = bytearray()
        reader = TarReader(_remembered(exchange.data(), last))
        try:
            yield from _rewritten(reader, self._passed)
            complaints = reader.rest().decode(errors="replace").splitlines()
        except ArchiveRefused as error:
            raise TransferFailed(f"The remote host's tar{_ended(bytes(last))}: {error.message}") from error
        if sum(map(len, self._complaints)) < COMPLAINT_BYTES:
            self._complaints += map(_printed, complaints)

    def _passed(self, member: Member) -> Member | None:
        if member.kind == OTHER:
            return None
        parts = _parts(member.name)
        if self._lead is None:
            # The first member shows whether this run archives a directory or a single file.
            self._lead = _parts(self._runs.lead or (self._single if parts else b""))
            parts = [] if self._lead else parts
        name = b"/".join(self._lead + parts)
        target = b"./" + b"/".join(self._lead + _parts(member.target)) if member.kind == HARD_LINK else member.target
        self.tally.add(member)
        return replace(member, name=_with_end(b"./" + name, member.kind), target=target)


def extract(
    fs: RemoteFileSystem, path: bytes, pieces: Iterable[bytes], *, exact: bool, tally: Tally
) -> list[FailedMember]:
    """Unpack an archive into the directory ``path``, which is created if missing; count its members in ``tally``.

    Each file is moved to its place in one step, when the whole archive has arrived. Modes are those of the archive
    minus the remote umask, with ``exact`` unchanged; never setuid, setgid or sticky.

    :returns: the entries that could not be moved to their place.
    :raises ArchiveRefused: see :class:`ExtractionFilter`; nothing was written.
    """
    with fs.run(remote.EXTRACT, [path, new_nonce(), str(DISK_BLOCK_BYTES)]) as exchange:
        mask, _, takes = exchange.answer().partition(b" ")
        checked, reader = ExtractionFilter(0 if exact else int(mask, 8), tally), TarReader(pieces)
        exchange.stream(chunked(_to_the_end(reader, checked)), acknowledged=takes != b"exact")
        exchange.answer(STALL_SECONDS + tally.bytes / DISK_BYTES_A_SECOND + checked.members / MEMBERS_A_SECOND)
        *failed, end = [*records_of(exchange, REPORT_BYTES)] or [b""]
        if end != b"end":
            raise TransferFailed("The link broke while the files were put in place.")
    return [_failed(record) for record in failed]


_Names = dict[bytes, "_Names | None"]
"""The names in a directory: None for a link, or a dict for a directory on the way to links."""

_NONE: _Names = {}


class ExtractionFilter:
    """Checks members of an archive before they are unpacked into a directory, and rewrites them.

    :raises ArchiveRefused: a path is absolute or contains ``..``; a later member passes through a link, or would
        replace it; a hard link leads elsewhere; a member is neither a file, a directory nor a link.
    """

    def __init__(self, mask: int, tally: Tally) -> None:
        self.members = 0
        self._mask = mask
        self._tally = tally
        self._links: _Names = {}
        self._count = self._link_bytes = 0

    def __call__(self, member: Member) -> Member | None:
        """Return the rewritten member, None for the directory itself."""
        parts = _parts(member.name)
        if not parts:
            return None
        if member.kind == OTHER:
            # A device gives access to hardware, and a named pipe blocks whoever reads it.
            raise ArchiveRefused(f"{printable_name(member.name)}: devices and named pipes are not unpacked.")
        name = self._free_of_links(parts, member)
        target = member.target
        if member.kind == HARD_LINK:
            target = b"./" + self._free_of_links(_parts(target), member)
        elif member.kind == LINK:
            self._remember(parts, member)
        self.members += 1
        self._tally.add(member)
        # A directory that its owner may not enter could not be filled; setuid, setgid and sticky bits never pass.
        mode = member.mode & 0o777 & ~self._mask | (0o700 if member.kind == DIRECTORY else 0)
        kind = member.kind
        return Member(_with_end(b"./" + name, kind), kind, member.size, mode, member.modified, target)

    def _free_of_links(self, parts: list[bytes], member: Member) -> bytes:
        # After a link a -> /etc a member a/x would be written to /etc/x. GNU tar 1.34, libarchive 3.6.2 and busybox
        # 1.35 refuse that; older ones do not (CVE-2011-5325 of busybox).
        names = self._links
        for part in parts:
            inner = names.get(part, _NONE)
            if inner is None:
                raise ArchiveRefused(f"{printable_name(member.name)}: its path passes a link of the same archive.")
            names = inner
        if not parts:
            raise ArchiveRefused(f"{printable_name(member.name)}: a link without a target.")
        return b"/".join(parts)

    def _remember(self, parts: list[bytes], member: Member) -> None:
        if not member.target:
            raise ArchiveRefused(f"{printable_name(member.name)}: a link without a target.")
        self._count += 1
        names = self._links
        for part in parts[:-1]:
            names = self._inner(names, part)
        self._link_bytes += len(parts[-1]) + LINK_OVERHEAD_BYTES
        names[parts[-1]] = None
        if self._count > MAX_LINKS or self._link_bytes > LINK_BYTES:
            raise ArchiveRefused(f"Too many links: an archive may have {MAX_LINKS:,}, or fewer with long paths.")

    def _inner(self, names: _Names, part: bytes) -> _Names:
        inner = names.get(part)
        if inner is None:
            inner = names[part] = {}
            self._link_bytes += len(part) + LINK_OVERHEAD_BYTES
        return inner


def _rewritten(reader: TarReader, change: Callable[[Member], Member | None]) -> Iterator[bytes | memoryview]:
    """Yield the members of an archive as rewritten by ``change``, without its end."""
    for member in reader:
        changed = change(member)
        if changed is not None:
            yield header(changed)
            yield from reader.content()
            yield padding(changed.size)


def _to_the_end(reader: TarReader, checked: ExtractionFilter) -> Iterator[bytes | memoryview]:
    yield from _rewritten(reader, checked)
    if reader.rest():
        raise ArchiveRefused("There is more data after the archive's end.")
    yield END


def _remembered(pieces: Iterable[bytes], last: bytearray) -> Iterator[bytes]:
    """Yield ``pieces``, and keep their last bytes in ``last``."""
    for piece in pieces:
        last[:] = (last + piece[-_STATUS_BYTES:])[-_STATUS_BYTES:]
        yield piece


def _ended(last: bytes) -> str:
    """Return how tar has ended, by the ``last`` bytes of its output, for a message; empty if they do not say."""
    match = _STATUS.search(last)
    if match is None:
        return ""
    status = int(match[1])
    return f" was killed by signal {status - 128}" if status > 128 else f" failed with exit status {status}"


def _parts(path: bytes) -> list[bytes]:
    """Return the names in a relative path; an empty list for the directory itself.

    :raises ArchiveRefused: it leads out of the directory.
    """
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if path.startswith(b"/") or b".." in parts or len(path) > NAME_BYTES:
        raise ArchiveRefused(f"{printable_name(path)}: this path leads out of the directory, or is too long.")
    return parts


def _named(path: bytes) -> bytes:
    return b"./" + b"/".join(_parts(path))


def _with_end(name: bytes, kind: str) -> bytes:
    return name + b"/" if kind == DIRECTORY and not name.endswith(b"/") else name


def _printed(line: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _failed(record: bytes) -> FailedMember:
    reason, _, path = record.partition(b"/")
    return FailedMember(path, _printed(reason.decode(errors="replace")) or "It could not be put in place")


@dataclass(frozen=True)
class Member:
    """A file in an archive: its path, ``size`` in bytes, ``mode`` its permission bits, ``modified`` in seconds.

    ``target`` is a link's: the text of a symbolic one, the path of another member for a hard one.
    """

    name: bytes
    kind: str
    size: int = 0
    mode: int = 0
    modified: int = 0
    target: bytes = b""
    uid: int = 0
    gid: int = 0
    owner: bytes = b""
    group: bytes = b""


class TarReader:
    """Reads an archive from ``pieces``, once. The content of each member must be read before the next member."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = memoryview(b"")
        self._remaining = 0

    def __iter__(self) -> Iterator[Member]:
        """Yield the members to the archive's end.

        :raises ArchiveRefused: it is malformed or incomplete.
        """
        while (block := self._exactly(TAR_BLOCK_BYTES)) != END[:TAR_BLOCK_BYTES]:
            member = self._member(block)
            if member is not None:
                self._remaining = member.size
                yield member
                for _ in self.content():
                    pass
                self._exactly(-member.size % TAR_BLOCK_BYTES)

    def content(self) -> Iterator[memoryview]:
        """Yield the remaining content of the last member."""
        while self._remaining:
            piece = self._some(self._remaining)
            self._remaining -= len(piece)
            yield piece

    def rest(self) -> bytes:
        """Return the data after the archive's end without leading zeros, at most :data:`TRAILER_BYTES`.

        :raises ArchiveRefused: there is more.
        """
        rest, total = bytearray(), 0
        for piece in chain([bytes(self._piece)], self._pieces):
            total += len(piece)
            if total > TRAILER_BYTES:
                raise ArchiveRefused("There is more data after the archive's end.")
            rest += piece if rest else piece.lstrip(b"\0")
        return bytes(rest)

    def _member(self, block: bytes) -> Member | None:
        """Return the member of the header ``block`` and its extension headers; None for a header without a file."""
        more: dict[str, bytes] = {}
        for _ in range(LEADING_HEADERS):
            fields = _fields(block)
            letter, size = fields[7], _number(fields[4])
            if letter in _IGNORED:
                self._extension(letter, size)
                return None
            if letter not in _LEADING:
                return _described(fields, more)
            more.update(self._extension(letter, size))
            block = self._exactly(TAR_BLOCK_BYTES)
        raise ArchiveRefused("A file in the archive has too many headers.")

    def _extension(self, letter: bytes, size: int) -> dict[str, bytes]:
        if size > EXTENSION_BYTES:
            raise ArchiveRefused(f"An extension header has more than {EXTENSION_BYTES} bytes.")
        data = self._exactly(size)
        self._exactly(-size % TAR_BLOCK_BYTES)
        if letter in b"xg":
            return dict(_records(data))
        return {"path" if letter == b"L" else "linkpath": data.partition(b"\0")[0]}

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += self._some(size - len(data))
        return bytes(data)

    def _some(self, most: int) -> memoryview:
        """Return 1 to ``most`` bytes."""
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                raise ArchiveRefused("The archive is cut off: its last blocks are missing.")
            self._piece = memoryview(piece)
        data, self._piece = self._piece[:most], self._piece[most:]
        return data


def header(member: Member) -> bytes:
    """Return the headers of ``member`` in an archive; :func:`padding` follows its content."""
    lead = b""
    for letter, long in ((b"K", member.target), (b"L", member.name)):
        if len(long) > _LONGEST:
            lead += _block(_LONG_NAME, letter, len(long) + 1) + long + b"\0" + padding(len(long) + 1)
    return lead + _block(member.name, _LETTERS[member.kind], member.size, member)


def padding(size: int) -> bytes:
    """Return the padding after content of ``size`` bytes."""
    return bytes(-size % TAR_BLOCK_BYTES)


def message_header(name: str, text: str) -> bytes:
    """Return a pax header with ``text`` as ``name``, and the header of the directory to which it belongs."""
    record = f" {name}={text}\n".encode()
    # The number counts its own digits too (POSIX.1-2017, pax), so one more digit may need yet another one.
    size = len(record) + 1
    while size != len(record) + len(str(size)):
        size += 1
    data = str(size).encode() + record
    lead = _block(b"./PaxHeaders/told", b"x", size) + data + padding(size)
    return lead + header(Member(b"./", DIRECTORY, mode=0o755))


def printable_name(name: bytes) -> str:
    """Return a member's name for a message."""
    text = name[:200].decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _described(fields: tuple[bytes, ...], more: dict[str, bytes]) -> Member:
    """Return the member that a header's ``fields`` describe, with ``more`` from the headers before it."""
    name, letter = more.get("path") or _joined(fields), fields[7]
    kind = _KINDS.get(letter, OTHER if letter in _OTHERS else "")
    if not kind:
        raise ArchiveRefused(f"{printable_name(name)}: this type of member is not supported.")
    size = _decimal(more["size"]) if "size" in more else _number(fields[4])
    if kind == FILE and name.endswith(b"/"):
        # Archives older than POSIX have directories this way. With content, one tar would write it, and another read
        # it as the next members, which nobody would have checked.
        if size:
            raise ArchiveRefused(f"{printable_name(name)}: a directory with content.")
        kind = DIRECTORY
    return Member(
        name=name,
        kind=kind,
        size=size if kind == FILE else 0,
        mode=_number(fields[1]) & 0o7777,
        modified=_decimal(more["mtime"]) if "mtime" in more else _since_1970(fields[5]),
        target=(more.get("linkpath") or _text(fields[8])) if kind in (HARD_LINK, LINK) else b"",
        uid=_number(fields[2]),
        gid=_number(fields[3]),
        owner=_text(fields[10]),
        group=_text(fields[11]),
    )


def _block(name: bytes, letter: bytes, size: int, member: Member | None = None) -> bytes:
    of = member or Member(name, FILE)
    block = _HEADER.pack(
        name[:_LONGEST],
        b"%07o\0" % (of.mode & 0o7777),
        _octal(of.uid, 8),
        _octal(of.gid, 8),
        _octal(size, 12),
        _octal(max(0, of.modified), 12),
        b" " * 8,
        letter,
        of.target[:_LONGEST],
        b"ustar  \0",
        of.owner,
        of.group,
        b"",
        b"",
    )
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _octal(number: int, size: int) -> bytes:
    # GNU tar's "base-256": what octal digits cannot hold is a binary number, marked by the first bit of the field.
    if number < 8 ** (size - 1):
        return b"%0*o\0" % (size - 1, number)
    return b"\x80" + number.to_bytes(size - 1, "big")


def _fields(block: bytes) -> tuple[bytes, ...]:
    checksum = _OCTAL.match(block[148:156])
    # The sum of all bytes, with the field of the checksum itself as eight blanks (POSIX.1-2017, pax, ustar).
    if checksum is None or sum(block) - sum(block[148:156]) + 8 * 32 != int(checksum[1] or b"0", 8):
        raise ArchiveRefused("This is not a tar archive, or it is damaged.")
    fields: tuple[bytes, ...] = _HEADER.unpack(block)
    return fields


def _joined(fields: tuple[bytes, ...]) -> bytes:
    name, prefix = _text(fields[0]), _text(fields[13])
    # GNU tar uses this field differently.
    return prefix + b"/" + name if prefix and fields[9] == b"ustar\x0000" else name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    # 0xFF would begin a negative number, which only a time may be.
    if field[0] == 0x80:
        number = int.from_bytes(field[1:], "big")
    else:
        octal = _OCTAL.fullmatch(field)
        if octal is None:
            raise ArchiveRefused("The archive has a malformed number.")
        number = int(octal[1] or b"0", 8)
    return _bounded(number)


def _decimal(text: bytes) -> int:
    """Return the integer part of a number of a pax header; 0 for a negative one."""
    decimal = _DECIMAL.fullmatch(text)
    if decimal is None:
        raise ArchiveRefused("The archive has a malformed number.")
    return _bounded(max(0, int(decimal[1])))


def _since_1970(field: bytes) -> int:
    return 0 if field[0] == 0xFF else _number(field)


def _bounded(number: int) -> int:
    if number >= 1 << 62:
        raise ArchiveRefused("The archive has a number that is too large.")
    return number


def _records(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the records of a pax header that describe a file."""
    at = 0
    while at < len(data):
        record = _RECORD.match(data, at)
        # A record is "25 mtime=1350244992.023960\n"; its number counts the whole record, the number included.
        end = at + int(record[1]) if record else 0
        if not record or not record.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise ArchiveRefused("The archive has a malformed pax header.")
        name = record[2]
        if name.startswith(b"GNU.sparse."):
            raise ArchiveRefused("Sparse files are not supported: store them whole (GNU tar: without --sparse).")
        if name in _PAX_FIELDS:
            value = data[record.end() : end - 1]
            if b"\0" in value:
                raise ArchiveRefused("The archive has a name with a NUL.")
            yield name.decode(), value
        at = end
