"""Splices of every pair of endpoints: nothing is lost, neither side runs ahead, and every kind of end is passed on."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connmgr.streams.loop import Loop
from connmgr.streams.splice import Splice
from tests.deadlines import DEADLINE_SECONDS
from tests.streams.endpoints import KINDS, OVER_BY_END, Peer, running_loop

PAIRS = list(itertools.product(KINDS, KINDS))
BULK = random.Random(7).randbytes(1_500_000)
HELD_BYTES = 4_000_000
"""More than all windows, queues and buffers of a pair hold together."""


Join = Callable[..., "Joined"]
T = TypeVar("T")


@pytest.fixture
def join() -> Iterator[Join]:
    """A function that joins the endpoints of two kinds."""
    with joining() as function:
        yield function


@contextmanager
def joining() -> Iterator[Join]:
    """Yield the function of the fixture ``join``."""
    splices: list[Joined] = []

    def join(near: str, far: str, **options: object) -> Joined:
        splices.append(Joined(loop, near, far, **options))
        return splices[-1]

    with running_loop() as loop:
        yield join
        for joined in splices:
            joined.within(joined.splice.close)
    for joined in splices:
        joined.near.dispose()
        joined.far.dispose()


class Joined:
    """The two peers of a splice that runs in ``loop``."""

    def __init__(self, loop: Loop, near: str, far: str, **options: object) -> None:
        self.loop = loop
        self.ends = 0
        self.ended = threading.Event()
        self.splice: Splice
        self.bytes_in = self.bytes_out = 0
        self.near, self.far = self.within(lambda: self._join(near, far, options))

    def within(self, work: Callable[[], T]) -> T:
        """Do ``work`` in the thread of the loop, and return its result."""
        results: list[T] = []
        done = threading.Event()

        def call() -> None:
            try:
                results.append(work())
            finally:
                done.set()

        self.loop.call(call)
        assert done.wait(DEADLINE_SECONDS)
        return results[0]

    def _join(self, near: str, far: str, options: object) -> tuple[Peer, Peer]:
        peers = KINDS[near](self.loop), KINDS[far](self.loop)
        self.splice = Splice(
            peers[0].endpoint,
            peers[1].endpoint,
            came=self._came,
            went=self._went,
            ended=self._has_ended,
            **options,  # type: ignore[arg-type]
        )
        return peers

    def _came(self, size: int) -> None:
        self.bytes_in += size

    def _went(self, size: int) -> None:
        self.bytes_out += size

    def _has_ended(self, splice: Splice) -> None:
        assert splice.closed
        self.ends += 1
        self.ended.set()

    def await_end(self) -> None:
        assert self.ended.wait(DEADLINE_SECONDS), "the splice goes on"
        assert self.ends == 1


def _exactly(peer: Peer, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (piece := peer.read()):
        data += piece
    return bytes(data)


def _to_end(peer: Peer) -> bytes:
    return _exactly(peer, 1 << 60)


class Running(threading.Thread):
    """A call in another thread; its result is awaited by :meth:`result`."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._result: object = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._call()
        except OSError as error:
            self._result = error

    def result(self) -> object:
        self.join(DEADLINE_SECONDS)
        assert not self.is_alive(), "it takes for ever"
        return self._result


@pytest.mark.parametrize(("near", "far"), PAIRS)
def test_large_data_pass_both_ways_at_once(join: Join, near: str, far: str) -> None:
    joined = join(near, far)
    senders = [Running(lambda peer=peer: peer.send(BULK)) for peer in (joined.near, joined.far)]  # type: ignore[misc]
    readers = [Running(lambda peer=peer: _exactly(peer, len(BULK))) for peer in (joined.near, joined.far)]  # type: ignore[misc]
    assert [sender.result() for sender in senders] == [None, None]
    assert all(reader.result() == BULK for reader in readers)
    assert (joined.bytes_in, joined.bytes_out) == (len(BULK), len(BULK))
    assert not joined.splice.closed


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("swapped", [False, True], ids=["near first", "far first"])
def test_the_end_of_one_side_reaches_the_other_which_goes_on(
    join: Join, first: str, second: str, swapped: bool
) -> None:
    joined = join(second, first) if swapped else join(first, second)
    ending, other = (joined.far, joined.near) if swapped else (joined.near, joined.far)
    reading = Running(lambda: _to_end(other))
    ending.send(BULK)
    ending.end()
    assert reading.result() == BULK, "the end came before all data, or not at all"
    if first in OVER_BY_END:
        # The process is over, so nothing is left to talk to: what the other side still says is dropped.
        other.end() if second not in {"client", "pipe"} else other.close()
        joined.await_end()
        return
    back = Running(lambda: _exactly(ending, len(BULK)))
    other.send(BULK)
    assert back.result() == BULK, "the other direction did not go on"
    other.end()
    assert _to_end(ending) == b""
    joined.await_end()
    assert joined.splice.outcome == 0


@pytest.mark.parametrize(("near", "far"), PAIRS)
@pytest.mark.parametrize("swapped", [False, True], ids=["from near", "from far"])
def test_a_side_that_does_not_read_holds_the_other_back_and_loses_nothing(
    join: Join, near: str, far: str, swapped: bool
) -> None:
    joined = join(near, far)
    source, target = (joined.far, joined.near) if swapped else (joined.near, joined.far)
    flood = BULK * 8
    sending = Running(lambda: source.send(flood))
    # The other direction is free all the time.
    for _ in range(20):
        target.send(b"still here")
        assert _exactly(source, 10) == b"still here"
    sending.join(0.1)
    passed = joined.bytes_in if swapped else joined.bytes_out
    assert sending.is_alive(), "the source sent everything to a target that reads nothing"
    assert passed < HELD_BYTES
    assert _exactly(target, len(flood)) == flood
    assert sending.result() is None


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize("swapped", [False, True], ids=["near", "far"])
def test_a_side_that_is_gone_takes_the_other_along(join: Join, first: str, second: str, swapped: bool) -> None:
    joined = join(second, first) if swapped else join(first, second)
    gone, other = (joined.far, joined.near) if swapped else (joined.near, joined.far)
    other.send(b"a word")
    assert _exactly(gone, 6) == b"a word"
    gone.close()
    # Descriptors belong to other processes too: after a failure they stay open.
    reading = Running(lambda: b"" if second == "descriptors" else _to_end(other))
    # Where that is like an end of the output, it shows at the next word.
    speaking = Running(lambda: other.send(b"hello?" * 10_000))
    assert reading.result() == b""
    speaking.result()
    if not joined.ended.wait(0.2):
        Running(other.end).result()
    joined.await_end()


@pytest.mark.parametrize("far", KINDS)
def test_early_data_go_before_all_other_data(join: Join, far: str) -> None:
    joined = join("socket", far, early=BULK)
    joined.near.send(b"later")
    assert _exactly(joined.far, len(BULK) + 5) == BULK + b"later"


@pytest.mark.parametrize("far", sorted(set(KINDS) - {"client"}))
def test_an_end_that_is_not_real_resets_the_near_side(join: Join, far: str) -> None:
    joined = join("socket", far, is_intact=lambda: False)
    joined.near.send(b"unread")
    assert _exactly(joined.far, 6) == b"unread"
    joined.far.end()
    joined.await_end()


@pytest.mark.parametrize(("near", "far"), PAIRS)
def test_closing_a_splice_ends_both_sides(join: Join, near: str, far: str) -> None:
    joined = join(near, far)
    joined.near.send(b"a word")
    assert _exactly(joined.far, 6) == b"a word"
    joined.within(joined.splice.close)
    joined.within(joined.splice.close)
    joined.await_end()
    for peer, kind in ((joined.near, near), (joined.far, far)):
        # Descriptors belong to others too, and stay open.
        if kind != "descriptors":
            assert Running(lambda peer=peer: _to_end(peer)).result() in (b"", None), kind  # type: ignore[misc]


steps = st.lists(
    st.tuples(st.sampled_from(["near", "far"]), st.sampled_from(["send", "read", "end"]), st.integers(1, 200_000)),
    max_size=25,
)


@given(st.sampled_from(PAIRS), steps)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_order_of_words_reads_and_ends_delivers_all_that_was_sent_before_an_end(
    pair: tuple[str, str], steps: list[tuple[str, str, int]]
) -> None:
    with joining() as join:
        joined = join(*pair)
        peers = {"near": joined.near, "far": joined.far}
        kinds = dict(zip(peers, pair, strict=True))
        sent = {"near": bytearray(), "far": bytearray()}
        got = {"near": bytearray(), "far": bytearray()}
        ended: list[str] = []
        for side, action, size in steps:
            other = "far" if side == "near" else "near"
            if action == "send" and not ended:
                data = BULK[:size]
                # So much may wait unread, whatever the pair.
                if len(sent[side]) - len(got[other]) + size <= 200_000:
                    Running(lambda side=side, data=data: peers[side].send(data)).result()  # type: ignore[misc]
                    sent[side] += data
            elif action == "read" and len(got[side]) < len(sent[other]):
                got[side] += peers[side].read()
            elif action == "end" and not ended and len(got[side]) == len(sent[other]):
                ended.append(side)
                peers[side].end()
        for side, other in (("near", "far"), ("far", "near")):
            if side not in ended and (other in ended or not ended):
                got[side] += _exactly(peers[side], len(sent[other]) - len(got[side]))
                assert got[side] == sent[other], (side, kinds)
