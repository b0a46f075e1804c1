"""Exceptions of third-party code during a request: each is answered once, as an internal error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.client import ClientError
from tests.api.wire import LOCAL, add
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.plugins.strangers import install

SOURCE = """
import builtins, sys, time
from connmgr.plugin import Channel, ConnectionType, Schema, Text, Transport, hookimpl
from connmgr.testing import local

class Faulty(Schema):
    where = Text()
    what = Text()

class FaultyChannel(Channel):
    def __init__(self, inner, fail):
        self.inner, self.fail, self.calls, self.marked = inner, fail, 0, False

    def recv(self, timeout):
        self.calls += 1
        if self.calls > 4:
            self.fail("recv")
        if self.marked:
            self.fail("the middle")
        return self.inner.recv(timeout)

    def sendall(self, data, timeout):
        if b"marked" in data:
            self.marked = True
            self.fail("sendall")
        self.inner.sendall(data, timeout)

    def shutdown_write(self):
        self.inner.shutdown_write()

    def exit_status(self, timeout):
        return self.inner.exit_status(timeout)

    def close(self):
        self.inner.close()

class FaultyTransport(Transport):
    def __init__(self, fail):
        self.inner, self.fail = local(), fail

    def open_channel(self, argv, *, pty=False, timeout):
        self.fail("open_channel")
        return FaultyChannel(self.inner.open_channel(argv, pty=pty, timeout=timeout), self.fail)

    def close(self):
        self.inner.close()
        self.fail("close")

class FaultyType(ConnectionType):
    name = "faulty"
    description = "Raises what it is told to."
    schema = Faulty

    def open(self, data, via, *, timeout):
        def fail(where):
            if where == data["where"]:
                if data["what"] == "sleep":
                    time.sleep(1.5)
                    return
                print("raising in", where, file=sys.stderr, flush=True)
                raise getattr(builtins, data["what"])("as told")
        fail("open")
        return FaultyTransport(fail)

@hookimpl
def connmgr_connection_types():
    return [FaultyType()]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a plugin whose type raises the exception that its data names."""
    site = tmp_path_factory.mktemp("site")
    install(site, SOURCE, "connmgr-faulty")
    return site


@pytest.fixture(scope="module")
def faulty(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that has the type."""
    running = Daemon(tmp_path_factory.mktemp("faulty"), environment={"PYTHONPATH": str(site)})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def impatient(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the type, and timeouts of a second for the start of a shell and for an idle one."""
    options = "--start-timeout", "1", "--idle-timeout", "1"
    running = Daemon(tmp_path_factory.mktemp("impatient"), *options, environment={"PYTHONPATH": str(site)})
    yield running
    running.stop()


@pytest.mark.parametrize("what", ["ZeroDivisionError", "SystemExit", "KeyboardInterrupt", "BaseException"])
@pytest.mark.parametrize("where", ["open", "open_channel", "recv", "sendall"])
def test_whatever_is_raised_is_answered_once_and_logged(faulty: Daemon, where: str, what: str) -> None:
    client, before = faulty.client, len(faulty.stderr())
    data = {"type": "faulty", "where": where, "what": what}
    id = add(client, f"{what} in {where}", **data)

    def use() -> None:
        client.post("/shell/start", connection=id)
        for _ in range(5):
            client.post("/shell/exec", connection=id, command="echo marked")

    with pytest.raises(ClientError) as answered:
        use()
    assert (answered.value.status, answered.value.code) == (500, "internal")
    logged = faulty.stderr()[before:]
    assert logged.count(f"raising in {where}") == 1, "the request was served more than once"
    assert f"{what}: as told" in logged
    client.post("/connection/remove", connections=[id])
    local = client.post("/connection/query", categoryFilter="*", connectionFilter="*", typeFilter="local")["found"][0]
    client.post("/shell/start", connection=local)
    assert client.post("/shell/exec", connection=local, command="echo on")["stdout"] == "on"


@pytest.mark.parametrize("what", ["ZeroDivisionError", "SystemExit", "KeyboardInterrupt", "BaseException"])
def test_whatever_is_raised_while_lines_are_sent_is_the_last_line_and_logged(faulty: Daemon, what: str) -> None:
    client, before = faulty.client, len(faulty.stderr())
    id = client.connection.add(f"{what} in lines", {"type": "faulty", "where": "the middle", "what": what})
    client.shell.start(id)
    with client.shell.stream(id, "echo marked") as stream, pytest.raises(ClientError) as answered:
        list(stream)
    assert (answered.value.status, answered.value.code) == (500, "internal")
    assert f"{what}: as told" in faulty.stderr()[before:]
    assert client.daemon.status().slots.in_use == 0, "the stream still holds its slot"
    client.connection.remove([id])


@pytest.mark.parametrize("where", ["open", "open_channel"])
def test_a_type_that_takes_longer_than_it_may_is_said_to(impatient: Daemon, where: str) -> None:
    data = {"type": "faulty", "where": where, "what": "sleep"}
    id = add(impatient.client, f"slow {where}", **data)
    with pytest.raises(ClientError, match="within 1 s") as answered:
        impatient.client.post("/shell/start", connection=id)
    assert answered.value.code == "connect_timeout"


@pytest.mark.parametrize("what", ["ZeroDivisionError", "SystemExit"])
def test_idle_shells_are_closed_after_one_whose_type_raises_at_that(impatient: Daemon, what: str) -> None:
    data = {"type": "faulty", "where": "close", "what": what}
    id = add(impatient.client, f"{what} in close", **data)
    impatient.client.post("/shell/start", connection=id)
    eventually(
        lambda: impatient.stderr(),
        "what the type raised is not in the log",
        holds=lambda seen: f"{what}: as told" in seen,
    )
    impatient.client.post("/shell/start", connection=LOCAL)
    eventually(lambda: not impatient.client.daemon.status().sessions, "an idle shell is not closed any more")
