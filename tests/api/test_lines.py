"""Answers of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

from connmgr.api.answer import as_lines


def test_each_value_is_sent_as_a_line_when_it_comes() -> None:
    made: list[int] = []

    def values() -> Iterator[dict[str, object]]:
        for number in (0, 1):
            made.append(number)
            yield {"number": number, "text": "a\nb é"}

    response = as_lines(values())
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/x-ndjson"
    assert response.is_streamed
    sent = response.iter_encoded()
    for number in (0, 1):
        line = next(sent)
        assert made == list(range(number + 1)), "a value was fetched before the line before it was sent"
        assert line.index(b"\n") == len(line) - 1, "a value is one line"
        assert json.loads(line) == {"number": number, "text": "a\nb é"}


def test_closing_the_response_closes_the_generator_that_it_reads() -> None:
    closed: list[bool] = []

    def values() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    generator = values()
    response = as_lines(generator)
    assert next(response.iter_encoded()) == b"1\n"
    response.close()
    assert closed == [True]


def test_a_list_can_be_sent_too() -> None:
    assert as_lines([{"a": 1}, {}]).get_data() == b'{"a":1}\n{}\n'
