"""Words for the far side's shell arrive unchanged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from connmgr.engine.script import IN_A_LINE, IN_ANY_SHELL, IN_SINGLE_QUOTES, Octal, as_words, quote
from tests.fs.far_sides import SHELLS, shell_called_sh

WORDS = [b"", b"\n", b"it's\n\n'", b'$newline "\n" `x` \\n\\', b" two  words\n", b"*", b"!x", b"~", b"x" * 9000]
_READER = "IFS= read -r line; newline='\n'; eval \"set -- $line\"; for word; do printf '%s\\0' \"$word\"; done"


@pytest.mark.parametrize("shell", SHELLS)
def test_words_in_a_line(tmp_path: Path, shell: str) -> None:
    line = as_words(b" ".join(map(quote, WORDS)))
    assert line
    assert b"\n" not in line
    argv = [str(shell_called_sh(tmp_path, shell)), "-c", _READER]
    read = subprocess.run(argv, input=line + b"\n", capture_output=True, check=True, timeout=20)
    assert read.stdout.split(b"\0")[:-1] == WORDS


@pytest.mark.parametrize("byte", [b"\0", b"\x03", b"\x7f", b"\t", b"\r", b"\xe9"])
def test_what_a_terminal_or_a_locale_would_change_is_in_no_line(byte: bytes) -> None:
    assert as_words(quote(byte)) is None


@pytest.mark.parametrize("octal", [IN_A_LINE, IN_ANY_SHELL, IN_SINGLE_QUOTES], ids=["line", "any shell", "quotes"])
@pytest.mark.parametrize("shell", SHELLS)
def test_printf_restores_every_byte_from_its_octal_escape(tmp_path: Path, shell: str, octal: Octal) -> None:
    every = bytes(range(256)) + b"017\\n'\\"
    escaped = octal.escape(every)
    assert octal.escape(b"plain, words") == b"plain, words"
    assert not set(escaped) & {*range(0x20), *range(0x7F, 0x100)}
    argv = [str(shell_called_sh(tmp_path, shell)), "-c", 'exec printf %b "$1"', "sh", escaped.decode()]
    assert subprocess.run(argv, capture_output=True, check=True, timeout=20).stdout == every
