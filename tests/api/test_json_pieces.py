"""The decoder that lets other threads run decodes what the one of the standard library does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr.api import json_pieces
from connmgr.api.body import parse
from connmgr.api.json_pieces import PieceDecoder
from connmgr.errors import InvalidRequest

WORDS = st.text(st.sampled_from('a"\\/\n\t \0\u00e4\u20ac\U0001f600\ud83d\ude00'), max_size=30)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(WORDS, inner, max_size=5),
)
SPOILT = st.tuples(
    st.integers(0, 400), st.sampled_from(["", '"', "\\", "\\u", "\\ud83d", "{", "]", ",", ":", "\n", "x"])
)


@pytest.fixture(autouse=True, scope="module")
def short() -> Any:
    """Pieces of so few characters that an escape of four digits meets their end in any place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "PIECE", 9)
        yield


def decoded(decoder: Any, text: str) -> Any:
    try:
        return decoder.decode(text)
    except json.JSONDecodeError:
        return "refused"


@given(value=VALUE, ascii_only=st.booleans(), indent=st.sampled_from([None, 0, 12]))
@settings(derandomize=True, database=None, deadline=None)
def test_any_value_is_decoded_as_by_the_standard_library(value: Any, indent: int | None, *, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    # Half a character comes by an escape only, since a body is UTF-8.
    text = text.encode(errors="replace").decode()
    assert PieceDecoder(json.JSONDecoder()).decode(text) == json.loads(text)


@given(value=VALUE, spoilt=SPOILT)
@settings(derandomize=True, database=None, deadline=None)
def test_what_is_no_json_is_refused_as_by_the_standard_library(value: Any, spoilt: tuple[int, str]) -> None:
    text, (place, put) = json.dumps(value), spoilt
    at = place % (len(text) + 1)
    for wrong in (text[:at] + put + text[at:], text[:at] + put + text[at + 1 :], text[:at]):
        assert decoded(PieceDecoder(json.JSONDecoder()), wrong) == decoded(json.JSONDecoder(), wrong), wrong


@pytest.mark.parametrize(
    "text",
    [
        '["abc',
        '["ab\\',
        '["ab\\u12',
        '["abcdefghijk\\q1"]',
        '["abcdefghijk\n"]',
        "[1 2]",
        '{"a" 1}',
        "{1: 2}",
        "",
        "[] x",
    ],
)
def test_an_error_names_the_same_place(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as ours:
        PieceDecoder(json.JSONDecoder()).decode(text)
    with pytest.raises(json.JSONDecodeError) as theirs:
        json.loads(text)
    unfinished = "Unterminated string starting at"
    assert (ours.value.msg, ours.value.pos) in {(theirs.value.msg, theirs.value.pos), (unfinished, text.find('"'))}


class Recording(json.JSONDecoder):
    """Notes how many characters each call decodes, which no other thread interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[int] = []

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        value, end = super().raw_decode(s, idx)
        self.spans.append(end - idx)
        return value, end


TEXTS = {
    "escapes": json.dumps(["\n\u00e4\U0001f600" * 1000]),
    "a long text": json.dumps({"command": "x" * 1000}),
    "long names": json.dumps({"x\n" * 1000: ""}),
    "strings": json.dumps(["f0ec68"] * 1000),
    "members": json.dumps({str(number): "\n" for number in range(1000)}),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_call_decodes_much_and_others_may_go_first(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[None] = []
    monkeypatch.setattr(json_pieces, "give_way", lambda: ways.append(None))
    decoder = Recording()
    assert PieceDecoder(decoder).decode(text) == json.loads(text)
    assert max(decoder.spans) <= json_pieces.PIECE + len('""')
    assert len(ways) >= 1000 // json_pieces.VALUES


def test_a_body_in_pieces_is_refused_as_any_other() -> None:
    for text, message in {
        '{"a": 1, "a": 2}': "a: This name occurs more than once",
        "[" * 5000: "nested deeper",
        '{"a": NaN}': "a: NaN is not a JSON number",
        '{"a": ' + "[" * 40 + "]" * 40 + "}": "nested deeper",
        "[1]": "not a JSON object",
        '{"a": 1e999}': "a: The number is too large",
    }.items():
        with pytest.raises(InvalidRequest, match=message):
            parse(text.encode(), in_pieces=True)
