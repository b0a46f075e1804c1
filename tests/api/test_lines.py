"""Answers of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

from connmgr.api.answer import PIECE_CHARACTERS, as_lines


def test_each_burst_is_sent_when_it_comes_and_each_of_its_values_as_a_line() -> None:
    made: list[int] = []

    def bursts() -> Iterator[list[dict[str, object]]]:
        for number in (0, 1):
            made.append(number)
            yield [{"number": number, "text": "a\nb é"}, {"burst": number}]

    response = as_lines(bursts())
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/x-ndjson"
    assert response.is_streamed
    sent = response.iter_encoded()
    for number in (0, 1):
        piece = next(sent)
        assert made == list(range(number + 1)), "a burst was fetched before the one before it was sent"
        assert piece.endswith(b"\n")
        assert list(map(json.loads, piece.splitlines())) == [
            {"number": number, "text": "a\nb é"},
            {"burst": number},
        ]


def test_large_values_of_a_burst_are_sent_one_by_one_and_small_ones_up_to_a_size_together() -> None:
    made: list[int] = []

    def burst() -> Iterator[str]:
        for number, size in enumerate((1, PIECE_CHARACTERS, 1, 1, PIECE_CHARACTERS // 2, PIECE_CHARACTERS // 2)):
            made.append(number)
            yield "x" * size

    pieces = []
    for piece in as_lines([burst()]).iter_encoded():
        pieces.append([len(json.loads(line)) for line in piece.splitlines()])
        assert len(made) <= sum(map(len, pieces)) + 1, "more was made than one value that did not fit"
    half = PIECE_CHARACTERS // 2
    assert pieces == [[1], [PIECE_CHARACTERS], [1, 1, half], [half]]


def test_closing_the_response_closes_the_generator_that_it_reads() -> None:
    closed: list[bool] = []

    def bursts() -> Iterator[list[int]]:
        try:
            yield [1]
            yield [2]
        finally:
            closed.append(True)

    generator = bursts()
    response = as_lines(generator)
    assert next(response.iter_encoded()) == b"1\n"
    response.close()
    assert closed == [True]


def test_an_empty_burst_sends_nothing() -> None:
    assert list(as_lines([[], [{"a": 1}], []]).iter_encoded()) == [b'{"a":1}\n']


def test_a_list_can_be_sent_too() -> None:
    assert as_lines([[{"a": 1}, {}]]).get_data() == b'{"a":1}\n{}\n'
