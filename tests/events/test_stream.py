"""The stream itself: what came meanwhile, what was missed, slow readers, its end, and what it costs the daemon."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import psutil
import pytest

from connmgr.api import listeners
from connmgr.api.auth import Caller
from connmgr.api.listeners import LinesClient, Listener, Listeners
from connmgr.computing import Computing, Pace, Rests
from connmgr.events import Events, Happening
from connmgr.pipes.streams import Streams
from connmgr.secrets.principals import Access
from tests.api.wire import add, client_of, talk, token_of
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.events.listening import Line, Listening, ListeningSocket

STREAMS = 50


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose events no other test causes."""
    running = Daemon(tmp_path_factory.mktemp("watched"))
    yield running
    running.stop()


def test_a_stream_goes_on_after_a_number(watched: Daemon) -> None:
    secret = token_of(watched)
    with client_of(watched) as client, Listening(watched.url, secret) as first:
        one = add(client, "first", type="ssh", host="first.example")
        number = first.until("connection", "added")["number"]
        first.close()
        other = add(client, "second", type="ssh", host="second.example")
        with Listening(watched.url, secret, after=number) as second:
            assert second.begun["number"] == number
            line = second.line()
            assert (line["connection"], line["number"]) == (other, number + 1)
            client.connection.remove([one])
            assert second.line()["connection"] == one
        with Listening(watched.url, secret, after=first.begun["number"], kinds=["job"]) as third:
            job = client.jobs
            client.shell.start(client.connection.query("local machine")[0])
            id = job.start(client.connection.query("local machine")[0], "exit 0").id
            # The other kinds are passed over.
            assert third.line()["id"] == id


@pytest.mark.parametrize("number", [1, 1 << 52])
def test_an_unknown_number_is_missed(watched: Daemon, number: int) -> None:
    with Listening(watched.url, token_of(watched), after=number) as stream:
        missed = stream.line()
        assert (missed["kind"], missed["change"]) == ("stream", "missed")
        with client_of(watched) as client:
            add(client, f"after {number}", type="ssh", host=f"{number}.example")
        assert stream.until("connection", "added")["number"] > missed["number"]


def test_the_daemons_stop_ends_the_stream_and_its_restart_is_missed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with ListeningSocket(daemon.url, token_of(daemon)) as in_browser, Listening(daemon.url, token_of(daemon)) as stream:
        number = in_browser.line()["number"]
        daemon.stop()
        lines = [stream.rest()[-1], in_browser.rest()[-1]]
        assert [(line["change"], line["code"]) for line in lines] == [("ended", "stopping")] * 2
        assert in_browser.code == 1001
    again = start_daemon(home=daemon.home)
    with Listening(again.url, token_of(again), after=number) as stream:
        missed = stream.line()
        assert missed["change"] == "missed"
        assert missed["number"] > number


def test_a_faulty_request_is_told_in_a_line(watched: Daemon) -> None:
    with ListeningSocket(watched.url, token_of(watched), kinds=["weather"]) as stream:
        [line] = stream.rest()
        assert (line["change"], line["code"]) == ("ended", "invalid_request")
        assert stream.code == 1008
    with ListeningSocket(watched.url, token_of(watched)) as stream:
        assert stream.line()["change"] == "begun"
        stream.stream.write(b"data")
        stream.rest()
        assert stream.code == 1008
    for kinds in ([], ["job", "job", 1], "job"):
        body = json.dumps({"kinds": kinds}).encode()
        assert b'"code":"invalid_request"' in request(watched, body)


def request(daemon: Daemon, body: bytes, version: str = "1.1", behind: bytes = b"") -> bytes:
    head = f"POST /event/stream HTTP/{version}\r\nHost: localhost:{daemon.url.rpartition(':')[2]}\r\n"
    head += f"Authorization: Bearer {token_of(daemon)}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return talk(daemon.url, head.encode() + body + behind)


def test_a_request_with_another_behind_it_is_refused(watched: Daemon) -> None:
    behind = b"GET /daemon/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert b'"code":"invalid_request"' in request(watched, b"{}", behind=behind)


def test_fifty_streams_need_no_thread_of_their_own(watched: Daemon) -> None:
    process, secret = psutil.Process(watched.pid), token_of(watched)
    with Listening(watched.url, secret), client_of(watched) as client, ExitStack() as open_streams:
        add(client, "warm", type="ssh", host="warm.example")
        before = process.num_threads()
        many = [open_streams.enter_context(Listening(watched.url, secret)) for _ in range(STREAMS)]
        id = add(client, "crowd", type="ssh", host="crowd.example")
        for stream in many:
            stream.until("connection", "added", connection=id)
        # waitress adds threads for requests, and the loop for its tasks; none is added for each stream.
        eventually(
            lambda: process.num_threads() - before, "streams hold threads", holds=lambda more: more < STREAMS // 2
        )


class Stage:
    """Listeners in this process, for the owner alone, who sees all."""

    def __init__(self, kept: int) -> None:
        self.events = Events(kept)
        self.streams = Streams(Computing(), Pace())
        self.listeners = Listeners(self.events, self.streams, None, lambda *_: None)  # type: ignore[arg-type]
        self.owner = Caller("owner", Access(), 0.0)

    def listen(
        self, after: int | None = None, kinds: tuple[str, ...] = ("job",), caller: Caller | None = None
    ) -> Reader:
        """Return the reading side of a new listener."""
        near, far = socket.socketpair()
        # A small buffer is full soon.
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connect = partial(LinesClient, near, b"", chunked=False)
        self.listeners.begin(caller or self.owner, kinds, after, connect)
        return Reader(far)

    def tell(self, number: int) -> None:
        """Publish events that take some room."""
        for _ in range(number):
            self.events.publish("job", "started", "c" * 36, "j" * 36, name="n" * 200)

    def on_loop(self, look: Callable[[], Any]) -> Any:
        """Return what ``look`` returns in the loop's thread."""
        found: list[Any] = []
        seen = threading.Event()
        self.streams.loop.call(lambda: (found.append(look()), seen.set()))
        assert seen.wait(DEADLINE_SECONDS)
        return found[0]


class Reader:
    """Reads lines from a socket when asked."""

    def __init__(self, far: socket.socket) -> None:
        far.settimeout(DEADLINE_SECONDS)
        self.socket = far
        self._file = far.makefile("rb")

    def line(self) -> Line:
        line: Line = json.loads(self._file.readline())
        return line

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(kept=2000)
    yield made
    made.streams.stop(DEADLINE_SECONDS)
    made.streams.close(DEADLINE_SECONDS)


def test_a_slow_reader_misses_events_and_takes_no_memory(stage: Stage) -> None:
    slow, quick = stage.listen(), stage.listen()
    begun = quick.line()["number"]
    heard: list[int] = []
    for _ in range(10):
        stage.tell(1000)
        last = begun + 1000 * (len(heard) // 1000 + 1)
        while len(heard) < last - begun:
            heard.append(quick.line()["number"])
    # The other one has each of them, in order.
    assert heard == list(range(begun + 1, begun + 10_001))
    unsent = stage.on_loop(lambda: max(one._client.unsent for one in stage.listeners._open))
    assert 0 < unsent < 2 * listeners.FULL_BYTES + listeners.BATCH * 500
    numbers, missed = [slow.line()["number"]], 0
    while numbers[-1] < begun + 10_000:
        line = slow.line()
        missed += line["change"] == "missed"
        numbers.append(line["number"])
    assert missed == 1
    assert numbers == sorted(numbers)
    stage.tell(1)
    assert slow.line()["number"] == begun + 10_001
    slow.close()
    quick.close()


def test_a_client_that_does_not_read_is_left(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "STALL_SECONDS", 0.0)
    reader = stage.listen()
    reader.line()
    stage.tell(1000)
    eventually_equal(lambda: stage.on_loop(lambda: len(stage.listeners._open)), 0, "the silent client is kept")
    reader.close()


def test_a_quiet_stream_shows_that_it_is_alive(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "ALIVE_SECONDS", 0.0)
    reader = stage.listen(kinds=("terminal",))
    begun = reader.line()["number"]
    stage.tell(3)
    alive = eventually(reader.line, "the numbers of other kinds stay unknown", holds=lambda one: one["number"] > begun)
    assert (alive["change"], alive["number"]) == ("alive", begun + 3)
    reader.close()


def test_a_client_that_leaves_is_forgotten(stage: Stage) -> None:
    reader = stage.listen()
    reader.line()
    assert stage.events.listens
    reader.close()
    eventually(lambda: not stage.events.listens, "a client that has left still listens")
    stage.tell(1)


def test_the_ring_tells_all_after_a_number_or_nothing() -> None:
    events = Events(kept=3)
    began = events.last
    assert events.after(began) == []
    assert events.after(began - 1) is None
    assert events.after(began + 1) is None
    for kind in "abcd":
        events.publish(kind, "started")
    assert events.after(began) is None

    def kinds(after: int) -> list[str]:
        found: list[Happening] | None = events.after(after)
        assert found is not None
        return [one.kind for one in found]

    assert kinds(began + 1) == ["b", "c", "d"]
    assert kinds(began + 3) == ["d"]
    assert kinds(began + 4) == []


def test_events_are_heard_though_the_system_had_no_thread_left(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[object] = []

    def refuse(task: object) -> None:
        refused.append(task)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(listeners, "TICK_SECONDS", 0.01)
    reader = stage.listen()
    begun = reader.line()["number"]
    with monkeypatch.context() as exhausted:
        exhausted.setattr(stage.streams.loop, "work", refuse)
        stage.tell(1)
        eventually(lambda: len(refused) > 2, "nothing is tried again")
    assert reader.line()["number"] == begun + 1
    reader.close()


def test_a_failed_filter_ends_the_stream_with_a_line(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("made up")

    reader = stage.listen()
    reader.line()
    monkeypatch.setattr(listeners, "seen_by", fail)
    stage.tell(1)
    line = reader.line()
    assert (line["change"], line["code"]) == ("ended", "internal")
    reader.close()


class TokenCaller(Caller):
    """A caller with a token of its own, named as the caller."""

    @property
    def token(self) -> str | None:
        return self.name


class HolderCaller(TokenCaller):
    """The same, with a share of its own."""

    @property
    def holder(self) -> str | None:
        return self.name


def test_many_clients_of_a_token_are_told_in_turns_between_which_it_rests(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[str | None] = []

    def after(_: Rests, holder: str | None, used: float) -> float:
        rested.append(holder)
        return 0.001

    monkeypatch.setattr(Rests, "after", after)
    monkeypatch.setattr(listeners, "seen_by", lambda _asking, _authorisation, one: one)
    filter_all = stage.listeners._filter_all

    def filter_while_the_loop_waits(waiting: Sequence[tuple[Listener, int]]) -> None:
        # Otherwise a quick loop tells each client before the next one is in line, and there is nothing to rest from.
        filtered = threading.Event()
        stage.streams.loop.call(lambda: filtered.wait(DEADLINE_SECONDS))
        filter_all(waiting)
        filtered.set()

    monkeypatch.setattr(stage.listeners, "_filter_all", filter_while_the_loop_waits)
    readers = [stage.listen(caller=HolderCaller("token", Access(), 0.0)) for _ in range(3 * listeners.TOLD_AT_ONCE)]
    owner = stage.listen()
    begun = [reader.line()["number"] for reader in (*readers, owner)]
    stage.tell(2)
    assert [owner.line()["number"] for _ in range(2)] == [begun[-1] + 1, begun[-1] + 2]
    for reader in readers:
        assert [reader.line()["number"] for _ in range(2)] == [begun[-1] + 1, begun[-1] + 2]
    # Each has two lines.
    assert len(rested) >= 6
    assert set(rested) == {"token"}
    stage.tell(1)
    assert {reader.line()["number"] for reader in readers} == {begun[-1] + 3}, "some hear an event twice or never"
    for reader in (*readers, owner):
        reader.close()


def test_clients_of_a_token_with_equal_wishes_cost_one_call_of_the_loop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "seen_by", lambda _asking, _authorisation, one: one)
    readers = [stage.listen(caller=HolderCaller("token", Access(), 0.0)) for _ in range(12)]
    begun = [reader.line()["number"] for reader in readers]
    told: list[int] = []
    tell_all = stage.listeners._tell_all

    def counted(deliveries: Sequence[Any]) -> None:
        told.append(len(deliveries))
        tell_all(deliveries)

    monkeypatch.setattr(stage.listeners, "_tell_all", counted)
    stage.tell(1)
    assert {reader.line()["number"] for reader in readers} == {begun[-1] + 1}
    assert told == [len(readers)]
    for reader in readers:
        reader.close()


def test_the_owner_s_request_passes_between_two_clients_of_a_token(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "seen_by", lambda _asking, _authorisation, one: one)
    readers = [stage.listen(caller=HolderCaller("token", Access(), 0.0)) for _ in range(6)]
    begun = [reader.line()["number"] for reader in readers]
    told = 0
    at_once: list[int] = []

    def before(_: Rests, holder: str | None) -> float:
        # The owner computes when two clients have been told, and again after each two.
        nonlocal told
        if told == 2:
            at_once.append(told)
            told = 0
            return 0.001
        return 0.0

    tell_now = stage.listeners._tell_now

    def counted(delivery: Any) -> None:
        nonlocal told
        told += 1
        tell_now(delivery)

    monkeypatch.setattr(Rests, "before", before)
    monkeypatch.setattr(stage.listeners, "_tell_now", counted)
    stage.tell(1)
    assert {reader.line()["number"] for reader in readers} == {begun[-1] + 1}, "some hear an event twice or never"
    assert at_once[:2] == [2, 2]
    for reader in readers:
        reader.close()


def test_the_owner_hears_before_all_is_filtered_for_tokens(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each of many tokens may see takes time; the owner sees all, and must not wait for that."""
    filtered: list[str] = []

    def see(asking: Caller, _: object, one: Happening) -> Happening:
        if asking.token is not None:
            filtered.append(asking.token)
            time.sleep(0.01)
        return one

    monkeypatch.setattr(listeners, "seen_by", see)
    monkeypatch.setattr(listeners, "PASS_SECONDS", 0.0)
    own = stage.listen()
    own.line()
    tokens = [stage.listen(caller=TokenCaller(f"token{number}", Access(), 0.0)) for number in range(20)]
    for one in tokens:
        one.line()
    stage.tell(10)
    eventually(lambda: filtered, "nobody is served")
    stage.tell(1)
    for _ in range(11):
        own.line()
    assert len(filtered) < 100
    for one in tokens:
        assert len({one.line()["number"] for _ in range(11)}) == 11
        one.close()
    own.close()
