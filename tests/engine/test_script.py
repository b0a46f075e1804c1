"""Words for the far side's shell arrive unchanged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from connmgr.engine.script import as_words, quote
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
