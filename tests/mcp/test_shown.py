"""Output of machines as shown to an agent, and keys as sent to a terminal."""

from __future__ import annotations

import pytest

from connmgr.client import ClientError
from connmgr.mcp.output import last_line, text_of, whole_end, whole_start
from connmgr.mcp.tools.terminals import NAMES, sent
from connmgr.printable import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with\ttabs\nand lines\r\n", "plain, with\ttabs\nand lines\r\n"),
        ("größer 日本 👩\u200d🚀", "größer 日本 👩\\u200d🚀"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("over\rwritten", "over\\rwritten"),
        ("a\u202eb\u2066c\u200bd\ufeff", "a\\u202eb\\u2066c\\u200bd\\ufeff"),
        ("hidden \U000e0049\U000e0067", "hidden \\U000e0049\\U000e0067"),
        ("nul\0 c1\x9b del\x7f", "nul\\x00 c1\\x9b del\\x7f"),
        ("line\u2028separator", "line\\u2028separator"),
    ],
)
def test_invisible_and_control_characters_are_written_out(text: str, shown: str) -> None:
    assert visible(text, lines=True) == shown
    assert visible(shown, lines=True) == shown
    assert visible(text) == shown.replace("\t", "\\t").replace("\r", "\\r").replace("\n", "\\n")


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert text_of(b"a\xffb\x1b") == "a\ufffdb\\x1b"


@pytest.mark.parametrize("text", ["aé", "a日", "a👩", "ascii", ""])
def test_pieces_are_cut_between_characters(text: str) -> None:
    data = text.encode()
    for at in range(len(data) + 1):
        head, tail = whole_end(data[:at]), whole_start(data[at:])
        head.decode()
        tail.decode()
        assert text.startswith(head.decode())
        assert text.endswith(tail.decode())
        assert len(data) - len(head) - len(tail) <= 4
    assert whole_end(data) == whole_start(data) == data


def test_bytes_that_are_no_utf_8_are_not_cut_away() -> None:
    assert whole_end(b"a\x80\x80\x80\x80\x80") == b"a\x80\x80\x80\x80\x80"
    assert whole_start(b"\x80\x80\x80\x80\x80") == b"\x80\x80\x80\x80\x80"


def test_a_last_line_is_one_that_says_something() -> None:
    assert last_line(b"first\n second \x1b[0m\n\n  \n", 50) == " second \\x1b[0m"
    assert last_line(b"x" * 100, 10) == "x" * 10
    assert last_line(b"\n\n", 10) == ""


def test_keys_are_what_terminals_send() -> None:
    assert [sent(name) for name in ("enter", "Ctrl-C", "ctrl-[", "alt-x", "up", "f1", "f12")] == [
        *(b"\r", b"\x03", b"\x1b", b"\x1bx", b"\x1b[A", b"\x1bOP", b"\x1b[24~")
    ]
    assert len({sent(name) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", ["", "ctrl-", "ctrl-cc", "ctrl-1", "alt-", "alt-\n", "return", "\r"])
def test_other_keys_are_refused(name: str) -> None:
    with pytest.raises(ClientError) as refused:
        sent(name)
    assert refused.value.code == "invalid_arguments"
