"""Text for shells of the remote host: programs from ``scripts/``, quoting, octal escapes, and random words.

:func:`script_argv` packs a program with its arguments into an argv that every login shell passes on unchanged.
"""

from __future__ import annotations

import itertools
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files

# bash, also as sh, takes options and functions of any name from its environment, where start-up files of a login may
# have put them: `set -e`, a `cd` that also lists a directory, an `rm` that asks. No program of ours may run under them.
_AS_OURS = (
    "case ${BASH_VERSION-} in ?*) set +aefuvxC; unset -f unset declare shopt; for f in $(declare -F); do "
    'case $f in declare|-f*) ;; *) unset -f -- "$f";; esac; done; '
    "shopt -u failglob nullglob nocaseglob nocasematch 2>/dev/null;; esac; "
)
_STEERING = (
    "BLOCK_SIZE CLICOLOR_FORCE FIND_BLOCK_SIZE GREP_OPTIONS LS_BLOCK_SIZE PS_PERSONALITY QUOTING_STYLE TIME_STYLE TMOUT"
)
"""Variables by which the tools of our programs print something else, or end."""

# Without single quotes, newlines, backslashes and exclamation marks, which fish and csh parse differently.
_BOOT = f'{_AS_OURS}unset {_STEERING}; LC_ALL=C; export LC_ALL; eval "$(printf %b "$1")"'
# The user's programs keep the user's functions.
_BOOT_IN_OWN_LOCALE = 'eval "$(case ${BASH_VERSION-} in (?*) unset -f printf;; esac; LC_ALL=C printf %b "$1")"'
_PARSED_DIFFERENTLY = frozenset(b"'\\!^`")
"""What ends quotes, escapes, or recalls history in fish or csh, beside newlines; a backquote only as a precaution."""

_NOT_PRINTABLE = re.compile(rb"[^ -~]")
_BLANK = re.compile(r"@(\w+)@")


def quote(word: bytes) -> bytes:
    """Return ``word``, which may contain any bytes, as one single-quoted word of a POSIX shell."""
    return b"'" + word.replace(b"'", b"'\\''") + b"'"


def fill(text: str, words: Mapping[str, str]) -> str:
    """Return ``text`` with each ``@name@`` replaced by its value in ``words``; other names stay."""
    return _BLANK.sub(lambda blank: words.get(blank[1], blank[0]), text)


@cache
def programs(package: str) -> Mapping[str, str]:
    """Return the programs for the remote host in ``scripts/`` of ``package``, without comments, by file name."""
    # Read together and once: a running daemon keeps its programs, even if an upgrade replaces the files.
    programs = (file for file in (files(package) / "scripts").iterdir() if file.is_file())
    return {file.name: _uncommented(file.read_text(encoding="utf-8")) for file in programs}


def _uncommented(content: str) -> str:
    lines = [line.lstrip() for line in content.splitlines(keepends=True)]
    return "".join(line for line in lines if line and not line.startswith("#"))


@dataclass(frozen=True)
class Source:
    """A program, or a part of one: the file ``scripts/NAME.LANGUAGE`` of a package."""

    package: str
    name: str
    language: str = "sh"

    @property
    def text(self) -> str:
        """The text for the remote host."""
        return programs(self.package)[f"{self.name}.{self.language}"]

    @property
    def one_line(self) -> str:
        """The text in one line, for a program whose every line is a complete list of commands."""
        return "; ".join(self.text.splitlines())


def script_argv(script: str, arguments: Iterable[str | bytes] = (), *, own_locale: bool = False) -> list[str]:
    """Return the argv that runs ``script`` in ``/bin/sh`` with ``arguments``, which have no NUL, as ``$1`` and so on.
    The locale is C, or with ``own_locale`` the user's, for programs of the user.
    """
    words = [word.encode() if isinstance(word, str) else word for word in arguments]
    # As it is, if it may: unpacking takes the remote host another process.
    if own_locale and all(_is_plain(word) for word in (script.encode(), *words)):
        return ["/bin/sh", "-c", script, "sh", *(word.decode() for word in words)]
    # The remote login shell, of any language, parses the command line of an ssh session. Therefore the script is
    # sent in the octal escapes of `printf %b` (POSIX.1-2017 printf), which no shell interprets.
    text = b"set -- " + b" ".join(map(quote, words)) + b"\n" + script.encode()
    return ["/bin/sh", "-c", _BOOT_IN_OWN_LOCALE if own_locale else _BOOT, "sh", IN_ANY_SHELL.escape(text).decode()]


def _is_plain(word: bytes) -> bool:
    """Whether login shells of all languages read ``word`` alike in single quotes."""
    return _NOT_PRINTABLE.search(word) is None and _PARSED_DIFFERENTLY.isdisjoint(word)


def as_words(text: bytes) -> bytes | None:
    """Return ``text``, whose newlines are all in single quotes, as an equivalent line of POSIX sh, or None."""
    # The line refers to the variable `newline`. None: a byte of the text cannot be in a line.
    line = text.replace(b"\n", b"'\"$newline\"'")
    return None if _NOT_PRINTABLE.search(line) else line


class Octal:
    """The octal escapes of ``printf %b`` (POSIX.1-2017 *printf*) for all bytes but those that match ``plain``.

    They carry every byte, NUL included, through ``print`` and every ``printf %b``, and no shell interprets them.
    """

    def __init__(self, plain: bytes) -> None:
        self._escaped = re.compile(b"[^" + plain + b"]")
        bytes_of = (bytes([number]) for number in range(256))
        self._table = [b"\\0%03o" % ord(byte) if self._escaped.match(byte) else byte for byte in bytes_of]

    def escape(self, data: bytes) -> bytes:
        # A look-up for each byte is ten times as fast as a call for each match, of which binary data has one a byte.
        return b"".join(map(self._table.__getitem__, data)) if self._escaped.search(data) else data


IN_A_LINE = Octal(rb" -\[\]-~")
"""For a line of text: all printable characters but the backslash stay."""

IN_SINGLE_QUOTES = Octal(rb" -&(-\[\]-~")
"""For a word in single quotes."""

IN_ANY_SHELL = Octal(rb"A-Za-z0-9 ,./:=@_%+-")
"""For a word that a login shell of any language parses: without what fish or csh reads differently even in quotes."""


def exports(variables: Mapping[str, str], end: bytes = b"\n") -> bytes:
    """Return the sh text that sets ``variables``, whose names are valid, with ``end`` after each; empty for none."""
    return b"".join(
        b"export " + name.encode() + b"=" + quote(value.encode()) + end for name, value in variables.items()
    )


def new_nonce() -> str:
    """Return 128 random bits as letters, digits, ``-`` and ``_``, which only one envelope, helper or login knows."""
    # Short, because shells read their input byte by byte.
    return secrets.token_urlsafe(16)


def nonces() -> Iterator[str]:
    """Yield words like :func:`new_nonce` by a keyed hash of a counter (BLAKE2b, RFC 7693).

    Random bytes from the system would release the interpreter lock, which is slow with many threads.
    """
    key = secrets.token_bytes(32)
    for number in itertools.count():
        digest = blake2b(number.to_bytes(8, "big"), digest_size=16, key=key).digest()
        yield urlsafe_b64encode(digest).rstrip(b"=").decode()
