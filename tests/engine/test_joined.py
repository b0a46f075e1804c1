"""Bursts of output are joined on their way to a reader."""

from __future__ import annotations

import math

import pytest

from connmgr.engine import running
from connmgr.engine.running import JOIN_SECONDS, JOINED_BYTES, PIECE_BYTES, Joined
from tests.clock import Clock


@pytest.fixture
def clock(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(running, "time", clock)
    return clock


def test_output_after_a_pause_goes_out_at_once_and_later_output_is_joined(clock: Clock) -> None:
    output = Joined()
    assert output.next() is None
    assert output.due == math.inf
    output.add(b"a", b"")
    assert output.next() == (b"a", b"")
    output.add(b"b", b"")
    assert output.next() is None
    assert output.due == 1000 + JOIN_SECONDS
    clock.now += JOIN_SECONDS / 2
    output.add(b"c", b"")
    assert output.next() is None
    clock.now += JOIN_SECONDS / 2
    assert output.next() == (b"bc", b"")
    assert output.due == math.inf


def test_the_streams_are_not_joined_across_each_other(clock: Clock) -> None:
    output = Joined()
    output.add(b"a", b"")
    output.next()
    for streams in ((b"b", b""), (b"c", b""), (b"", b"d"), (b"e", b"f")):
        output.add(*streams)
        assert output.next() is None
    clock.now += 1
    pieces = iter(output.next, None)
    assert list(pieces) == [(b"bc", b""), (b"", b"d"), (b"e", b""), (b"", b"f")]


def test_much_output_goes_out_at_once_in_pieces_of_bounded_size(clock: Clock) -> None:
    output = Joined()
    output.add(b"a", b"")
    output.next()
    output.add(b"b" * (JOINED_BYTES + 1), b"")
    assert output.next() == (b"b" * PIECE_BYTES, b"")
    assert output.due < clock.now, "the rest waits though its reader takes it"
    rest = b"".join(stdout for stdout, _ in iter(output.next, None))
    assert rest == b"b" * (JOINED_BYTES + 1 - PIECE_BYTES)


def test_the_rest_is_given_out_at_the_end_unless_it_was_dropped(clock: Clock) -> None:
    output = Joined()
    for number in range(2):
        output.add(b"a", b"")
        output.next()
        output.add(b"b", b"c")
        if number:
            output.drop()
        assert list(output.rest()) == ([] if number else [(b"b", b""), (b"", b"c")])
        clock.now += 1
