"""Forwards by ssh at a control socket: ``-L``, ``-R``, ``-D``, for a session or until they are cancelled."""

from __future__ import annotations

import socket
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE_SECONDS, eventually_equal
from tests.multiplex.behind import Hosts, said
from tests.plugins.sshd import Sshd
from tests.ports import reserved_port

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")


def _serve(listening: socket.socket) -> None:
    while True:
        try:
            connected, _ = listening.accept()
        except OSError:
            return
        # A client may leave at any moment, such as one that only looks whether the port is open.
        with connected, suppress(ConnectionError):
            while data := connected.recv(1000):
                connected.sendall(data.upper())


@pytest.fixture
def service() -> Iterator[int]:
    """The port of a service that answers what it gets in capital letters."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_serve, args=[listening], daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for Unix sockets, whose paths have to be short, with a service ``app`` like the other there."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        path = Path(directory)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path / "app"))
            listening.listen()
            threading.Thread(target=_serve, args=[listening], daemon=True).start()
            yield path
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


def heard_at(path: Path) -> bytes:
    """Return what a service at the Unix socket ``path`` answers."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(DEADLINE_SECONDS)
        connected.connect(str(path))
        connected.sendall(b"hello")
        connected.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connected.recv(1000), b""))


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS).close()
    except (ConnectionRefusedError, ConnectionResetError):
        # Refused, or accepted by a listener that was closed in that moment.
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
    for spec, why in (
        (f"/nowhere/socket:127.0.0.1:{service}", "No such file or directory"),
        (f"./socket:127.0.0.1:{service}", "absolute path"),
    ):
        assert why in said(hosts.ssh("-O", "forward", "-L", spec, "web", code=255))[0]


@pytest.mark.parametrize("host", ["web", "far", "local"])
def test_a_port_leads_to_a_unix_socket_of_the_host(hosts: Hosts, place: Path, port: int, host: str) -> None:
    spec = f"{port}:{place}/app"
    hosts.ssh("-O", "forward", "-L", spec, host)
    assert heard(port) == b"HELLO"
    hosts.ssh("-O", "cancel", "-L", spec, host)
    ends(port)


def test_a_unix_socket_here_leads_to_a_port_or_a_socket(hosts: Hosts, place: Path, service: int) -> None:
    here = place / "here"
    for to in (f"127.0.0.1:{service}", f"{place}/app"):
        hosts.ssh("-O", "forward", "-L", f"{here}:{to}", "web")
        assert stat.S_IMODE(here.stat().st_mode) == 0o600
        assert heard_at(here) == b"HELLO"
        hosts.ssh("-O", "cancel", "-L", f"{here}:{to}", "web")
        eventually_equal(here.exists, False, "the socket is left")


def test_what_has_the_name_of_a_unix_socket_stays(hosts: Hosts, place: Path) -> None:
    here, spec = place / "here", f"{place}/here:{place}/app"
    here.write_text("kept")
    assert "it exists" in said(hosts.ssh("-O", "forward", "-L", spec, "web", code=255))[0]
    assert here.read_text() == "kept"
    here.unlink()
    hosts.ssh("-O", "forward", "-L", spec, "web")
    here.unlink()
    here.write_text("another's")
    hosts.ssh("-O", "cancel", "-L", spec, "web")
    assert "No such forward" in said(hosts.ssh("-O", "cancel", "-L", spec, "web"))[0]
    assert here.read_text() == "another's"


def test_a_unix_socket_or_a_port_of_the_host_leads_to_one_here(hosts: Hosts, place: Path, service: int) -> None:
    there = place / "there"
    for to in (f"127.0.0.1:{service}", f"{place}/app"):
        hosts.ssh("-O", "forward", "-R", f"{there}:{to}", "web")
        assert heard_at(there) == b"HELLO"
        hosts.ssh("-O", "cancel", "-R", f"{there}:{to}", "web")
        # Like a master's, this name stays: sshd removes it for nobody.
        there.unlink()
    port = int(hosts.ssh("-O", "forward", "-R", f"0:{place}/app", "web").stdout)
    assert heard(port) == b"HELLO"
    # The daemon's machine as a host has ports of its own, and no sockets.
    why = said(hosts.ssh("-O", "forward", "-R", f"{there}:{place}/app", "local", code=255))[0]
    assert "cannot listen at Unix sockets" in why


def test_the_client_library_forwards_sockets(hosts: Hosts, place: Path) -> None:
    client = hosts.connmgr.daemon.client
    web, here, app = client.connection.find("web"), str(place / "here"), str(place / "app")
    hosts.open()
    assert client.multiplex.forward(web, here, app) == (here, 0)
    assert heard_at(place / "here") == b"HELLO"
    client.multiplex.cancel(web, here, app)
    assert not (place / "here").exists()


def test_a_socks_client_reaches_no_unix_socket_by_a_name(hosts: Hosts, place: Path, port: int) -> None:
    hosts.ssh("-O", "forward", "-D", str(port), "web")
    name = str(place / "app").encode()
    for number in (0, 1):
        with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as connected:
            connected.sendall(struct.pack("!BBH4sB", 4, 1, number, bytes([0, 0, 0, 1]), 0) + name + b"\0")
            assert connected.recv(10)[:2] in (bytes([0, 91]), b"")


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
