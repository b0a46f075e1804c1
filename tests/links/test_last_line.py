"""Only the line that a wrapping program adds to stderr is removed, however it arrives."""

from __future__ import annotations

import pytest

from connmgr.links.login import LastLine

BEGINNING = b"command terminated with exit code "


def through(*pieces: bytes, status: int | None = 3) -> bytes:
    last = LastLine(BEGINNING)
    return b"".join(map(last.passed, pieces)) + last.rest(status)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize("before", [b"", b"err\n", b"err\n\n", BEGINNING + b"3\n", b"command\n"])
def test_the_last_line_is_removed_in_any_pieces(before: bytes, size: int) -> None:
    whole = before + BEGINNING + b"3\n"
    assert through(*(whole[at : at + size] for at in range(0, len(whole), size))) == before


@pytest.mark.parametrize(
    "said",
    [b"command terminated", b"err", b"c", BEGINNING, BEGINNING + b"3", BEGINNING + b"4\n", BEGINNING + b"3\nmore", b""],
)
def test_nothing_else_is_removed(said: bytes) -> None:
    assert through(b"first\n", said) == b"first\n" + said


def test_the_line_is_kept_if_the_program_succeeded() -> None:
    assert through(BEGINNING + b"3\n", status=0) == BEGINNING + b"3\n"
    assert through(BEGINNING + b"3\n", status=None) == BEGINNING + b"3\n"


def test_only_a_possible_beginning_of_the_line_is_withheld() -> None:
    last = LastLine(BEGINNING)
    assert [last.passed(piece) for piece in (b"Password: ", b"c", b"\n", b"com", b"e\n")] == [
        b"Password: ",
        b"c",
        b"\n",
        b"",
        b"come\n",
    ]
