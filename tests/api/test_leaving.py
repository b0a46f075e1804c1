"""Clients that leave: what waits for them never runs, and what runs for them ends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from connmgr.cancellation import Cancellation
from connmgr.daemon.departures import ClientCancellation, Departures, has_left
from connmgr.errors import CommandCancelled
from tests.api.wire import LOCAL, address, bearer, client_of
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal

pytestmark = pytest.mark.needs("bash")


class World:
    """A daemon, a directory that shows what ran, and requests whose clients leave."""

    def __init__(self, daemon: Daemon, directory: Path, cleanup: ExitStack) -> None:
        self.daemon, self.directory, self._cleanup = daemon, directory, cleanup
        self.headers = bearer(daemon)
        self.gate = directory / "gate"

    def sent(self, path: str, **fields: Any) -> socket.socket:
        """Send a request, and return its connection."""
        connection = self._cleanup.enter_context(socket.create_connection(address(self.daemon.url)))
        connection.sendall(self.request(path, **fields))
        return connection

    def request(self, path: str, **fields: Any) -> bytes:
        body = json.dumps(fields).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self.daemon.url.removeprefix('http://')}\r\n"
        head += f"Authorization: {self.headers['Authorization']}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def held(self, connection: str = LOCAL) -> socket.socket:
        """Occupy the connection's shell until the gate is open."""
        begun = self.directory / "begun"
        command = f"touch {begun}; until [ -e {self.gate} ]; do sleep 0.01; done"
        holder = self.sent("/shell/exec", connection=connection, command=command, start=True)
        eventually(begun.exists, "the first command did not begin")
        return holder

    def waiting(self) -> int:
        return max((one.status.waiting for one in self.daemon.client.shell.list()), default=0)

    def in_use(self) -> int:
        return self.daemon.client.daemon.status().slots.in_use

    def trace(self, word: str) -> str:
        """Return a command that leaves a trace, a line."""
        return f"echo {word} >>{self.directory}/trace"

    def traces(self) -> list[str]:
        """Open the gate, run one more command, and return all lines."""
        self.gate.touch()
        self.daemon.client.shell.exec(LOCAL, self.trace("last"), start=True)
        eventually_equal(self.in_use, 0, "requests still wait")
        return self.begun()

    def begun(self) -> list[str]:
        """Return the lines so far."""
        trace = self.directory / "trace"
        return trace.read_text().split() if trace.exists() else []


@pytest.fixture
def world(clean_daemon: Daemon, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as cleanup:
        world = World(clean_daemon, tmp_path, cleanup)
        yield world
        world.gate.touch()


@pytest.mark.parametrize("more", [{}, {"start": True}, {"encoding": "base64", "stdin": "A" * 400_000}])
def test_ten_commands_whose_clients_hang_up_leave_no_trace(world: World, more: dict[str, Any]) -> None:
    holder = world.held()
    clients = [world.sent("/shell/exec", connection=LOCAL, command=world.trace("gone"), **more) for _ in range(10)]
    eventually_equal(world.waiting, 10, "they do not wait")
    for client in clients[:9]:
        client.close()
    # They leave the queue while the command ahead still runs.
    eventually_equal(world.waiting, 1, "they still wait")
    clients[9].close()
    assert world.traces() == ["last"]
    assert holder.recv(15) == b"HTTP/1.1 200 OK"


def test_a_command_whose_client_hangs_up_ends_and_those_behind_it_run(world: World) -> None:
    holder = world.held()
    after = world.sent("/shell/exec", connection=LOCAL, command=world.trace("after"))
    eventually_equal(world.waiting, 1, "it does not wait")
    holder.close()
    # The gate is still closed.
    assert after.recv(15) == b"HTTP/1.1 200 OK"
    assert world.traces() == ["after", "last"]


def test_a_pipelined_request_does_not_count_as_leaving(world: World) -> None:
    client = world.held()
    waiting = world.sent("/shell/exec", connection=LOCAL, command=world.trace("waiting"))
    eventually_equal(world.waiting, 1, "it does not wait")
    for connection, word in ((client, "second"), (waiting, "third")):
        connection.sendall(world.request("/shell/exec", connection=LOCAL, command=world.trace(word)))
    world.gate.touch()
    answers = {client: b"", waiting: b""}
    for connection in answers:
        connection.settimeout(DEADLINE_SECONDS)
        while answers[connection].count(b"200 OK") < 2:
            answers[connection] += connection.recv(1000)
    assert sorted(world.traces()) == ["last", "second", "third", "waiting"]


def test_requests_behind_that_of_a_client_that_leaves_are_dropped_with_it(world: World) -> None:
    client = world.held()
    client.sendall(world.request("/shell/exec", connection=LOCAL, command=world.trace("second")))
    client.sendall(world.request("/job/start", connection=LOCAL, command=world.trace("third")))
    client.close()
    eventually_equal(world.in_use, 0, "they still wait")
    assert world.traces() == ["last"]
    assert world.daemon.client.post("/job/query")["jobs"] == []


def test_a_client_that_leaves_while_a_shell_starts(world: World) -> None:
    begun = world.directory / "begun"
    first_command = f"echo begun >>{begun}; until [ -e {world.gate} ]; do sleep 0.01; done"
    data = {"type": "shellEnvironment", "host": LOCAL, "commands": [first_command]}
    id = world.daemon.client.connection.add("slow", data)
    fields: dict[str, Any] = {"connection": id, "start": True}
    first = world.sent("/shell/exec", command=world.trace("first"), **fields)
    eventually(begun.exists, "the shell does not start")
    others = [world.sent("/shell/exec", command=world.trace("other"), **fields) for _ in range(3)]
    fresh = world.sent("/shell/exec", command=world.trace("fresh"), connection=id, fresh=True)
    eventually_equal(world.in_use, 5, "they do not wait")
    for one in others:
        one.close()
    # The shell is still starting: these do not wait for it any longer.
    eventually_equal(world.in_use, 2, "they still wait")
    first.close()
    fresh.close()
    assert world.traces() == ["last"]


def test_clients_that_leave_while_a_link_opens(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        data = {"type": "ssh", "host": "127.0.0.1", "port": silent.getsockname()[1], "user": "nobody"}
        id = world.daemon.client.connection.add("silent", data)
        world.sent("/shell/start", connection=id)
        dialled, _ = silent.accept()
        with dialled:
            waiting = [world.sent("/terminal/open", connection=id), world.sent("/shell/start", connection=id)]
            with client_of(world.daemon) as other:
                pipe = other.shell.pipe(id, world.trace("pipe"))
                eventually_equal(world.in_use, 4, "they do not wait")
                pipe.close()
            for one in waiting:
                one.close()
            # The link is still opening for the first.
            eventually_equal(world.in_use, 1, "they still wait")
    assert world.traces() == ["last"]


def test_commands_of_a_broadcast_that_have_not_begun_never_run(world: World) -> None:
    client, data = world.daemon.client, {"type": "shellEnvironment", "host": LOCAL}
    more = [client.connection.add(f"more{n}", {**data, "commands": [f"N={n}"]}) for n in range(3)]
    ids = [LOCAL, *more]
    assert len(set(ids)) == 4
    client.shell.start(more[0])
    holder = world.held()
    sent = world.sent("/shell/broadcast", connections=ids, command=world.trace("gone"), parallel=1)
    eventually_equal(world.waiting, 1, "it does not wait")
    # One at a time: until the gate opens, at most the other running shell has had its turn.
    begun = world.begun()
    assert len(begun) <= 1
    sent.close()
    eventually_equal(world.in_use, 1, "it still waits")
    assert world.traces() == [*begun, "last"]
    assert holder.recv(15) == b"HTTP/1.1 200 OK"


def test_half_closed_connections_count_as_gone_and_unread_data_does_not_hide_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        assert not has_left(ours)
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert not has_left(ours)
        theirs.shutdown(socket.SHUT_WR)
        assert has_left(ours)
    assert has_left(ours)
    assert has_left(None)


def test_departures_wake_once_and_only_those_who_wait() -> None:
    departures = Departures()
    pairs = [socket.socketpair() for _ in range(3)]
    clients = [ClientCancellation(departures, lambda ours=ours: ours) for ours, _ in pairs]
    woken = [threading.Event() for _ in pairs]
    try:
        with clients[0].waking(woken[0].set), clients[0].waking(woken[1].set):
            with clients[1].waking(woken[2].set):
                pairs[1][1].sendall(b"more")
            pairs[1][1].close()
            pairs[0][1].close()
            assert woken[0].wait(DEADLINE_SECONDS)
            assert woken[1].wait(DEADLINE_SECONDS)
        assert not woken[2].is_set()
        assert [one.cancelled for one in clients] == [True, True, False]
        # Late, but at once.
        late = threading.Event()
        with clients[1].waking(late.set):
            assert late.is_set()
    finally:
        departures.close()
        for pair in pairs:
            for one in pair:
                one.close()


def test_a_cancellation_wakes_also_those_who_come_later() -> None:
    cancellation, woken = Cancellation(), list[int]()
    with cancellation.waking(lambda: woken.append(1)):
        cancellation.cancel()
        cancellation.cancel()
    with cancellation.waking(lambda: woken.append(2)):
        pass
    assert woken == [1, 2]
    with pytest.raises(CommandCancelled):
        cancellation.require()
