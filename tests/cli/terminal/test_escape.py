"""The program's own keys, and the modes in which output leaves a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connmgr.cli.standard_streams import Modes
from connmgr.streams.escapes import Escapes


@pytest.mark.parametrize(
    ("keys", "sent", "called"),
    [
        (b"~.", b"", ["."]),
        (b"ls\r~.", b"ls\r", ["."]),
        (b"ls ~.", b"ls ~.", []),
        (b"~~", b"~", []),
        (b"~~.", b"~.", []),
        (b"~x", b"~x", []),
        (b"~\r~.", b"~\r", ["."]),
        (b"\n~d~d", b"\n", ["d", "d"]),
        (b"a~", b"a~", []),
        (b"", b"", []),
    ],
)
@pytest.mark.parametrize("size", [1, 100])
def test_a_key_after_the_escape_character_at_the_beginning_of_a_line_is_ours(
    keys: bytes, sent: bytes, called: list[str], size: int
) -> None:
    calls: list[str] = []
    escapes = Escapes("~", {b".": lambda: calls.append("."), b"d": lambda: calls.append("d")})
    passed = b"".join(escapes.typed(keys[start : start + size]) for start in range(0, len(keys), size))
    assert (passed, calls) == (sent, called)


@given(st.binary(), st.integers(1, 50))
def test_text_without_escape_characters_passes_unchanged(pasted: bytes, size: int) -> None:
    escapes = Escapes("~", {})
    pasted = pasted.replace(b"~", b"")
    assert b"".join(escapes.typed(pasted[at : at + size]) for at in range(0, len(pasted), size)) == pasted


VIM = b"\x1b[?1049h\x1b[?1h\x1b=\x1b[?2004h\x1b[?25l"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("output", "ending"),
    [
        (b"plain \x1b[31mred", b""),
        (VIM, b"\x1b[?1049l\x1b[?1l\x1b>\x1b[?2004l\x1b[?25h\x1b[0m"),
        (VIM + b"text\x1b[?2004l\x1b[?1l\x1b>\x1b[?1049l\x1b[?25h", b""),
        (b"\x1b[?1000;1006h", b"\x1b[?1000l\x1b[?1006l\x1b[0m"),
        (b"\x1b\x1b[?1049h", b"\x1b[?1049l\x1b[0m"),
        (b"\x1b[?" + b"1;" * 1000 + b"h", b""),
    ],
)
def test_modes_that_a_remote_host_leaves_on_are_ended(output: bytes, ending: bytes, size: int) -> None:
    modes = Modes()
    for start in range(0, len(output), size):
        modes.see(memoryview(output)[start : start + size])
    assert modes.ending() == ending
