"""A screen processes any output in any pieces, can be redrawn exactly, and neither grows nor stalls."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from connmgr.terminals.emulator.cells import Style
from connmgr.terminals.emulator.drawing import draw
from connmgr.terminals.emulator.screen import MAX_SEQUENCE, MAX_STRING, MAX_TITLE, Screen, length_of_lines
from connmgr.terminals.output import TerminalOutput

NUMBER = st.sampled_from(["", "0", "1", "2", "3", "5", "9", "12", "79", "80", "200", "99999999"])
NUMBERS = st.lists(NUMBER, max_size=4).map(";".join)
FINAL = st.sampled_from("@ABCDEFGHIJKLMPSTXZ`abdefghlmrsu")
MODE = st.sampled_from(
    ["1", "5", "6", "7", "25", "47", "66", "1000", "1002", "1004", "1006", "1047", "1048", "1049", "2004", "4711"]
)
COLOUR = st.sampled_from(
    ["31", "1;44", "97;100", "38;5;200", "48;2;1;2;3", "38:2::9:8:7", "4:3", "7", "2;3;9", "0", "38;5"]
)
OUTPUT = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.text("abc 中ü\u0301", min_size=1, max_size=30),
    st.sampled_from(["\n", "\r\n", "\r", "\b", "\t", "\x0e", "\x0f", "x" * 20, "x" * 10]),
    st.builds("\x1b[{}{}".format, NUMBERS, FINAL),
    st.builds("\x1b[?{}{}".format, MODE, st.sampled_from("hl")),
    st.builds("\x1b[{}m".format, COLOUR),
    st.sampled_from(
        [
            "\x1b7",
            "\x1b8",
            "\x1bD",
            "\x1bE",
            "\x1bH",
            "\x1bM",
            "\x1bc",
            "\x1b=",
            "\x1b>",
            "\x1b#8",
            "\x1b(0",
            "\x1b(B",
            "\x1b)0",
            "\x1b[!p",
            "\x1b[4 q",
            "\x1b[>4;2m",
            "\x1b]2;title\x07",
            "\x1bP1$q\x1b\\",
            "\x1b[1;\n5H",
            "\x1b[4h",
        ]
    ),
)
OUTPUTS = st.lists(OUTPUT, max_size=40).map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass"))
SIZE = st.tuples(st.integers(1, 30), st.integers(1, 12))

LINE = st.lists(
    st.one_of(
        st.text("abc 中ü\u0301\u0085\t\b", max_size=40).map(str.encode),
        st.builds("\x1b[{}m".format, COLOUR).map(str.encode),
        st.builds("\x1b[{}{}".format, NUMBERS, st.sampled_from("@CDGKPXm")).map(str.encode),
        st.builds("\x1b[?{}{}".format, MODE, st.sampled_from("hl")).map(str.encode),
        st.sampled_from(b"\r \n \v \0 \x0e \x0f \x18 \xe4 \x1b\\ \x1b= \x1b> \x1b(0 \x1b(B \x1b)0".split(b" ")),
        st.sampled_from(
            [b"\x1b]8;;http://a\x1b\\", b"\x1b]8;;\x07", b"\x1b]0;t\xc3\x07", b"\x1b]2;u\x1b\\", b"\x1b]2;v"]
        ),
        st.sampled_from([b"\x1b[0;1m", b"\x1b[;3m", b"\x1b[4 q", b"\x1b[ q", b"\x1b[4h"]),
    ),
    max_size=5,
).map(b"".join)
LINES = st.builds(
    lambda lines, times, more: b"\r\n".join(lines * times) + b"\r\ny" * more,
    st.lists(LINE, min_size=1, max_size=5),
    st.integers(1, 5),
    st.integers(0, 15),
)
"""Lines that scroll what was before off the screen."""


def state(screen: Screen) -> dict[str, object]:
    """The whole state that determines what a screen shows, now and after more output."""
    names = "columns rows x y style top bottom tabs modes insert_mode newline_mode charsets shifted saved keypad"
    held: dict[str, object] = {name: getattr(screen, name) for name in names.split()}
    held |= {name: getattr(screen, name) for name in ("title", "cursor_shape", "key_format", "undecoded")}
    for name, grid in (("shown", screen.grid), ("primary", screen.primary and screen.primary.grid)):
        held[name] = grid and [(row.text, row.styles) for row in grid.rows]
    return held | {"primary saved": screen.primary and screen.primary.saved}


def made(output: bytes, columns: int = 80, rows: int = 24) -> Screen:
    screen = Screen(columns, rows)
    screen.take(output)
    return screen


@settings(deadline=None)
@given(OUTPUTS, SIZE, st.data())
def test_output_in_pieces_leads_to_the_same_state(output: bytes, size: tuple[int, int], data: st.DataObject) -> None:
    whole, pieces = made(output, *size), Screen(*size)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=6)))
    for start, end in zip([0, *cuts], [*cuts, len(output)], strict=True):
        pieces.take(output[start:end])
    assert state(pieces) == state(whole)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(LINES, OUTPUTS, OUTPUT.map(str.encode)), max_size=6), SIZE, st.lists(SIZE, max_size=2))
@example([b"one\r\ntwo\r\n\x1b[2;3r\x1b[H", b"\x1b[44mx\r\n" * 20, b"\x1b[3b"], (10, 5), [])
@example([b"\x1b[31m\x1b[0;@\r\n" + b"y\r\n" * 9], (10, 5), [])
@example([b"\x1b[?25l\x1b[?1000h\x1b]2;t\x1b\\\x1b(0\x1b=\x1b[4 q\x0e\r\n" + b"y\r\n" * 20], (10, 5), [])
@example([b"\x1b[?1000h\x1b[?1002h\x1b[?1000h\x1b[?25l\x1b[?25h\x1b[?25l\r\n" + b"y\r\n" * 20], (10, 5), [])
@example([b"abc\r\n" * 6 + b"\x1b[?6h" + b"y\r\n" * 5], (10, 5), [])
@example([b"abc\r\n" * 6 + b"\x1b[?1049h" + b"y\r\n" * 5], (10, 5), [])
@example([b"abc\r\n" * 6 + b"ab\x1b7\r\n" + b"y\r\n" * 5], (10, 5), [])
@example([b"\x1b[31;44ma\r\n" + b"y\r\n" * 20], (10, 5), [])
@example([b"\x1b[31ma\x1b[0;1mb\x1b[4mc\r\n" + b"y\r\n" * 20], (10, 5), [])
@example([b"a\r\nb\r\nc\r\nd\x1b[H", b"y\r\n" * 6], (10, 5), [])
@example([b"a\r\nb\x1b[2;3r\x1b[5H", b"y\r\n" * 9], (10, 5), [])
@example([b"y\r\n" * 9 + b"\x1b[2Hx\x1b7" + b"y\r\n" * 9], (10, 5), [])
@example([b"\x1b[?1049h\x1b]2;a\r\n", b"y\r\n" * 9], (10, 5), [])
@example([b"\x1b(0", b"\x1b[31mlqk\r\n" * 20, b"\x1b[3"], (10, 5), [(4, 3)])
def test_a_look_at_lines_that_scroll_off_leads_to_the_state_of_all_output(
    parts: list[bytes], size: tuple[int, int], resizes: list[tuple[int, int]]
) -> None:
    output, whole = TerminalOutput(*size), Screen(*size)
    for part in parts:
        output.append(part)
        whole.take(part)
        with output.look(60):
            # The next part begins with a search for lines.
            pass
    for columns, rows in resizes:
        output.resize(columns, rows)
        whole.resize(columns, rows)
        for part in [*parts[:1], b"-"]:
            output.append(part)
            whole.take(part)
    with output.look(60) as (screen, offset):
        assert offset == output.end
        assert state(screen) == state(whole)


def test_lines_that_scroll_off_cost_nothing() -> None:
    screen = Screen(80, 24)
    line = b"\x1b[32mso many\x1b[0m words of a log, \xc3\xa4\r\n"
    line += b"\x1b[?25l\x1b]0;title\x07\x1b]8;;http://host/\x1b\\link\x1b]8;;\x1b\\\r\n"
    assert length_of_lines(line * 5000) == 5000 * len(line)
    assert screen.scroll_past(line * 5000) >= (5000 - 25) * len(line)
    assert screen.scroll_past(line * 10) == 0, "lines that stay on the screen were left out"


@settings(max_examples=400, deadline=None)
@given(OUTPUTS, SIZE)
@example(b"\x1b[?1049h\x1b[2;3r\x1b[?6hx", (10, 5))
@example("中".encode() * 5, (10, 2))
@example(b"\x1b]2;half a ti", (10, 2))
@example("ü".encode()[:1], (10, 2))
def test_redrawing_leads_to_the_same_state(output: bytes, size: tuple[int, int]) -> None:
    screen, other = made(output, *size), Screen(*size)
    other.take(b"\x1b[?1049h\x1b[31mleft over\x1b[2;3r\x1b[4h")
    other.take(draw(screen))
    assert state(other) == state(screen)


@settings(deadline=None)
@given(OUTPUTS, OUTPUTS, SIZE, SIZE)
def test_a_screen_keeps_its_size_through_resizes(
    output: bytes, later: bytes, size: tuple[int, int], other: tuple[int, int]
) -> None:
    screen = made(output, *size)
    screen.resize(*other)
    screen.take(later)
    assert (screen.columns, screen.rows) == other
    for grid in [screen.grid, *([screen.primary.grid] if screen.primary else [])]:
        assert len(grid.rows) == other[1]
        assert {(len(row.text), len(row.styles)) for row in grid.rows} == {(other[0], other[0])}
    assert 0 <= screen.column < other[0]
    assert 0 <= screen.y < other[1]


def test_a_smaller_screen_keeps_the_line_of_the_cursor() -> None:
    screen = made(b"\r\n".join(b"line %d" % number for number in range(24)))
    screen.resize(80, 10)
    assert screen.grid.lines[-1] == "line 23"
    screen.resize(80, 12)
    assert screen.grid.lines[9:] == ["line 23", "", ""]


def test_styles() -> None:
    screen = made(b"\x1b[1;4;38;5;200;48;2;1;2;3mx\x1b[22;39;49mx\x1b[91;102mx\x1b[38:2::9:8:7mx\x1b[58;5;1;3mx")
    rgb = 1 << 24
    bold, underline, italic = 1, 8, 4
    assert screen.grid.rows[0].styles[:5] == [
        Style(200, rgb | 0x010203, bold | underline),
        Style(-1, -1, underline),
        Style(9, 10, underline),
        Style(rgb | 0x090807, 10, underline),
        Style(rgb | 0x090807, 10, underline | italic),
    ]


def test_line_drawing() -> None:
    assert made(b"\x1b(0lqqk\x1b(B plain \x0e\x1b)0x\x0fx").grid.lines[0] == "┌──┐ plain │x"


def test_the_title_is_plain_text() -> None:
    assert made(b"\x1b]0;one\x08\x1b\\\x1b]2;two\xc2\x9b\x07").title == "two"
    assert len(made(b"\x1b]2;" + b"t" * 10_000 + b"\x07").title) == MAX_TITLE


def test_unfinished_sequences_are_limited() -> None:
    screen = Screen(80, 24)
    for begun, limit in (
        (b"\x1b[", MAX_SEQUENCE),
        (b"\x1b]2;", MAX_STRING),
        (b"\x1bP", MAX_STRING),
        (b"\x1b ", MAX_SEQUENCE),
    ):
        screen.take(b"\x18" + begun + b"1;" * 50_000 if begun != b"\x1b " else b"\x18" + begun * 50_000)
        assert len(screen.undecoded) <= limit + 2
    screen.take(b"\x18shown")
    assert "shown" in screen.grid.lines[0]


HOSTILE = {
    "parameters": b"\x1b[" + b"1;" * 8000 + b"m",
    "huge numbers": b"\x1b[" + b"9" * 8000 + b"A\x1b[99999999999999999999;99999999999999999999H",
    "repeat": b"x\x1b[1000000000b" * 1200,
    "private strings": b"\x1bP" + b"q" * 16_000,
    "unfinished": b"\x1b]0;" + b"x" * 16_000,
    "alignment": b"\x1b#8" * 5_400,
    "erasing": b"\x1b[2J" * 4_000,
    "scrolling": b"\x1b[99999S\x1b[99999T" * 1_000,
    "marks": b"a" + "\u0301".encode() * 8_000,
    "switching": b"\x1b[?1049h\x1b[?1049l" * 1_000,
    "saving": b"\x1b7" * 8_000,
    "tab stops": b"\t\x1bH" * 5_000,
    "controls in sequences": b"\x1b[" + b"\n" * 16_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_output_neither_grows_nor_stalls(name: str) -> None:
    screen = made(b"", 200, 60)
    began = time.thread_time()
    screen.take(HOSTILE[name])
    taken = time.thread_time() - began
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        # Tracing memory makes it many times slower, so a part of the output suffices.
        screen.take(HOSTILE[name][:3000])
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # All cells may be new objects; nothing else may remain.
    assert grown < 2_000_000
    assert taken < 1.5, f"16 KiB took {taken:.1f} s"
    assert len(draw(screen)) < 60 * 200 * 40


HOSTILE_OUTPUT = HOSTILE | {
    "wide repeat": "中\x1b[999999b".encode() * 2_000,
    "repeated marks": "e\u0301\x1b[999999b".encode() * 2_000,
    "many alternate screens": b"".join(b"\x1b[?1049;%dh\x1b[?%d;1049l" % (each, each) for each in range(5000, 25_000)),
}


@pytest.mark.parametrize("size", [(4096, 64), (64, 4096)])
@pytest.mark.parametrize("name", HOSTILE_OUTPUT)
def test_a_look_at_the_largest_screens_takes_no_longer(name: str, size: tuple[int, int]) -> None:
    output = TerminalOutput(*size)
    for _ in range(1 + (256 << 10) // len(HOSTILE_OUTPUT[name])):
        output.append(HOSTILE_OUTPUT[name])
    began = time.thread_time()
    with output.look() as (screen, _):
        draw(screen)
    taken = time.thread_time() - began
    # 0.25 s are the limit of a look, and one sequence may take another 0.1 s.
    assert taken < 1, f"a look took {taken:.1f} s"
