"""Words for the remote host's shell arrive unchanged."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from connmgr.engine.script import IN_A_LINE, IN_ANY_SHELL, IN_SINGLE_QUOTES, Octal, as_words, quote, script_argv
from tests.fs.remote_hosts import SHELLS, shell_called_sh
from tests.plugins.machine import shell_path

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
def test_bytes_that_a_terminal_or_locale_changes_are_in_no_line(byte: bytes) -> None:
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


PLAIN = "".join(chr(byte) for byte in range(0x20, 0x7F) if chr(byte) not in "'\\!^`")
_PRINTER = 'for word do printf "%s:" "$0" "$word"; done; exec cat'


@pytest.mark.needs("bash", "zsh", "ksh93", "mksh", "dash", "fish", "tcsh")
@pytest.mark.parametrize("login_shell", ["bash", "zsh", "ksh93", "mksh", "dash", "fish", "tcsh"])
@pytest.mark.parametrize("word", [PLAIN, "", "-c", "it's", "\\", "!x", "a^b", "`id`", "two\nlines", "\t", "ä"])
def test_a_login_shell_passes_on_a_program_and_its_words(login_shell: str, word: str) -> None:
    argv = script_argv(_PRINTER, ["--", word, "last"], own_locale=True)
    assert (argv[2] == _PRINTER) == (word in {PLAIN, "", "-c"}), "only what is plain goes as it is"
    line = [shell_path(login_shell), "-c", shlex.join(argv)]
    read = subprocess.run(line, input=b"input", capture_output=True, check=True, timeout=20)
    assert read.stdout.decode() == f"sh:--:sh:{word}:sh:last:input"
