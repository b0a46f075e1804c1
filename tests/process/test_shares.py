"""One token, or a stranger, never stops everybody: connections, bodies, slots and threads of one at its limit."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import flask
import psutil
import pytest
from marshmallow import ValidationError

from connmgr.api import body
from connmgr.api.services import LARGE_ANSWER_BYTES, LargeAnswers
from connmgr.cancellation import Cancellation
from connmgr.client import ClientError
from connmgr.computing import REST, Pace
from connmgr.daemon.channel import ENDED_SECONDS
from connmgr.daemon.server import MAX_CONNECTIONS, TOKEN_CONNECTIONS
from connmgr.errors import Busy, CommandCancelled, InvalidRequest
from connmgr.fields import Text
from connmgr.paths import socket_of
from connmgr.shares import SCAN_SECONDS, SCANNING, SCANS, Held, MemoryShares, Queues, Shares, room
from tests.api.wire import LOCAL, address, bearer, send, token_of
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.hasty import hasty
from tests.rights.wire import Holder, create

VERSION = b"POST /daemon/version HTTP/1.1\r\nHost: %b\r\nAuthorization: Bearer %b\r\nContent-Length: 0\r\n\r\n"


def version(daemon: Daemon, secret: str) -> bytes:
    return VERSION % (daemon.url.removeprefix("http://").encode(), secret.encode())


class Crowd:
    """Connections that stay open until the end of the test."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.open: list[socket.socket] = []

    def connect(self, sent: bytes) -> socket.socket:
        connection = socket.create_connection(address(self._daemon.url), DEADLINE_SECONDS)
        self.open.append(connection)
        connection.sendall(sent)
        return connection

    def ask(self, secret: str) -> bytes:
        """Connect, send one request with a token, and return the beginning of its answer; empty if it was dropped."""
        with contextlib.suppress(ConnectionError):
            return self.connect(version(self._daemon, secret)).recv(65536)
        return b""

    @property
    def alive(self) -> int:
        """The number of connections that the daemon keeps open."""
        return sum(not ended(one) for one in self.open)

    def close(self) -> None:
        for one in self.open:
            one.close()


def ended(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while poll.poll(0):
        try:
            if not connection.recv(65536):
                return True
        except ConnectionError:
            return True
    return False


@pytest.fixture
def crowd(own_daemon: Daemon) -> Iterator[Crowd]:
    with contextlib.closing(Crowd(own_daemon)) as some:
        yield some


def assert_owner_is_served(daemon: Daemon) -> None:
    """Shake hands and ask, over the port and over the Unix socket."""
    assert send(daemon.url, "/daemon/status", {}, bearer(daemon)).status == 200
    with socket.socket(socket.AF_UNIX) as beside:
        beside.settimeout(DEADLINE_SECONDS)
        beside.connect(str(socket_of(daemon.auth_file, address(daemon.url)[1])))
        beside.sendall(version(daemon, token_of(daemon)))
        assert beside.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_token_without_rights_locks_nobody_out_and_its_connections_end_with_it(
    own_daemon: Daemon, crowd: Crowd
) -> None:
    holder = create(own_daemon)
    for _ in range(MAX_CONNECTIONS - 1):
        crowd.ask(holder.secret)
    assert_owner_is_served(own_daemon)
    eventually(
        lambda: crowd.alive,
        "the token has more connections than its share",
        holds=lambda seen: seen <= TOKEN_CONNECTIONS,
    )
    assert crowd.alive
    own_daemon.client.post("/token/revoke", id=holder.id)
    eventually_equal(lambda: crowd.alive, 0, "a revoked token keeps its connections")


def test_tokens_made_with_a_token_share_its_connections(own_daemon: Daemon, crowd: Crowd) -> None:
    parent = create(own_daemon, "token.create")
    for one in [parent, parent.create(), parent.create()]:
        for _ in range(TOKEN_CONNECTIONS):
            crowd.ask(one.secret)
    eventually(
        lambda: crowd.alive, "a token's children have shares of their own", holds=lambda seen: seen <= TOKEN_CONNECTIONS
    )
    assert_owner_is_served(own_daemon)


def test_all_tokens_together_leave_connections_to_the_owner(own_daemon: Daemon, crowd: Crowd) -> None:
    for _ in range(5):
        one = create(own_daemon)
        for _ in range(TOKEN_CONNECTIONS):
            crowd.ask(one.secret)
    assert_owner_is_served(own_daemon)
    other = create(own_daemon)
    assert crowd.ask(other.secret).startswith(b"HTTP/1.1 200 "), "tokens keep another token out"


def test_silent_strangers_are_displaced(own_daemon: Daemon, crowd: Crowd) -> None:
    for _ in range(2 * MAX_CONNECTIONS):
        with contextlib.suppress(ConnectionError):
            crowd.connect(b"")
    assert_owner_is_served(own_daemon)
    assert crowd.alive <= MAX_CONNECTIONS


def unfinished(path: str, holder: Holder, length: int, came: bytes) -> bytes:
    host = holder.url.removeprefix("http://")
    lines = f"Host: {host}\r\nAuthorization: Bearer {holder.secret}\r\nContent-Type: application/json"
    return f"POST {path} HTTP/1.1\r\n{lines}\r\nContent-Length: {length}\r\n\r\n".encode() + came


def test_unfinished_bodies_of_a_token_take_its_share_of_memory(own_daemon: Daemon, crowd: Crowd) -> None:
    holder = create(own_daemon, "shell.any")
    before, piece = psutil.Process(own_daemon.pid).memory_info().rss, b" " * (4 * 1024 * 1024)
    for _ in range(40):
        with contextlib.suppress(ConnectionError):
            crowd.connect(unfinished("/shell/exec", holder, 16 * 1024 * 1024, piece))
    assert_owner_is_served(own_daemon)
    # The share is 32 MiB; the rest is what the allocator keeps.
    assert psutil.Process(own_daemon.pid).memory_info().rss - before < 80 * 1024 * 1024
    assert send(own_daemon.url, "/secret/decrypt", {"encrypted": "x" * 10_000_000}, bearer(own_daemon)).status == 400
    crowd.close()
    eventually_equal(
        lambda: holder.send("/shell/exec", connection=LOCAL, command="x" * 2_000_000).status,
        400,
        "the share is never given back",
    )


def test_lines_before_input_take_the_share_of_memory_too(own_daemon: Daemon, crowd: Crowd) -> None:
    holder = create(own_daemon, "shell.any")
    line = unfinished("/shell/exec", holder, 16 * 1024 * 1024, b" " * (3 * 1024 * 1024))
    for _ in range(20):
        with contextlib.suppress(ConnectionError):
            crowd.connect(line.replace(b"application/json", b"application/octet-stream"))
    eventually(lambda: crowd.alive, "lines of 3 MiB take more than 32 MiB", holds=lambda seen: seen <= 11)
    assert_owner_is_served(own_daemon)


@pytest.mark.parametrize(
    ("scopes", "path", "status", "code"),
    [
        ((), "/shell/exec", 403, b"scope_denied"),
        (("shell.any",), "/daemon/version", 413, b"body_too_large"),
        ((), "/fs/blob", 403, b"scope_denied"),
    ],
    ids=["no scope", "no content", "no scope for files"],
)
def test_a_large_body_is_refused_before_it_is_read(
    own_daemon: Daemon, crowd: Crowd, scopes: tuple[str, ...], path: str, status: int, code: bytes
) -> None:
    holder = create(own_daemon, *scopes)
    connection = crowd.connect(unfinished(path, holder, 1_000_000, b""))
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    assert answer.status == status
    assert code in answer.read()


def test_values_are_counted_before_any_is_built(own_daemon: Daemon) -> None:
    headers = {"Authorization": f"Bearer {create(own_daemon, 'secret.decrypt').secret}"}
    before = psutil.Process(own_daemon.pid).memory_info().rss
    bomb = b'{"encrypted": [' + b"[]," * 5_000_000 + b"[]]}"
    answer = send(own_daemon.url, "/secret/decrypt", bomb, headers)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "more than 50000 values" in answer.message
    assert psutil.Process(own_daemon.pid).memory_info().rss - before < 150 * 1024 * 1024


@pytest.mark.parametrize(
    "content", ["a,b[c]{d}" * 200_000, '"[,]"\\' * 180_000, "\\" * 600_000 + ",,,,", '\\",' * 180_000]
)
def test_punctuation_in_content_is_not_counted(content: str) -> None:
    assert body.parse(json.dumps({"content": content}).encode()) == {"content": content}


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": [' + b'"",' * 600_000 + b'""]}',
        b'{"a": [' + b"{}," * 600_000 + b"0]}",
        b'{"a": "\\\\", "b": [' + b"0," * 600_000 + b"0]}",
        b'"' * 4_000_000 + b"," * 600_000,
        b'{"a": ' + b"[" * 600_000,
    ],
    ids=["strings", "objects", "after an escape", "quotes", "levels"],
)
def test_too_many_values_are_refused_whatever_they_are(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="more than 50000 values"):
        body.parse(text)


def test_requests_that_list_connections_may_have_more_values(own_daemon: Daemon) -> None:
    holder, listed = create(own_daemon, "connection.read", "shell.any"), [LOCAL] * 60_000
    assert holder.send("/connection/info", connections=listed).status == 200
    assert "more than 50000 values" in holder.send("/shell/exec", values=listed).message


def test_the_owner_may_send_as_many_values_to_any_endpoint(own_daemon: Daemon) -> None:
    asked = {"connection": LOCAL, "command": "echo $V59999", "env": {f"V{number}": "" for number in range(60_000)}}
    assert "values" not in send(own_daemon.url, "/shell/exec", asked, bearer(own_daemon)).message
    refused = send(own_daemon.url, "/shell/exec", {"values": [0] * 500_001}, bearer(own_daemon))
    assert "more than 500000 values" in refused.message


@pytest.mark.parametrize("at", range(-3, 4))
def test_values_are_counted_right_where_pieces_of_the_text_meet(at: int) -> None:
    values = 60_000
    for escape in ("\\", '"', "\\" * 100_000):
        # A string that ends, with an escape before its end, about where the first piece of the text does.
        content = "x" * (body._PIECE - len('{"a": "') + at) + escape + "," * values
        assert body.parse(json.dumps({"a": content}).encode()) == {"a": content}
        with pytest.raises(InvalidRequest, match="more than 50000 values"):
            body.parse(json.dumps({"a": content, "b": [0] * values}).encode())


@pytest.mark.parametrize(
    ("size", "rests"),
    [
        (body.LARGE_BYTES, []),
        (body.LARGE_BYTES + 1, [REST]),
        (body.HUGE_BYTES, [REST]),
        (body.HUGE_BYTES + 1, [body.HUGE_REST]),
    ],
)
def test_the_rest_after_a_body_grows_with_its_size(size: int, rests: list[float]) -> None:
    text = b"{}".ljust(size)
    environ = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/json", "wsgi.input": io.BytesIO(text)}
    asked: list[float] = []

    def turn(rest: float) -> contextlib.AbstractContextManager[None]:
        asked.append(rest)
        return contextlib.nullcontext()

    assert body.read(environ, None, raw=False, turn=turn) == {}
    assert asked == rests


@pytest.mark.parametrize("at", range(-4, 1))
def test_a_character_may_lie_where_pieces_of_a_text_meet(at: int) -> None:
    begin = b'{"a": "'
    whole = begin + b"x" * (body._PIECE - len(begin) + at) + "\U0001f600\u00e4".encode() + b'"}'
    assert body.parse(whole)["a"].endswith("x\U0001f600\u00e4")
    broken = whole.replace("\u00e4".encode(), b"\xff")
    with pytest.raises(InvalidRequest, match=f"not UTF-8: bad byte at position {broken.index(0xFF)}"):
        body.parse(broken)
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        body.parse(whole[:-3])


@pytest.mark.parametrize("before", [0, 65_535, 65_536, 200_000])
def test_a_lone_surrogate_is_found_wherever_it_is(before: int) -> None:
    with pytest.raises(ValidationError, match="lone surrogate"):
        Text().deserialize("x" * before + "\ud800")
    assert Text().deserialize("x" * before + "\U0001f600") == "x" * before + "\U0001f600"


def test_a_token_rests_between_two_large_pieces_of_work() -> None:
    pace = Pace(longest=0.5)
    began = time.monotonic()
    with pace.turn("a", rest=1e6):
        sum(range(100_000))
    with pace.turn("a"):
        assert time.monotonic() - began >= 0.5


def test_nobody_waits_for_the_rest_of_a_token_and_no_token_is_kept_after_its_rest() -> None:
    pace = Pace(longest=100 * DEADLINE_SECONDS)
    with pace.turn("a", rest=1e9):
        sum(range(100_000))
    # Who waited would wait until the test is ended.
    for holder in ("b", None, "c"):
        with pace.turn(holder, rest=0.0):
            pass
    assert list(pace._turns) == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("daemon_program", [hasty("connmgr.daemon.channel.INFLOW_SECONDS=8")], ids=["hasty"])
def test_stalled_uploads_of_a_token_leave_slots_to_the_owner_and_end(own_daemon: Daemon, crowd: Crowd) -> None:
    holder = create(own_daemon, "fs.write")
    own_daemon.client.shell.start(LOCAL)
    for _ in range(70):
        head = unfinished(f"/fs/extract?connection={LOCAL}&path=/tmp/stalled", holder, 1_000_000, b"x")
        crowd.connect(head.replace(b"application/json", b"application/octet-stream"))
    eventually(
        lambda: own_daemon.client.daemon.status().slots.in_use,
        "the uploads do not begin",
        holds=lambda seen: seen >= 20,
    )
    assert own_daemon.client.shell.exec(LOCAL, "echo served").stdout == "served"
    eventually_equal(lambda: own_daemon.client.daemon.status().slots.in_use, 0, "stalled uploads hold slots for long")


def test_transfers_of_a_token_end_with_it_although_its_client_is_silent(
    own_daemon: Daemon, crowd: Crowd, tmp_path: Path
) -> None:
    holder, large = create(own_daemon, "fs.write", "fs.read"), tmp_path / "large"
    own_daemon.client.shell.start(LOCAL)
    with large.open("wb") as file:
        file.truncate(300 << 20)
    upload = unfinished(f"/fs/upload?connection={LOCAL}&path={tmp_path}/stalled", holder, 1_000_000, b"x")
    sending = crowd.connect(upload.replace(b"application/json", b"application/octet-stream"))
    asked = json.dumps({"connection": LOCAL, "path": str(large)}).encode()
    reading = crowd.connect(unfinished("/fs/read", holder, len(asked), asked))
    assert reading.recv(12) == b"HTTP/1.1 200"
    slots = own_daemon.client.daemon.status
    eventually_equal(lambda: slots().slots.in_use, 2, "the transfers do not begin")
    own_daemon.client.post("/token/revoke", id=holder.id)
    began = time.monotonic()
    assert sending.recv(65536).startswith(b"HTTP/1.1 403 ")
    eventually_equal(lambda: slots().slots.in_use, 0, "the transfers of a revoked token hold slots")
    assert time.monotonic() - began < 2 * ENDED_SECONDS
    assert "Traceback" not in own_daemon.stderr()


def test_a_token_runs_two_programs_at_a_time_that_read_whole_files(own_daemon: Daemon, tmp_path: Path) -> None:
    holder = create(own_daemon, "fs.read")
    own_daemon.client.shell.start(LOCAL)
    large, found = tmp_path / "large", []
    with large.open("wb") as file:
        file.truncate(300 << 20)
    asking = [
        threading.Thread(target=lambda: found.append(holder.ok("/fs/checksum", connection=LOCAL, path=str(large))))
        for _ in range(5)
    ]
    for one in asking:
        one.start()
    most = 0
    while any(one.is_alive() for one in asking):
        names = []
        for child in psutil.Process(own_daemon.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                names.append(child.name())
        most = max(most, sum(name in {"sha256sum", "openssl"} for name in names))
        time.sleep(0.005)
    assert len(found) == 5
    assert len({one["entries"][0]["sha256"] for one in found}) == 1
    assert 1 <= most <= SCANS


def test_work_of_a_token_on_one_connection_has_turns_and_the_owner_none() -> None:
    queues = Queues(1, 0.05, SCANNING)
    with queues.turn("a", "here"):
        with queues.turn("a", "there"), queues.turn("b", "here"), queues.turn(None, "here"), queues.turn(None, "here"):
            pass
        with pytest.raises(Busy, match="run there"), queues.turn("a", "here"):
            pass
    with queues.turn("a", "here"):
        pass
    assert not queues._under_way


def test_large_answers_of_a_token_are_made_one_at_a_time() -> None:
    answers = LargeAnswers(longest=0.05)
    with contextlib.ExitStack() as made:
        for holder in ("a", "b", None, None):
            made.enter_context(answers.making(holder))
        with pytest.raises(Busy, match="one after the other"), answers.making("a"):
            pass
    with answers.making("a"):
        pass


def test_answers_of_a_token_count_until_they_are_sent() -> None:
    answers = LargeAnswers(of_token=LARGE_ANSWER_BYTES * 2)
    half, whole = b"x" * LARGE_ANSWER_BYTES, b"x" * LARGE_ANSWER_BYTES * 5
    first, huge = flask.Response(half), flask.Response(whole)
    answers.count("a", first)
    answers.count("a", flask.Response(half[1:]))
    answers.count("a", flask.Response(iter([half, half, half])))
    answers.count(None, flask.Response(whole))
    with pytest.raises(Busy, match="read those first"):
        answers.count("a", huge)
    first.close()
    # Alone it may have any size, and then no other.
    answers.count("a", huge)
    with pytest.raises(Busy):
        answers.count("a", flask.Response(half))
    huge.close()
    answers.count("a", flask.Response(half))


@pytest.fixture
def wordy(own_daemon: Daemon) -> list[str]:
    """A connection with 15 KB of labels, so often that a description of all has 15 MB."""
    labels = {f"l{number}": "x" * 250 for number in range(60)}
    data = {"type": "ssh", "host": "nowhere", "user": "me"}
    added = own_daemon.client.post("/connection/add", name="wordy", data=data, labels=labels, validate=False)
    return [added["connection"]] * 1001


def test_answers_that_nobody_reads_take_a_share_of_memory(own_daemon: Daemon, crowd: Crowd, wordy: list[str]) -> None:
    holder = create(own_daemon, "connection.read")
    body = json.dumps({"connections": wordy}).encode()

    def ask() -> socket.socket:
        asked = crowd.connect(b"")
        asked.sendall(
            b"POST /connection/info HTTP/1.1\r\nHost: %b\r\nAuthorization: Bearer %b\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (own_daemon.url.removeprefix("http://").encode(), holder.secret.encode(), len(body), body)
        )
        return asked

    def status(asked: socket.socket) -> bytes:
        return asked.recv(12)

    first, second = ask(), ask()
    assert [status(first), status(second)] == [b"HTTP/1.1 200"] * 2
    refused = holder.send("/connection/info", connections=wordy)
    assert (refused.status, refused.code) == (503, "busy")
    assert holder.ok("/connection/info", connections=wordy[:1])["infos"]
    assert len(own_daemon.client.post("/connection/info", connections=wordy)["infos"]) == len(wordy)
    first.close()
    eventually_equal(lambda: status(ask()), b"HTTP/1.1 200", "nothing was given back")


def test_descriptions_are_not_repeated_without_end(own_daemon: Daemon, wordy: list[str]) -> None:
    found = own_daemon.client.post("/category/query", filter="**")["found"]
    for path, name, ids in (
        ("/connection/info", "connections", wordy * 3),
        ("/category/info", "categories", found[:1] * 300_000),
    ):
        with pytest.raises(ClientError, match=f"{name}: The answer would repeat") as refused:
            own_daemon.client.post(path, **{name: ids})
        assert refused.value.code == "invalid_request"


def test_a_client_that_leaves_waits_for_no_turn() -> None:
    queues, leaving = Queues(1, SCAN_SECONDS, SCANNING), Cancellation()
    failed: list[CommandCancelled] = []

    def wait() -> None:
        try:
            with queues.turn("a", "here", leaving):
                pass
        except CommandCancelled as error:
            failed.append(error)

    with queues.turn("a", "here"):
        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: queues._changed._waiters, "nobody waits")  # type: ignore[attr-defined]
        leaving.cancel()
        waiter.join(DEADLINE_SECONDS)
        assert failed
    assert not queues._under_way


def test_memory_is_given_back_when_nobody_has_it_any_more() -> None:
    shares = MemoryShares(2, 3)
    first, second = Held(shares, "a"), Held(shares, "a")
    assert [first.take(1), second.take(1), first.take(1)] == [True, True, False]
    kept = [second]
    del first, second
    assert Held(shares, "a").take(1), "the first one's is free"
    assert [Held(shares, "a").take(size) for size in (1, 2)] == [True, False], "the second one's is kept"
    kept.clear()
    assert Held(shares, "a").take(2)


def test_a_holder_gets_its_share_the_rest_waits_and_nothing_is_lost() -> None:
    shares = Shares(2, 3, strangers=1, owner=5)
    assert [shares.take("a") for _ in range(3)] == [True, True, False]
    assert shares.is_exhausted("a")
    assert [shares.take("b") for _ in range(2)] == [True, False], "all tokens together have 3"
    assert not shares.is_exhausted("b")
    assert [shares.take("") for _ in range(2)] == [True, False]
    assert shares.take(None, 5)
    assert not shares.take(None)
    shares.give_back("a", 2)
    assert shares.take("b")


@pytest.mark.parametrize(
    ("holder", "used", "left"),
    [
        (None, [], 80),
        (None, [("a", 30), (None, 10)], 40),
        ("a", [], 50),
        ("a", [("a", 30)], 20),
        ("a", [("b", 50)], 10),
        ("a", [("b", 50), ("c", 10)], 0),
        ("a", [(None, 70)], 10),
        ("a", [("a", 60)], -10),
    ],
)
def test_a_token_gets_five_eighths_and_all_tokens_three_quarters_of_what_is_free(
    holder: str | None, used: list[tuple[str | None, int]], left: int
) -> None:
    assert room(80, holder, used) == left
