"""Later input arrives once and in order, and never blocks its sender."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.jobs.launch import OPEN, Launch
from connmgr.jobs.remote import QUEUE_BYTES, RemoteJobs
from tests.deadlines import eventually, eventually_raises
from tests.jobs.conftest import Jobs, new_id


def test_pieces_of_any_size_arrive_in_order(jobs: Jobs) -> None:
    chance = random.Random(5)
    pieces = [chance.randbytes(size) for size in (1, 65_536, 3, 200_001, 4096, 0, 17)]
    id = jobs.start(Launch(new_id(), b"cat; echo over", stdin=OPEN))
    for piece in pieces:
        jobs.remote.input(id, piece, False, 20)
    jobs.await_that(id, lambda read: read.seen.stdout.size == sum(map(len, pieces)))
    jobs.remote.input(id, b"last", True, 20)
    assert jobs.ended(id).stdout == b"".join(pieces) + b"lastover\n"


def test_input_after_its_end_is_refused(jobs: Jobs) -> None:
    id = jobs.start(Launch(new_id(), b"sleep 1000", stdin=OPEN))
    jobs.remote.input(id, b"x", True, 20)
    for data, eof in ((b"y", False), (b"", True)):
        with pytest.raises(errors.StdinClosed):
            jobs.remote.input(id, data, eof, 20)


def test_input_that_no_job_reads_is_refused(jobs: Jobs) -> None:
    without = jobs.start(Launch(new_id(), b"sleep 1000"))
    ended = jobs.start(Launch(new_id(), b"true", stdin=OPEN))
    jobs.ended(ended)
    closed = jobs.start(Launch(new_id(), b"exec <&-; echo closed; sleep 1000", stdin=OPEN))
    jobs.await_that(closed, lambda read: read.stdout == b"closed\n")
    for id in (without, ended, new_id()):
        with pytest.raises(errors.StdinClosed):
            jobs.remote.input(id, b"x", False, 20)
    eventually_raises(
        lambda: jobs.remote.input(closed, b"x", False, 20),
        errors.StdinClosed,
        "a job that has closed its input takes more",
    )


def test_input_that_a_job_does_not_read_fills_a_bounded_queue(jobs: Jobs, gate: Path) -> None:
    id = jobs.start(Launch(new_id(), f"cat {gate}; wc -c".encode(), stdin=OPEN))
    piece = b"x" * (QUEUE_BYTES // 2)
    jobs.remote.input(id, piece, False, 20)
    jobs.remote.input(id, piece, False, 20)
    with pytest.raises(errors.NoSpace):
        jobs.remote.input(id, b"one more", False, 20)
    gate.write_bytes(b"")
    eventually(
        lambda: jobs.remote.input(id, b"", True, 20),
        "the queue never got empty",
        holds=lambda _: True,
        ignoring=errors.NoSpace,
    )
    assert jobs.ended(id).stdout.strip() == str(QUEUE_BYTES).encode()


def test_several_daemons_may_send(jobs: Jobs) -> None:
    id = jobs.start(Launch(new_id(), b"cat", stdin=OPEN))
    spools = [RemoteJobs(jobs.transport, jobs.helpers) for _ in range(4)]

    def send(number: int) -> None:
        for count in range(8):
            spools[number].input(id, b"%d %d\n" % (number, count), False, 60)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    jobs.remote.input(id, b"", True, 20)
    lines = [line.split() for line in jobs.ended(id).stdout.splitlines()]
    for number in range(4):
        assert [int(count) for own, count in lines if int(own) == number] == list(range(8))


def test_input_stays_in_no_file(jobs: Jobs, home: Path) -> None:
    id = jobs.start(Launch(new_id(), b"cat >/dev/null; echo read; sleep 1000", stdin=OPEN))
    jobs.remote.input(id, b"hidden-" * 10, True, 20)
    jobs.await_that(id, lambda read: read.stdout == b"read\n")
    files = [path for path in home.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hidden-" in path.read_bytes()]
