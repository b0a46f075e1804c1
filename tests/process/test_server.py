"""The HTTP server by itself: which clients it drops, which it waits for, and that slow readers use no memory."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from connmgr.api.auth import Caller
from connmgr.api.context import HAND_OVER
from connmgr.api.services import STOPS
from connmgr.computing import Computing, Rests
from connmgr.daemon import channel, parser, server
from connmgr.daemon.parser import Bodies
from connmgr.daemon.server import PENDING_OUTPUT_BYTES, Server, Threads, bind, url_of
from connmgr.errors import StartupError
from connmgr.fs.bodies import BlobSpool
from connmgr.secrets.principals import Access
from connmgr.shares import Shares, of_tokens
from tests.deadlines import eventually, eventually_raises

Application = Callable[..., Iterable[bytes]]
IDLE_SECONDS = 0.3
ANSWER_SECONDS = 10.0
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


class OfToken(Caller):
    """A sender with the token ``token``."""

    has_ended = False

    @property
    def ended(self) -> bool:
        return self.has_ended

    @property
    def holder(self) -> str | None:
        return "token"


def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


def server_of(application: Application, bound: socket.socket, spools: Path) -> Server:
    bodies = Bodies("/upload", lambda _: BlobSpool(spools), 1_000_000, Shares(100_000, 100_000))
    owner = Caller("owner", Access(), 0.0)
    return Server(
        application,
        bound,
        slots=2,
        max_body=100_000,
        sender_of={"good": owner, "token": OfToken("token", Access(), 0.0)}.get,
        bodies=bodies,
        computing=Computing(),
    )


@pytest.mark.parametrize("slots", [1, 64, 190, 1000])
def test_a_token_has_a_thread_for_each_of_its_slots_and_some_for_quick_requests(slots: int) -> None:
    threads = slots + STOPS + server.QUICK_THREADS + server.KEEP_ALIVE_THREADS
    assert server._thread_shares(slots + STOPS, threads).one == of_tokens(slots)[0] + server.QUICK_THREADS


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., tuple[str, int]]]:
    """A function that serves an application in this process, with short timeouts, and returns its address."""
    monkeypatch.setattr(parser, "RECEIVE_SECONDS", IDLE_SECONDS)
    for module, name in ((channel, "STALL_SECONDS"), (channel, "IDLE_SECONDS"), (channel, "LINGER_SECONDS")):
        monkeypatch.setattr(module, name, IDLE_SECONDS)
    running: list[tuple[Server, threading.Thread, threading.Event]] = []

    def start(application: Application = answer) -> tuple[str, int]:
        bound = bind("127.0.0.1", 0)
        served = server_of(application, bound, tmp_path)
        over = threading.Event()
        thread = threading.Thread(target=served.run, args=(over.is_set,))
        thread.start()
        running.append((served, thread, over))
        found: tuple[str, int] = bound.getsockname()
        return found

    yield start
    for served, thread, over in running:
        over.set()
        served.pull_trigger()
        thread.join(ANSWER_SECONDS)
        served.shut_down()


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=ANSWER_SECONDS)


def assert_dropped(connection: socket.socket) -> None:
    try:
        assert connection.recv(1000) == b""
    except ConnectionResetError:
        return


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST / HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123",
    ],
)
def test_a_client_that_falls_silent_is_dropped(serve: Any, sent: bytes) -> None:
    with connect(serve()) as connection:
        connection.sendall(sent)
        assert_dropped(connection)


def test_a_client_that_sends_byte_by_byte_is_dropped(serve: Any) -> None:
    with connect(serve()) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nX: ")
        eventually_raises(lambda: connection.sendall(b"x"), OSError, "it still takes bytes", seconds=ANSWER_SECONDS)


def test_a_client_that_waits_for_its_answer_is_not_dropped(serve: Any) -> None:
    maintained = threading.Semaphore(0)

    def slow(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # Until a silent client that came meanwhile has been dropped.
        with connect(address) as silent:
            assert_dropped(silent)
        maintained.release()
        return answer(environ, start_response)

    address = serve(slow)
    with connect(address) as connection:
        connection.sendall(REQUEST)
        received = b""
        while chunk := b"" if received.endswith(b"\r\n\r\nok") else connection.recv(1000):
            received += chunk
        assert received.endswith(b"\r\n\r\nok")
    assert maintained.acquire(timeout=ANSWER_SECONDS)


def test_a_client_that_does_not_read_pauses_its_writer_and_is_dropped(serve: Any) -> None:
    written = []
    ended = threading.Event()

    def endless(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        try:
            for _ in range(10_000):
                written.append(100_000)
                yield b"x" * 100_000
        finally:
            ended.set()

    with connect(serve(endless)) as connection:
        connection.sendall(REQUEST)
        assert ended.wait(ANSWER_SECONDS)
        buffers = 16 * 1024 * 1024
        assert sum(written) < PENDING_OUTPUT_BYTES + buffers


def test_a_client_s_disconnection_is_noticed_while_its_request_runs(serve: Any) -> None:
    seen = threading.Event()

    def watching(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        entered.set()
        eventually(environ["waitress.client_disconnected"], "the client seems to be there", seconds=ANSWER_SECONDS)
        seen.set()
        return answer(environ, start_response)

    entered = threading.Event()
    address = serve(watching)
    with connect(address) as connection:
        connection.sendall(REQUEST)
        assert entered.wait(ANSWER_SECONDS)
    assert seen.wait(ANSWER_SECONDS)


def test_a_request_that_waits_for_a_thread_is_dropped_when_its_client_leaves(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUICK_THREADS", "KEEP_ALIVE_THREADS", "OWNER_THREADS"):
        monkeypatch.setattr(server, name, 0)
    entered, queued, gate, served = threading.Semaphore(0), threading.Semaphore(0), threading.Event(), list[str]()
    add_task = Threads.add_task

    def counting(threads: Threads, task: Any) -> None:
        add_task(threads, task)
        queued.release()

    monkeypatch.setattr(Threads, "add_task", counting)

    def holding(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        served.append(environ["PATH_INFO"])
        entered.release()
        if environ["PATH_INFO"] == "/held":
            gate.wait(ANSWER_SECONDS)
        return answer(environ, start_response)

    def sent(path: str) -> socket.socket:
        connection = connect(address)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return connection

    address = serve(holding)
    # The fixture's server has two threads without the others.
    holders = [sent("/held") for _ in range(2)]
    for _ in holders:
        assert entered.acquire(timeout=ANSWER_SECONDS)
    gone, stays = sent("/gone"), sent("/stays")
    for _ in (*holders, gone, stays):
        assert queued.acquire(timeout=ANSWER_SECONDS)
    gone.close()
    gate.set()
    read_answers(stays, 1)
    assert served == ["/held", "/held", "/stays"]
    for connection in (*holders, stays):
        connection.close()


@pytest.fixture
def patient(serve: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``serve`` with long timeouts, for clients that a busy machine may delay."""
    monkeypatch.setattr(parser, "RECEIVE_SECONDS", ANSWER_SECONDS)
    for module, name in ((channel, "STALL_SECONDS"), (channel, "IDLE_SECONDS"), (channel, "LINGER_SECONDS")):
        monkeypatch.setattr(module, name, ANSWER_SECONDS)
    return serve


def read_answers(connection: socket.socket, number: int) -> bytes:
    received = b""
    while received.count(b"\r\n\r\nok") < number:
        piece = connection.recv(1000)
        assert piece, f"closed after {received!r}"
        received += piece
    return received


def naming_threads(seen: list[int]) -> Application:
    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        seen.append(threading.get_ident())
        return answer(environ, start_response)

    return application


def test_a_request_that_is_answered_at_once_does_not_count_as_data_behind_itself(
    patient: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    alone: list[bool] = []

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        alone.append(HAND_OVER in environ)
        asked.set()
        return answer(environ, start_response)

    def add_task(self: Server, task: Any, _original: Callable[..., None] = Server.add_task) -> None:
        _original(self, task)
        # The thread that answers is as far as it gets before the main thread goes on.
        asked.wait(0.2)

    monkeypatch.setattr(Server, "add_task", add_task)
    with connect(patient(application)) as connection:
        connection.sendall(REQUEST)
        read_answers(connection, 1)
    assert alone == [True]


def test_immediate_further_requests_are_answered_by_the_same_thread(
    patient: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "KEEP_ALIVE_SECONDS", ANSWER_SECONDS)
    seen: list[int] = []
    with connect(patient(naming_threads(seen))) as connection:
        for _ in range(5):
            connection.sendall(REQUEST)
            read_answers(connection, 1)
        connection.sendall(REQUEST * 5)
        read_answers(connection, 5)
        for start in range(len(REQUEST)):
            connection.sendall(REQUEST[start : start + 1])
        read_answers(connection, 1)
    assert len(seen) == 11
    assert len(set(seen)) == 1


def test_a_further_request_that_comes_late_or_in_pieces_is_answered(patient: Any) -> None:
    with connect(patient()) as connection:
        for pause in (0.0, 2 * channel.KEEP_ALIVE_SECONDS, 0.0, channel.KEEP_ALIVE_SECONDS):
            connection.sendall(REQUEST[:30])
            time.sleep(pause)
            connection.sendall(REQUEST[30:])
            read_answers(connection, 1)
            time.sleep(pause)


def test_a_client_that_sends_without_pause_does_not_starve_others(
    patient: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "QUICK_THREADS", -1)
    monkeypatch.setattr(server, "KEEP_ALIVE_THREADS", 0)
    seen: list[int] = []
    enough = threading.Event()
    address = patient(naming_threads(seen))

    def talk() -> None:
        with connect(address) as connection:
            while not enough.is_set():
                connection.sendall(REQUEST * 20)
                read_answers(connection, 20)

    talker = threading.Thread(target=talk)
    talker.start()
    try:
        for _ in range(20):
            with connect(address) as connection:
                connection.sendall(REQUEST)
                read_answers(connection, 1)
    finally:
        enough.set()
        talker.join(ANSWER_SECONDS)
    assert len(set(seen)) == 1, "there was more than one thread"


def test_100_continue_is_sent_after_earlier_answers(patient: Any) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    with connect(patient()) as connection:
        connection.sendall(REQUEST + head)
        received = b""
        while not received.endswith(b"\r\n\r\nokHTTP/1.1 100 Continue\r\n\r\n"):
            piece = connection.recv(1000)
            assert piece, received
            received += piece
        connection.sendall(b"{}")
        read_answers(connection, 1)


def test_a_client_that_shuts_down_its_output_gets_its_answer(patient: Any) -> None:
    with connect(patient()) as connection:
        connection.sendall(REQUEST)
        connection.shutdown(socket.SHUT_WR)
        read_answers(connection, 1)
        assert_dropped(connection)


def test_the_main_thread_does_not_read_a_client_that_another_thread_reads(tmp_path: Path) -> None:
    served = server_of(answer, bind("127.0.0.1", 0), tmp_path)
    here, there = socket.socketpair()
    with here, closing(served):
        client = channel.ClientChannel(served, there, ("", 0), served.adj, {})
        client.keeps_alive = True
        here.sendall(REQUEST)
        client.handle_read()
        assert there.recv(len(REQUEST), socket.MSG_PEEK) == REQUEST, "two threads read one client"
        there.recv(len(REQUEST))
        client.keeps_alive = False
        client.handle_read()
        assert client.connected, "a client is closed because another thread has read what it sent"
        here.close()
        client.handle_read()
        assert not client.connected


@pytest.mark.parametrize(
    ("ended", "silence"), [(False, channel.IDLE_SECONDS), (True, channel.ENDED_SECONDS)], ids=["valid", "ended"]
)
def test_a_request_that_has_come_is_answered_although_its_client_was_silent(
    tmp_path: Path, silence: float, *, ended: bool
) -> None:
    served = server_of(answer, bind("127.0.0.1", 0), tmp_path)
    here, there = socket.socketpair()
    with here, closing(served):
        client = channel.ClientChannel(served, there, ("", 0), served.adj, {})
        client.caller = sender = OfToken("token", Access(), 0.0)
        sender.has_ended = ended
        last = client.last_activity
        assert not client.overdue(last + silence), "a client that may ask at once is closed"
        assert client.overdue(last + silence + 1)
        here.sendall(REQUEST)
        assert not client.overdue(last + silence + 1), "a request that was not read yet gets no answer"
        client.handle_close()


def test_the_answer_after_a_token_s_end_is_the_last_one(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = b"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: token\r\nContent-Length: 2\r\n\r\n{}"
    with connect(serve()) as connection:
        connection.sendall(request)
        assert b"Connection: close" not in read_answers(connection, 1)
        monkeypatch.setattr(OfToken, "has_ended", True)
        connection.sendall(request)
        assert b"Connection: close" in read_answers(connection, 1)
        assert_dropped(connection)


def test_a_token_s_end_ends_its_upload_and_makes_room_for_others(tmp_path: Path) -> None:
    served = server_of(answer, bind("127.0.0.1", 0), tmp_path)
    here, there = socket.socketpair()
    with here, closing(served):
        client = channel.ClientChannel(served, there, ("", 0), served.adj, {})
        client.caller = sender = OfToken("token", Access(), 0.0)
        client.request = client.parser_class(served.adj)
        client.request.is_upload = True
        assert (client.overdue(time.time()), client.rank) == (False, 1)
        sender.has_ended = True
        assert (client.overdue(time.time()), client.rank) == (True, 0)
        client.handle_close()


def test_few_of_many_requests_are_parsed_before_they_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = server_of(answer, bind("127.0.0.1", 0), tmp_path)
    monkeypatch.setattr(served, "add_task", lambda _: None)
    here, there = socket.socketpair()
    with here, there, closing(served):
        client = channel.ClientChannel(served, there, ("", 0), served.adj, {})
        for _ in range(3):
            client.received(REQUEST * 1000)
        assert len(client.requests) == channel.PARSED_AT_ONCE
        assert client.request is None
        client.handle_close()


def test_all_of_many_requests_are_answered_whatever_pieces_they_come_in(serve: Any) -> None:
    with connect(serve(answer)) as connection:
        sent, received = REQUEST * 500, b""
        for start in range(0, len(sent), 5001):
            connection.sendall(sent[start : start + 5001])
        while received.count(b"HTTP/1.1 200") < 500:
            piece = connection.recv(1 << 20)
            assert piece, received[-500:]
            received += piece


def test_empty_lines_without_end_are_refused_at_once(tmp_path: Path) -> None:
    served = server_of(answer, bind("127.0.0.1", 0), tmp_path)
    here, there = socket.socketpair()
    with here, there, closing(served):
        client = channel.ClientChannel(served, there, ("", 0), served.adj, {})
        parser = client.parser_class(served.adj)
        assert parser.received(b"\r\n" * 10_000) == 20_000
        assert parser.error is not None
        parser = client.parser_class(served.adj)
        parser.received(b"\r\n" * 3 + REQUEST)
        assert (parser.error, parser.headers_finished) == (None, True)
        client.handle_close()


def test_many_clients_are_accepted_in_one_turn_of_the_loop(tmp_path: Path) -> None:
    with contextlib.ExitStack() as flood:
        served = server_of(answer, bind("127.0.0.1", 0), tmp_path)
        flood.callback(served.shut_down)
        for _ in range(50):
            flood.enter_context(connect(served.socket.getsockname()))
        served.handle_accept()
        assert len(served.active_channels) == 50, "each client costs a turn, in which all others are polled"


def test_nothing_is_ever_written_to_a_temporary_file(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a temporary file")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    received = []

    def echo(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        received.append(len(environ["wsgi.input"].read()))
        start_response("200 OK", [("Content-Length", str(8 * PENDING_OUTPUT_BYTES))])
        return [b"x" * (8 * PENDING_OUTPUT_BYTES)]

    with connect(serve(echo)) as connection:
        body = b"x" * 99_000
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: good\r\nContent-Length: 99000\r\n\r\n" + body)
        got = 0
        while got < 8 * PENDING_OUTPUT_BYTES:
            chunk = connection.recv(1 << 20)
            assert chunk
            got += len(chunk)
    assert received == [99_000]


def test_a_port_that_is_taken_is_refused_in_one_line() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"Port {port} of 127.0.0.1 is taken"):
            bind("127.0.0.1", port)


def test_a_bound_port_cannot_be_taken_by_another_program() -> None:
    with socket.socket() as before, socket.socket() as after:
        for other in (before, after):
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        before.bind(("127.0.0.1", 0))
        with bind(*before.getsockname()) as bound:
            with pytest.raises(OSError, match="in use"):
                before.listen()
            with pytest.raises(OSError, match="in use"):
                after.bind(bound.getsockname())


@pytest.mark.parametrize("host", ["192.0.2.1", "name.invalid", "a" * 300, "\u00e4" * 70])
def test_a_foreign_address_is_refused_in_one_line(host: str) -> None:
    with pytest.raises(StartupError, match=r"Cannot listen|cannot be resolved"):
        bind(host, 0)


def test_the_url_of_an_ipv6_address_has_brackets() -> None:
    try:
        bound = bind("::1", 0)
    except StartupError:
        return
    with bound:
        assert url_of(bound) == f"http://[::1]:{bound.getsockname()[1]}"


def test_waking_a_server_after_its_shutdown_writes_to_no_reused_descriptor(tmp_path: Path) -> None:
    served = server_of(answer, bind("127.0.0.1", 0), tmp_path)
    served.shut_down()
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(8)]
        for one in (end for pair in pairs for end in pair):
            stack.enter_context(one)
            one.setblocking(False)
        served.pull_trigger()
        for one in (end for pair in pairs for end in pair):
            with pytest.raises(BlockingIOError):
                one.recv(1)


def test_a_stale_poll_does_not_read_what_a_stream_was_sent() -> None:
    near, far = socket.socketpair()
    polled = object.__new__(channel.ClientChannel)
    polled._receiving = threading.Lock()
    polled.socket = near
    with far, near, polled.hand_over() as handed:
        far.sendall(b"the first message")
        polled._read_once()
        assert handed.recv(100) == b"the first message"


def test_a_request_that_comes_while_its_thread_leaves_is_answered_once(tmp_path: Path) -> None:
    queued: list[bool] = []

    class Leaving(channel.ClientChannel):
        """A channel that gets a request from the main thread when its own thread stops answering."""

        leaves = False
        main = threading.Thread()

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "keeps_alive" and value is False:
                self.main = threading.Thread(target=self.received, args=(REQUEST,))
                self.main.start()
                # It comes through now, unless it has to wait for this thread.
                self.main.join(0.2)

        def _answer(self, request: object) -> bool:
            self.requests.pop(0)
            return True

        def _next_arrives(self) -> bool:
            return False

    near, far = socket.socketpair()
    bound = bind("127.0.0.1", 0)
    served = server_of(answer, bound, tmp_path)
    try:
        left = Leaving(served, near, ("localhost", 0), served.adj, map={})
        served.task_dispatcher.add_task = lambda _: queued.append(left.keeps_alive)  # type: ignore[assignment]
        left.received(REQUEST)
        assert queued == [False]
        left.service()
        left.main.join(ANSWER_SECONDS)
        assert queued == [False, False], "two threads answer one request"
        left.handle_close()
    finally:
        far.close()
        served.shut_down()


def test_a_client_is_gone_that_the_main_thread_closes_while_it_is_looked_at() -> None:
    near, far = socket.socketpair()

    class Closed(socket.socket):
        def fileno(self) -> int:
            number = super().fileno()
            self.close()
            return number

    looked_at = object.__new__(channel.ClientChannel)
    looked_at.socket = Closed(fileno=near.detach())
    with far:
        assert looked_at.check_client_disconnected()


@pytest.mark.parametrize(("credential", "rests"), [("token", True), ("good", False), ("none", False)])
def test_a_token_s_clients_rest_between_readings_and_others_do_not(
    serve: Any, monkeypatch: pytest.MonkeyPatch, credential: str, *, rests: bool
) -> None:
    rested: list[str | None] = []

    def after(_: Rests, holder: str | None, used: float) -> float:
        assert used > 0
        rested.append(holder)
        return channel.SHORTEST_REST_SECONDS if holder else 0.0

    monkeypatch.setattr(Rests, "after", after)
    monkeypatch.setattr(Rests, "are_due", True)
    with connect(serve()) as connection:
        head = f"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: {credential}\r\nContent-Length: 60000\r\n\r\n"
        connection.sendall(head.encode())
        eventually(lambda: rested, "the head of the request is not read")
        connection.sendall(bytes(60_000))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert ("token" in rested) == rests


def test_nothing_is_read_from_a_client_that_rests(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[channel.ClientChannel] = []
    begin = channel.ClientChannel.__init__

    def note(self: channel.ClientChannel, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(channel.ClientChannel, "__init__", note)
    with connect(serve()) as connection:
        eventually(lambda: made, "the client is not accepted")
        assert made[0].readable()
        made[0].rests_until = time.monotonic() + ANSWER_SECONDS
        assert not made[0].readable()
        made[0].rests_until = 0.0
        connection.sendall(REQUEST)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
