"""Lines of remote files that have a text, searched for by the remote host's own find and grep."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from connmgr.errors import TransferFailed
from connmgr.fs import remote
from connmgr.fs.archives import FILE, Archive, TarReader
from connmgr.fs.remote import RemoteFileSystem
from connmgr.plugin import Deadline

LOOK_SECONDS = 0.5
"""Interval at which a search that finds nothing looks whether its client is still there."""

FOUND_BYTES = 4 << 20
"""Most bytes of lines that one search takes from the remote host."""

LINE_BYTES = 1 << 20
"""Most bytes of an unfinished line that are kept here; of a longer one only its end is searched."""

SHOWN_CHARACTERS = 300
BEFORE_CHARACTERS = 100
"""Of a long line, what is shown, and how much of that stands before the text."""

_FOUND = re.compile(rb"([^\0]+)\0([0-9]{1,18}):([^\n]*)\n")


@dataclass(frozen=True)
class SearchedText:
    """What to search for: a ``text`` within a line, in files whose names match ``names``; at most ``most`` lines."""

    text: str
    names: str
    most: int
    ignore_case: bool

    def has(self, line: bytes) -> bool:
        """Whether a line has the text; only ASCII letters have a case."""
        text = self.text.encode()
        return text.lower() in line.lower() if self.ignore_case else text in line

    def around(self, line: bytes) -> str:
        """Return the line, or of a long one the part around the text."""
        shown = line.decode(errors="replace").rstrip("\r")
        low, text = (shown.lower(), self.text.lower()) if self.ignore_case else (shown, self.text)
        start = max(0, low.find(text) - BEFORE_CHARACTERS) if len(shown) > SHOWN_CHARACTERS else 0
        return shown[start : start + SHOWN_CHARACTERS]


@dataclass(frozen=True)
class TextLine:
    """A line that has the text: the path of its file in the directory, its number, and the line."""

    name: bytes
    line: int
    text: str


def search(fs: RemoteFileSystem, path: bytes, query: SearchedText, timeout: float) -> tuple[list[TextLine], bool]:
    """Return lines of the file ``path``, or of the files below that directory, and whether these are all.

    Links are not followed; unreadable files, those with NUL and those over 1 GiB are passed over. With a gate the files
    are read here, from an archive: grep opens a file by its name, which may have become a link since the rule was
    checked.
    """
    deadline = Deadline(timeout)
    lines = _found(fs, path, query, deadline) if fs.gate is None else _archived(fs, path, query, deadline)
    first: list[TextLine] = []
    for line in lines:
        if line is None or len(first) == query.most:
            return first, False
        first.append(line)
    return first, True


def _found(fs: RemoteFileSystem, path: bytes, query: SearchedText, deadline: Deadline) -> Iterator[TextLine | None]:
    """Yield the lines that the remote host finds; None at last if it has not come to the end."""
    words: list[str | bytes] = [
        path,
        query.text,
        "1" if query.ignore_case else "",
        query.names,
        str(query.most + 1),
    ]
    with fs.run(remote.SEARCH, words) as exchange:
        exchange.answer()
        # A piece may end within a line: what is not a whole line yet waits for the next piece.
        rest, total = b"", 0
        while True:
            while not exchange.arrives(min(LOOK_SECONDS, deadline.left())):
                fs.cancellation.require()
                if deadline.passed:
                    yield None
                    return
            if not (piece := next(exchange.data(), b"")):
                break
            rest, total = rest + piece, total + len(piece)
            at = 0
            while match := _FOUND.match(rest, _after_signs(rest, at)):
                yield TextLine(match[1].removeprefix(b"./"), int(match[2]), query.around(match[3]))
                at = match.end()
            rest = rest[_after_signs(rest, at) :]
            if total > FOUND_BYTES or deadline.passed:
                yield None
                return
        # Only the mark at its end proves that no line is missing: a link that breaks looks like an early end.
        if not exchange.succeeded() or rest != exchange.mark + b" end":
            raise TransferFailed("The link broke before the search had come to its end.")


def _after_signs(data: bytes, at: int) -> int:
    """Return where the next line begins after the empty ones by which the program shows that it works."""
    while data.startswith(b"\n", at):
        at += 1
    return at


def _archived(fs: RemoteFileSystem, path: bytes, query: SearchedText, deadline: Deadline) -> Iterator[TextLine | None]:
    """Yield the lines that are found in an archive of the files; None at last if the time is over before its end."""
    archive = Archive(fs, path)
    try:
        reader = TarReader(archive)
        for member in reader:
            name = member.name.removeprefix(b"./")
            is_wanted = member.kind == FILE and fnmatch.fnmatchcase(name.rpartition(b"/")[2], query.names.encode())
            for piece in _lines_of(reader.content(), query) if is_wanted else ():
                fs.cancellation.require()
                if deadline.passed:
                    yield None
                    return
                if piece is not None:
                    number, line = piece
                    yield TextLine(name, number, query.around(line))
            if deadline.passed:
                yield None
                return
    finally:
        archive.close()


def _lines_of(pieces: Iterable[memoryview], query: SearchedText) -> Iterator[tuple[int, bytes] | None]:
    """Yield the lines that have the text with their numbers, and None after each piece; nothing of a binary file."""
    number, rest = 1, b""
    for view in pieces:
        piece = rest + bytes(view)
        if b"\0" in piece:
            return
        # Most pieces do not have the text: one look at the whole is cheaper than a look at each line.
        *lines, rest = piece.split(b"\n") if query.has(piece) else (b"", piece[piece.rfind(b"\n") + 1 :])
        for at, line in enumerate(lines):
            if query.has(line):
                yield number + at, line
        number += piece.count(b"\n")
        rest = rest[-LINE_BYTES:]
        yield None
    if query.has(rest):
        yield number, rest
