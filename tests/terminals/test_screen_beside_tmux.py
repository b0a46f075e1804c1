"""A screen shows full-screen programs as tmux does, and so does its redrawing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.terminals.emulator.drawing import draw
from connmgr.terminals.emulator.screen import Screen
from tests.terminals.programs import COLUMNS, ROWS, Shown, Tmux, recorded, tmux

PROGRAMS = {
    "vim": (
        ["vim", "-u", "NONE", "text"],
        [b"ihello", b"\x1b", b"10G", b"dd", b":split\r", b"\x06", b":set number\r", b"/words\r"],
    ),
    "less": (["less", "text"], [b" ", b" ", b"b", b"/line 40\r", b"G", b"k"]),
    "top": (["top", "-d", "1"], [b"1", b"c"]),
    "htop": (["htop"], [b"\x1b[B", b"t"]),
    "mc": (["mc", "-u"], [b"\x1bOB", b"\t", b"\x1bOB", b"\x1b[20~"]),
    "bash": (["bash", "--norc", "-i"], [b"ls -la --color=always /\r", b"seq 50\r", b"printf '\\033[31mred\\n'\r"]),
}


@pytest.fixture(scope="module")
def terminal() -> Iterator[Tmux]:
    with tmux() as running:
        yield running


def shown(screen: Screen) -> Shown:
    return Shown(screen.grid.lines, (screen.column, screen.y))


def visible(seen: Shown) -> Shown:
    # tmux puts the cursor behind a line that it has filled.
    return Shown(seen.lines, (min(seen.cursor[0], COLUMNS - 1), seen.cursor[1]))


@pytest.mark.needs("tmux", "vim", "less", "ps", "htop", "mc", "bash")
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_screen_equals_that_of_tmux(program: str, terminal: Tmux, tmp_path: Path) -> None:
    lines = (f"line {number} of the file with some words, äöü 中文\n" for number in range(500))
    (tmp_path / "text").write_text("".join(lines))
    argv, keys = PROGRAMS[program]
    output = recorded(argv, keys, tmp_path)
    screen = Screen(COLUMNS, ROWS)
    screen.take(output)
    assert any(screen.grid.lines), "the program printed nothing"
    assert shown(screen) == visible(terminal.show(output))
    assert shown(screen) == visible(terminal.show(draw(screen)))


@pytest.mark.needs("tmux")
@pytest.mark.parametrize(
    "output",
    [
        "中文" * 30 + "\r\n" + "x" * 79 + "中" + "\x1b[1;1Hab",
        "e\u0301 o\u0308\r\n" + "a" * 85,
        "one\r\ntwo\r\nthree\x1b[2;1H\x1b[L\x1b[Mx\x1b[3;2H\x1b[2P\x1b[4@y",
        "\x1b[5;10r\x1b[10;1Hend\r\n\n\nmore\x1b[5;1H\x1bMabove\x1b[2S\x1b[T",
        "primary\x1b[?1049hsecond\x1b[?1049l back",
        "\x1b[3;5H\x1b7\x1b[10;10Hx\x1b8saved",
        "\x1b[3g\x1b[10G\x1bH\rtab\tstop\t.",
        "ab\x1b[5b\x1b[2;1Hcd\x1b[1K\x1b[3;1Hef\b\x1b[X",
        "\x1b[4hinsert\x1b[1;1Hfirst \x1b[4l",
        "\x1b[?7l" + "n" * 90 + "!",
        "\x1b[6;9r\x1b[?6h\x1b[2;2Horigin\x1b[?6l\x1b[1;1Htop",
    ],
)
def test_single_sequences(output: str, terminal: Tmux) -> None:
    screen = Screen(COLUMNS, ROWS)
    screen.take(output.encode())
    assert shown(screen) == visible(terminal.show(output.encode()))
    assert shown(screen) == visible(terminal.show(draw(screen)))
