"""The format tar: archives are parsed and rewritten as they pass, so that no program sees a header made by another.

Accepted are the formats of POSIX (ustar and pax) and of GNU tar. Written are ustar, which every tar understands, and
GNU tar's extensions for longer names and sizes. Times are whole seconds.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from connmgr.errors import ArchiveRefused

BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)

NAME_BYTES = 8 << 10
"""Longest name of a member, or target of a link, in bytes."""

EXTENSION_BYTES = 64 << 10
"""Most bytes of an extension header in the formats of pax and GNU."""

LEADING_HEADERS = 8
"""Most headers of one file, its own included."""

TRAILER_BYTES = 1 << 20
"""Most bytes after an archive's end: padding, and error messages of the far side's tar."""

FILE, HARD_LINK, LINK, DIRECTORY, OTHER = "file", "hard link", "link", "directory", "other"

_KINDS = {b"0": FILE, b"\0": FILE, b"7": FILE, b"1": HARD_LINK, b"2": LINK, b"5": DIRECTORY}
_OTHERS = {b"3", b"4", b"6"}
_IGNORED = {b"g", b"V"}
_LEADING = {b"L", b"K", b"x"}
_LETTERS = {FILE: b"0", HARD_LINK: b"1", LINK: b"2", DIRECTORY: b"5"}
_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s8s32s32s16s155s12x")
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_RECORD = re.compile(rb"([0-9]{1,8}) ([^=\0]+)=")
_DECIMAL = re.compile(rb"(-?[0-9]{1,19})(\.[0-9]*)?")
_KNOWN = {b"path", b"linkpath", b"size", b"mtime"}
_LONGEST = 100
_LONG_NAME = b"././@LongLink"


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


class Reader:
    """Reads an archive from ``pieces``, once. The content of each member must be read before the next member."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = memoryview(b"")
        self._left = 0

    def __iter__(self) -> Iterator[Member]:
        """Yield the members to the archive's end.

        :raises ArchiveRefused: it is malformed or incomplete.
        """
        while (block := self._exactly(BLOCK_BYTES)) != END[:BLOCK_BYTES]:
            member = self._member(block)
            if member is not None:
                self._left = member.size
                yield member
                for _ in self.content():
                    pass
                self._exactly(-member.size % BLOCK_BYTES)

    def content(self) -> Iterator[memoryview]:
        """Yield the remaining content of the last member."""
        while self._left:
            piece = self._some(self._left)
            self._left -= len(piece)
            yield piece

    def rest(self) -> bytes:
        """Return the data after the archive's end without leading zeros, at most :data:`TRAILER_BYTES`.

        :raises ArchiveRefused: there is more.
        """
        found, total = bytearray(), 0
        for piece in chain([bytes(self._piece)], self._pieces):
            total += len(piece)
            if total > TRAILER_BYTES:
                raise ArchiveRefused("Something follows the archive's end.")
            found += piece if found else piece.lstrip(b"\0")
        return bytes(found)

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
            block = self._exactly(BLOCK_BYTES)
        raise ArchiveRefused("A file in the archive has too many headers.")

    def _extension(self, letter: bytes, size: int) -> dict[str, bytes]:
        if size > EXTENSION_BYTES:
            raise ArchiveRefused(f"An extension header has more than {EXTENSION_BYTES} bytes.")
        data = self._exactly(size)
        self._exactly(-size % BLOCK_BYTES)
        if letter in b"xg":
            return dict(_records(data))
        return {"path" if letter == b"L" else "linkpath": data.partition(b"\0")[0]}

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            found += self._some(size - len(found))
        return bytes(found)

    def _some(self, most: int) -> memoryview:
        """Return 1 to ``most`` bytes."""
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                raise ArchiveRefused("The archive ends before its end.")
            self._piece = memoryview(piece)
        found, self._piece = self._piece[:most], self._piece[most:]
        return found


def header(member: Member) -> bytes:
    """Return the headers of ``member`` in an archive; :func:`padding` follows its content."""
    lead = b""
    for letter, long in ((b"K", member.target), (b"L", member.name)):
        if len(long) > _LONGEST:
            lead += _block(_LONG_NAME, letter, len(long) + 1) + long + b"\0" + padding(len(long) + 1)
    return lead + _block(member.name, _LETTERS[member.kind], member.size, member)


def padding(size: int) -> bytes:
    """Return the padding after content of ``size`` bytes."""
    return bytes(-size % BLOCK_BYTES)


def told(name: str, text: str) -> bytes:
    """Return a pax header with ``text`` as ``name``, and the header of the directory to which it belongs."""
    record = f" {name}={text}\n".encode()
    size = len(record) + 1
    while size != len(record) + len(str(size)):
        size += 1
    data = str(size).encode() + record
    lead = _block(b"./PaxHeaders/told", b"x", size) + data + padding(size)
    return lead + header(Member(b"./", DIRECTORY, mode=0o755))


def shown(name: bytes) -> str:
    """Return a member's name for a message."""
    text = name[:200].decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _described(fields: tuple[bytes, ...], more: dict[str, bytes]) -> Member:
    """Return the member that a header's ``fields`` describe, with ``more`` from the headers before it."""
    name, letter = more.get("path") or _joined(fields), fields[7]
    kind = _KINDS.get(letter, OTHER if letter in _OTHERS else "")
    if not kind:
        raise ArchiveRefused(f"{shown(name)}: this type of member is not supported.")
    size = _decimal(more["size"]) if "size" in more else _number(fields[4])
    if kind == FILE and name.endswith(b"/"):
        # Archives older than POSIX have directories this way. With content, one tar would write it, and another read
        # it as the next members, which nobody would have checked.
        if size:
            raise ArchiveRefused(f"{shown(name)}: a directory with content.")
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
    if number < 8 ** (size - 1):
        return b"%0*o\0" % (size - 1, number)
    return b"\x80" + number.to_bytes(size - 1, "big")


def _fields(block: bytes) -> tuple[bytes, ...]:
    checksum = _OCTAL.match(block[148:156])
    if checksum is None or sum(block) - sum(block[148:156]) + 8 * 32 != int(checksum[1] or b"0", 8):
        raise ArchiveRefused("This is no archive in the format tar, or it is damaged.")
    found: tuple[bytes, ...] = _HEADER.unpack(block)
    return found


def _joined(fields: tuple[bytes, ...]) -> bytes:
    name, prefix = _text(fields[0]), _text(fields[13])
    # GNU tar uses this field differently.
    return prefix + b"/" + name if prefix and fields[9] == b"ustar\x0000" else name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    if field[0] == 0x80:
        number = int.from_bytes(field[1:], "big")
    else:
        found = _OCTAL.fullmatch(field)
        if found is None:
            raise ArchiveRefused("The archive has a malformed number.")
        number = int(found[1] or b"0", 8)
    return _bounded(number)


def _decimal(text: bytes) -> int:
    """Return the integer part of a number of a pax header; 0 for a negative one."""
    found = _DECIMAL.fullmatch(text)
    if found is None:
        raise ArchiveRefused("The archive has a malformed number.")
    return _bounded(max(0, int(found[1])))


def _since_1970(field: bytes) -> int:
    return 0 if field[0] == 0xFF else _number(field)


def _bounded(number: int) -> int:
    if number >= 1 << 62:
        raise ArchiveRefused("The archive has a number beyond all limits.")
    return number


def _records(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the records of a pax header that describe a file."""
    at = 0
    while at < len(data):
        found = _RECORD.match(data, at)
        end = at + int(found[1]) if found else 0
        if not found or not found.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise ArchiveRefused("The archive has a pax header that is malformed.")
        name = found[2]
        if name.startswith(b"GNU.sparse."):
            raise ArchiveRefused("Sparse files are not supported: store them whole (GNU tar: without --sparse).")
        if name in _KNOWN:
            value = data[found.end() : end - 1]
            if b"\0" in value:
                raise ArchiveRefused("The archive has a name with a NUL.")
            yield name.decode(), value
        at = end
