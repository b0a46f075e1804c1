"""Forwards by ssh at a control socket: ``-L``, ``-R``, ``-D``, for a session or until they are cancelled."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.deadlines import DEADLINE_SECONDS, eventually_equal
from tests.multiplex.behind import Hosts, said
from tests.plugins.sshd import Sshd
from tests.ports import reserved_port

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")


@pytest.fixture
def service() -> Iterator[int]:
    """The port of a service that answers what it gets in capital letters."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connected, _ = listening.accept()
                except OSError:
                    return
                with connected:
                    while data := connected.recv(1000):
                        connected.sendall(data.upper())

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def port() -> Iterator[int]:
    """A free port."""
    with reserved_port() as number:
        yield number


def heard(port: int, greeting: bytes = b"") -> bytes:
    """Return what a service at ``port`` answers."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as connected:
        if greeting:
            connected.sendall(greeting)
            connected.recv(10)
        connected.sendall(b"hello")
        connected.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connected.recv(1000), b""))


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS).close()
    except ConnectionRefusedError:
        return False
    return True


def ends(port: int) -> None:
    """Wait until nobody listens at ``port``."""
    eventually_equal(lambda: is_open(port), False, "the port is still open")


@pytest.mark.parametrize("host", ["web", "far", "local"])
def test_a_local_forward_lasts_until_it_is_cancelled(hosts: Hosts, service: int, port: int, host: str) -> None:
    spec = f"{port}:127.0.0.1:{service}"
    hosts.ssh("-O", "forward", "-L", spec, host)
    hosts.ssh("-O", "forward", "-L", spec, host)
    assert heard(port) == b"HELLO"
    hosts.ssh("-O", "cancel", "-L", spec, host)
    ends(port)
    assert "No such forward is open" in said(hosts.ssh("-O", "cancel", "-L", spec, host))[0]


def test_a_forward_of_a_session_ends_with_it(hosts: Hosts, service: int, port: int) -> None:
    with hosts.running("-L", f"{port}:127.0.0.1:{service}", "web", "echo ready; read line") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        assert heard(port) == b"HELLO"
        running.communicate(b"go\n", timeout=DEADLINE_SECONDS)
    ends(port)


@pytest.mark.parametrize("host", ["web", "local"])
def test_forwards_without_a_session_last_as_over_a_master(hosts: Hosts, service: int, port: int, host: str) -> None:
    spec = ["-L", f"{port}:127.0.0.1:{service}"]
    hosts.ssh("-f", "-N", *spec, host)
    assert heard(port) == b"HELLO"
    # One that another session asks for too does not end with it.
    hosts.ssh(*spec, host, "true")
    assert heard(port) == b"HELLO"
    hosts.ssh("-O", "cancel", *spec, host)
    ends(port)


def test_a_forward_that_others_asked_for_too_stays(hosts: Hosts, service: int, port: int) -> None:
    spec = ["-L", f"{port}:127.0.0.1:{service}"]
    script = "echo ready; read line"
    with hosts.running(*spec, "web", script) as first, hosts.running(*spec, "web", script) as second:
        for running in (first, second):
            assert running.stdout is not None
            assert running.stdout.readline() == b"ready\n"
        first.communicate(b"go\n", timeout=DEADLINE_SECONDS)
        assert heard(port) == b"HELLO"
        hosts.ssh("-O", "forward", *spec, "web")
        second.communicate(b"go\n", timeout=DEADLINE_SECONDS)
    hosts.ssh(*spec, "web", "true")
    assert heard(port) == b"HELLO"
    hosts.ssh("-O", "cancel", *spec, "web")
    ends(port)


def test_a_socks_server_leads_to_what_each_client_asks_for(hosts: Hosts, service: int, port: int) -> None:
    """As an editor does it that runs on another machine: ``ssh -T -D PORT HOST bash``."""
    with hosts.running("-T", "-D", str(port), "web", "bash") as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"echo ready\n")
        running.stdin.flush()
        assert running.stdout.readline() == b"ready\n"
        request = struct.pack("!BBH4sB", 4, 1, service, socket.inet_aton("127.0.0.1"), 0)
        assert heard(port, request) == b"HELLO"
    ends(port)


@pytest.mark.parametrize("host", ["web", "far"])
def test_a_port_of_the_remote_host_leads_here(hosts: Hosts, service: int, host: str) -> None:
    done = hosts.ssh("-O", "forward", "-R", f"0:127.0.0.1:{service}", host)
    port = int(done.stdout)
    assert heard(port) == b"HELLO"
    again = hosts.ssh("-O", "forward", "-R", f"0:127.0.0.1:{service}", host)
    assert int(again.stdout) == port
    hosts.ssh("-O", "cancel", "-R", f"0:127.0.0.1:{service}", host)
    ends(port)


def test_a_port_of_the_remote_host_leads_where_each_client_asks_for(
    hosts: Hosts, service: int, closed_port: int
) -> None:
    port = int(hosts.ssh("-O", "forward", "-R", "0", "far").stdout)

    def asked(of: int) -> bytes:
        return struct.pack("!BBH4sB", 4, 1, of, socket.inet_aton("127.0.0.1"), 0)

    assert heard(port, asked(service)) == b"HELLO"
    # What follows the request at once is not lost.
    with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as connected:
        connected.sendall(asked(service) + b"at once")
        connected.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda: connected.recv(1000), b""))[8:] == b"AT ONCE"
    for greeting, answer in ((asked(closed_port), bytes([0, 91])), (b"GET / HTTP/1.1", b"")):
        with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as connected:
            connected.sendall(greeting)
            assert b"".join(iter(lambda: connected.recv(1000), b""))[:2] == answer
    hosts.ssh("-O", "cancel", "-R", "0", "far")
    ends(port)


def test_a_forward_that_cannot_be_opened_says_why(hosts: Hosts, service: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spec = f"{taken.getsockname()[1]}:127.0.0.1:{service}"
        assert "another program listens" in said(hosts.ssh("-O", "forward", "-L", spec, "web", code=255))[0]
    spec = f"/nowhere/socket:127.0.0.1:{service}"
    assert "Unix sockets are not forwarded" in said(hosts.ssh("-O", "forward", "-L", spec, "web", code=255))[0]


def test_forwards_end_with_their_socket(hosts: Hosts, service: int, port: int) -> None:
    hosts.ssh("-O", "forward", "-L", f"{port}:127.0.0.1:{service}", "web")
    assert heard(port) == b"HELLO"
    hosts.post("/multiplex/close")
    ends(port)
    hosts.open()


def test_a_forward_may_be_opened_without_ssh(hosts: Hosts, service: int) -> None:
    client = hosts.connmgr.daemon.client
    web = next(one for one in client.multiplex.query() if "web" in one.hosts)
    address = client.multiplex.forward(web.connection, 0, ("127.0.0.1", service))
    assert address[0] == "127.0.0.1"
    assert heard(address[1]) == b"HELLO"
    client.multiplex.cancel(web.connection, 0, ("127.0.0.1", service))
    ends(address[1])
    client.multiplex.renew(web.connection)
    assert client.multiplex.close([web.connection]) == 1
    assert [one.connection for one in client.multiplex.open([web.connection])] == [web.connection]


def test_a_forward_ends_with_a_change_and_may_be_opened_again(
    hosts: Hosts, server: Sshd, service: int, port: int
) -> None:
    spec = ["-L", f"{port}:127.0.0.1:{service}"]
    hosts.ssh("-O", "forward", *spec, "far")
    assert heard(port) == b"HELLO"
    hosts.connmgr("edit", "far", "user=nobody-else")
    ends(port)
    hosts.connmgr("edit", "far", f"user={server.user}")
    hosts.ssh("-O", "forward", *spec, "far")
    assert heard(port) == b"HELLO"
    hosts.ssh("-O", "cancel", *spec, "far")
