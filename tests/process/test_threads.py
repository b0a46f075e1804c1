"""The threads that serve requests: how many there are, and which requests wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest
from waitress.task import ThreadedTaskDispatcher

from connmgr.daemon.server import Threads
from connmgr.shares import Shares
from tests.conftest import StartDaemon
from tests.deadlines import DEADLINE_SECONDS


class Request:
    """A task that lasts until ``let_go`` is set."""

    queued = False

    def __init__(self, holder: str | None = None) -> None:
        self.holder = holder
        self.begun, self.let_go = threading.Event(), threading.Event()

    def service(self) -> None:
        self.begun.set()
        assert self.let_go.wait(DEADLINE_SECONDS)

    def cancel(self) -> None:
        self.let_go.set()


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(3, Shares(2, 2))
    yield threads
    threads.shutdown(timeout=DEADLINE_SECONDS)
    assert not threads.threads


def test_each_request_has_a_thread_until_there_are_enough(threads: Threads) -> None:
    assert not threads.threads
    requests = [Request() for _ in range(4)]
    for request in requests:
        threads.add_task(request)
    assert all(request.begun.wait(DEADLINE_SECONDS) for request in requests[:3])
    assert len(threads.threads) == 3
    assert not requests[3].begun.is_set()
    requests[0].let_go.set()
    assert requests[3].begun.wait(DEADLINE_SECONDS), "the fourth waits for a thread in vain"
    for request in requests:
        request.let_go.set()


def test_a_token_s_requests_wait_for_its_own_and_leave_a_thread_to_the_owner(threads: Threads) -> None:
    token, owner = [Request("token") for _ in range(4)], Request()
    for request in (*token, owner):
        threads.add_task(request)
    assert all(request.begun.wait(DEADLINE_SECONDS) for request in (*token[:2], owner)), "the owner waits"
    assert not any(request.begun.is_set() for request in token[2:])
    assert threads.crowded("token")
    assert not threads.crowded(None), "the owner's thread makes room for a token's share"
    for request in token:
        request.let_go.set()
    assert all(request.begun.wait(DEADLINE_SECONDS) for request in token), "a held back request is never answered"
    owner.let_go.set()


def test_a_request_waits_where_the_system_allows_no_thread(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Request(), Request()
    threads.add_task(first)
    assert first.begun.wait(DEADLINE_SECONDS)

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadedTaskDispatcher, "start_new_thread", refuse)
    threads.add_task(second)
    assert (len(threads.threads), threads.active_count) == (1, 1)
    first.let_go.set()
    assert second.begun.wait(DEADLINE_SECONDS), "the second waits for a thread that does not exist"
    second.let_go.set()


def test_a_new_daemon_has_few_threads(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    daemon.client.daemon.status()
    assert psutil.Process(daemon.pid).num_threads() < 20
