"""The threads of a loop for tasks that may block."""

from __future__ import annotations

import threading

import pytest

from connmgr.streams.loop import Workers
from tests.deadlines import DEADLINE_SECONDS, eventually_equal


def test_as_many_threads_as_tasks_at_once_which_end_when_idle() -> None:
    workers, meeting, done = Workers(20, "test", idle_seconds=0.01), threading.Barrier(21), threading.Semaphore(0)
    for _ in range(2):
        for _ in range(20):
            assert workers.submit(lambda: meeting.wait(DEADLINE_SECONDS))
        # All of them run at once.
        meeting.wait(DEADLINE_SECONDS)
        eventually_equal(lambda: workers.threads, 0, "idle threads stay")
    for _ in range(500):
        workers.submit(done.release)
    for _ in range(500):
        assert done.acquire(timeout=DEADLINE_SECONDS), "a task is lost between two threads"
    workers.close()


def test_more_tasks_than_threads_wait_and_end_with_the_workers() -> None:
    workers, may_end, ran = Workers(2, "test"), threading.Event(), list[int]()
    begun = threading.Semaphore(0)

    def work(number: int) -> None:
        begun.release()
        may_end.wait(DEADLINE_SECONDS)
        ran.append(number)

    for number in range(4):
        workers.submit(lambda number=number: work(number))  # type: ignore[misc]
    for _ in range(2):
        assert begun.acquire(timeout=DEADLINE_SECONDS)
    assert workers.threads == 2
    workers.close()
    assert not workers.submit(lambda: ran.append(9))
    may_end.set()
    eventually_equal(lambda: workers.threads, 0, "the threads do not end")
    assert sorted(ran) == [0, 1]


def test_threads_are_used_again() -> None:
    workers, names, done = Workers(5, "test"), set[str](), threading.Semaphore(0)

    def work() -> None:
        names.add(threading.current_thread().name)
        done.release()

    for _ in range(20):
        workers.submit(work)
        assert done.acquire(timeout=DEADLINE_SECONDS)
    workers.close()
    eventually_equal(lambda: workers.threads, 0, "idle threads do not end with their workers")
    assert len(names) <= 5


def test_where_the_system_has_no_thread_left_a_task_waits_for_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers, may_end, ran = Workers(5, "test"), threading.Event(), threading.Event()
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            workers.submit(ran.set)
    assert workers.submit(lambda: may_end.wait(DEADLINE_SECONDS))
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refuse)
        assert workers.submit(ran.set)
    assert not ran.is_set()
    assert workers.threads == 1
    may_end.set()
    assert ran.wait(DEADLINE_SECONDS), "the task is lost"
    workers.close()
    eventually_equal(lambda: workers.threads, 0, "a closed one has threads")
