"""Screens: any output in any pieces leads to the same screen, which can be redrawn, in bounded time."""

from __future__ import annotations

import time

from hypothesis import strategies as st

from connmgr.terminals.emulator.drawing import draw
from connmgr.terminals.emulator.screen import MAX_STRING, Screen
from connmgr.terminals.output import TerminalOutput
from tests.fuzz.rounds import fuzz
from tests.terminals.test_screen import LINES, OUTPUT, OUTPUTS, SIZE, made, state

RAW = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(
            [b"\x1b", b"[", b"?", b";", b":", b"1", b"9" * 30, b"P", b"]", b"\\", b"\x9b", b"\xe4", b"h", b"m"]
        )
    ).map(b"".join),
)
ANYTHING = st.lists(
    st.one_of(OUTPUTS, LINES, RAW, OUTPUT.map(lambda text: text.encode("utf-8", "surrogatepass"))), max_size=5
).map(b"".join)
CUTS = st.lists(st.integers(0, 4000), max_size=6)
CPU_SECONDS = 2.0


@fuzz(examples=60, output=ANYTHING, size=SIZE, cuts=CUTS)
def test_any_output_in_any_pieces_is_one_screen_that_can_be_redrawn(
    output: bytes, size: tuple[int, int], cuts: list[int]
) -> None:
    began = time.thread_time()
    whole, pieces, kept = made(output, *size), Screen(*size), TerminalOutput(*size)
    ends = [*sorted(cut % (len(output) + 1) for cut in cuts), len(output)]
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        pieces.take(output[start:end])
        kept.append(output[start:end])
    assert state(pieces) == state(whole)
    with kept.look(60) as (screen, offset):
        assert offset == len(output)
        assert state(screen) == state(whole)
    assert len(whole.undecoded) <= MAX_STRING + 2
    other = Screen(*size)
    other.take(draw(whole))
    assert state(other) == state(whole)
    assert time.thread_time() - began < CPU_SECONDS
