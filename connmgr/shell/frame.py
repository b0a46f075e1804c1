"""The frame: one write that makes a supervisor run one command, and the marked streams that come back.

Every marker is a colon, a random nonce of 128 bits that only this frame holds, a tag and a newline; output cannot
imitate it, and no text that holds the nonce has a colon before it, so that a shell may well print what it is doing.
There is one newline, because bash writes line by line. On stdout, after the output: ``c`` begins the working directory,
``v`` the exported variables, ``x`` more output (of an EXIT trap), ``g`` says that the directory asked for could not be
entered, ``l`` that the session's own is lost, and a blank with a number ends the command with its status. On stderr the
bare nonce ends.
"""

from __future__ import annotations

import itertools
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from string import Template

from connmgr.shell.dialects import Dialect, quote
from connmgr.shell.plain import BLANKS, is_plain, is_single

STATE_LIMIT = 4 << 20
"""Bytes of working directory and variables that are kept; a larger state is not carried over."""

_PRINTF_CHUNK = 8192
_UNSAFE = re.compile(rb"[^ -~]|[%\\']")


def new_nonce() -> str:
    """Return 128 random bits as letters, digits, ``-`` and ``_``: shells read their input byte by byte."""
    return secrets.token_urlsafe(16)


def nonces() -> Iterator[str]:
    """Yield nonces like those of :func:`new_nonce` without end, as unpredictable as the one key behind all of them.

    They are a keyed hash of a counter (BLAKE2b, RFC 7693): asking the system for random bytes lets go of the
    interpreter, which costs more than all of this where many threads wait for it.
    """
    key = secrets.token_bytes(32)
    for number in itertools.count():
        digest = blake2b(number.to_bytes(8, "big"), digest_size=16, key=key).digest()
        yield urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True)
class Command:
    """One command and the options that hold for it alone.

    It reads ``stdin``, or the named pipe ``stdin_pipe``. With ``directory`` or ``environment`` it runs in a copy of the
    session, whose state it does not change.
    """

    text: bytes
    stdin: bytes = b""
    stdin_pipe: bytes | None = None
    directory: bytes | None = None
    environment: Mapping[str, str] | None = None

    @property
    def source(self) -> bytes | None:
        """The file that it reads, quoted for sh; None where it reads what the frame brings."""
        if self.stdin_pipe is not None:
            return quote(self.stdin_pipe)
        return None if self.stdin else b"/dev/null"

    @property
    def has_options(self) -> bool:
        return self.source != b"/dev/null" or not self.keeps_state

    @property
    def keeps_state(self) -> bool:
        return self.directory is None and not self.environment


@dataclass(frozen=True)
class Interpreter:
    """The shell that runs the commands of a session which ``/bin/sh`` supervises; ``env`` is the path of env(1)."""

    shell: str
    env: str = "/usr/bin/env"


def build_frame(
    dialect: Dialect, command: Command, nonce: str, cookie: str, interpreter: Interpreter | None = None
) -> bytes:
    """Return the line that runs ``command`` in a subshell of the supervisor and reports how it ended.

    The command stands in no ``if``, ``&&`` or ``||``, where ``set -e`` would be ignored. ``cookie`` goes into the
    command's environment, to find processes that left its tree.
    """
    mark = nonce.encode()
    steps = [b"export CONNMGR_COMMAND=" + cookie.encode()]
    if command.directory is not None:
        steps.insert(0, b"cd " + quote(_as_path(command.directory)) + b"||{ _cm_gone g " + mark + b";exit;}")
    if command.environment:
        exports = (b"export " + k.encode() + b"=" + quote(v.encode()) for k, v in command.environment.items())
        steps.append(b"{ " + b";".join(exports) + b";} 2>&9")  # some variables cannot be set; the shell says which
    if dialect.interpreter and interpreter:
        steps.append(_interpreted(dialect.interpreter, command, mark, interpreter))
    else:
        steps += _evaluated(dialect, command)
        if command.keeps_state:
            steps.append(b'_cm_dump "$?" ' + mark)
    body = b"(" + dialect.fork.encode() + b";".join(steps) + b")"
    if command.stdin:
        body = b"{ " + b";".join(_printf(command.stdin)) + b";}|" + body
    return body + b';_cm_end "$?" ' + mark + b"\n"


_STREAMS = b"</dev/null >&8 2>&9 8>&- 9>&-"


def build_plain_frame(text: bytes, nonce: str, cookie: str) -> bytes | None:
    """Return the line that runs the plain command ``text`` in a supervisor without functions; None if it is not plain.

    A single program needs no subshell. The subshell of several reports their end before it is gone itself; if it is
    killed, the supervisor does.
    """
    mark, name = nonce.encode(), b"CONNMGR_COMMAND=" + cookie.encode()
    if is_single(text):
        return _STREAMS + b" " + name + b" " + text.strip(BLANKS) + b';_cm_end "$?" ' + mark + b"\n"
    if not is_plain(text):
        return None
    steps = (b"exec " + _STREAMS, b"export " + name, b"eval " + quote(text), b'_cm_done "$?" ' + mark)
    return b"(" + b";".join(steps) + b')&&_cm_renew||_cm_end "$?" ' + mark + b"\n"


def enter_directory(directory: bytes, nonce: str, frame: bytes) -> bytes:
    """Return a line that moves the supervisor into ``directory`` and runs ``frame`` there, or reports that it is gone.

    A ``case``, because a command within ``if`` or after ``||`` would not heed ``set -e``.
    """
    mark = nonce.encode()
    gone = b"_cm_gone l " + mark + b";_cm_end 1 " + mark
    return b"cd " + quote(directory) + b';case "$?" in 0) ' + frame.rstrip(b"\n") + b";;*) " + gone + b";;esac\n"


def _as_path(directory: bytes) -> bytes:
    # cd takes "-" and "-P" for something else, and looks in CDPATH for what begins with a name.
    return directory if directory.startswith(b"/") else b"./" + directory


def _evaluated(dialect: Dialect, command: Command) -> Iterator[bytes]:
    if command.source is not None:
        yield b"exec <" + command.source
    text = command.text
    if dialect.hold:
        yield b"_cm_hold"
        text = b"_cm_free\n" + text
    yield b"eval " + quote(text) + b" " + dialect.streams.encode()


def _interpreted(template: Template, command: Command, mark: bytes, interpreter: Interpreter) -> bytes:
    words = {
        b"${command}": quote(command.text),
        b"${shell}": quote(interpreter.shell.encode()),
        b"${env}": interpreter.env.encode(),
        b"${nonce}": mark,
        b"$$": b"$",
    }
    run = re.sub(rb"\$\{\w+\}|\$\$", lambda match: words[match.group()], template.template.encode())
    source = b"6<" + (command.source or b"&0")
    return b"{ " + run + b";} " + source + b" >&8 2>&9 8>&- 9>&-"


def _printf(data: bytes) -> Iterable[bytes]:
    # Octal escapes in the format carry every byte, NUL included, through every shell's printf (POSIX.1-2017 printf).
    for start in range(0, len(data), _PRINTF_CHUNK):
        text = _UNSAFE.sub(lambda match: b"\\%03o" % match.group()[0], data[start : start + _PRINTF_CHUNK])
        yield b"printf '" + text.replace(b"\\045", b"%%") + b"'"


class MarkedStream:
    """Reads one stream of a command by position: what belongs to it, what is its state, and where it ends.

    At most ``limit`` bytes of output are kept; the rest is counted off and ``truncated`` set.
    """

    def __init__(self, nonce: str, limit: int) -> None:
        self._marker = b":" + nonce.encode()
        self._limit = limit
        self._pending = b""
        self._section = "b"
        self._state_complete = False
        self._translated = False
        self._sections = {"b": bytearray(), "c": bytearray(), "v": bytearray()}
        self.truncated = False
        self.directory_refused = False
        self.directory_lost = False
        self.ended = False
        self.status = 0

    @property
    def output(self) -> bytearray:
        return self._sections["b"]

    @property
    def state(self) -> tuple[bytes, bytes] | None:
        """The working directory and the variables as printed; None where the command did not come to print them."""
        directory, variables = self._sections["c"], self._sections["v"]
        if not self._state_complete or len(variables) >= STATE_LIMIT:
            return None
        if self._translated:
            directory, variables = (part.replace(b"\r\n", b"\n") for part in (directory, variables))
        return bytes(directory.removesuffix(b"\n")), bytes(variables)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream; whatever follows its end is dropped."""
        if self.ended or not data:
            return
        data = self._pending + data
        marker, start = self._marker, 0
        while True:
            at = data.find(marker, start)
            if at < 0:
                held = self._possible_marker(data, start)
                self._keep(data, start, len(data) - held)
                self._pending = data[len(data) - held :]
                return
            line_end = data.find(b"\n", at + len(marker))
            if line_end < 0:
                self._keep(data, start, at)
                self._pending = data[at:]
                return
            self._keep(data, start, at)
            self._enter(data[at + len(marker) : line_end].decode("ascii", "replace"))
            start = line_end + 1
            if self.ended:
                return

    def _possible_marker(self, data: bytes, start: int) -> int:
        at = data.rfind(b":", max(start, len(data) - len(self._marker) + 1))
        return len(data) - at if at >= 0 and self._marker.startswith(data[at:]) else 0

    def _enter(self, tag: str) -> None:
        if tag.endswith("\r"):
            # A terminal that the command has set to translate newlines.
            tag, self._translated = tag[:-1], True
        if tag == "" or tag.startswith(" "):
            self.ended = True
            self.status = int(tag or 0)
        elif tag == "g":
            self.directory_refused = True
        elif tag == "l":
            self.directory_lost = True
        else:
            self._section = {"c": "c", "v": "v", "x": "b"}[tag]
            self._state_complete = tag == "x"

    def _keep(self, data: bytes, start: int, end: int) -> None:
        if start >= end:
            return
        kept = self._sections[self._section]
        limit = self._limit if self._section == "b" else STATE_LIMIT
        room = limit - len(kept)
        if end - start > room:
            self.truncated = self.truncated or self._section == "b"
            end = start + room
        kept += memoryview(data)[start:end]
