"""Tunnels of every type, over SSH, a gateway, sudo and this machine: their streams and how these end."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from connmgr.client import ClientError
from connmgr.shares import of_tokens
from connmgr.streams.listener import MAX_GREETED
from connmgr.tunnels.shares import DESCRIPTORS, STREAM_DESCRIPTORS
from tests.api.wire import LOCAL, bearer, send
from tests.daemon import PROGRAM, Daemon
from tests.plugins.sshd import Sshd
from tests.ports import reserved_port
from tests.processes import descriptors
from tests.rights.wire import create
from tests.tunnels.conftest import add_ssh
from tests.tunnels.services import (
    Service,
    Tunnels,
    client,
    exactly,
    first_word,
    last_word,
    says,
)

ON = {"address": "127.0.0.1"}
OPEN_FILES = 512


def test_a_service_of_another_machine_is_a_loopback_port_here(
    tunnels: Tunnels, far: str, echoing: Service, own_port: int
) -> None:
    id, port = tunnels.open("customService", far, "db", remotePort=echoing.port, localPort=own_port, **ON)
    assert says(port, b"over there") == b"over there"
    told = tunnels.until(id, lambda told: told["streams"] == 0)
    assert (told["bytesIn"], told["bytesOut"]) == (10, 10)
    (info,) = tunnels.daemon.client.post("/connection/info", connections=[id])["infos"]
    assert info["name"] == ["web", "services", "db"]
    assert (info["usageCategory"], info["cache"]) == ("tunnel", {"sessionEnabled": True})
    assert tunnels.toggle(id, state=False)["state"] == "stopped"
    with pytest.raises(ConnectionRefusedError):
        client(port)
    tunnels.remove(id)


def test_a_tunnel_listens_on_the_requested_port(tunnels: Tunnels, far: str, echoing: Service) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        number = taken.getsockname()[1]
        id = tunnels.add("sshLocalTunnel", far, remotePort=echoing.port, remoteHost="127.0.0.1", localPort=number)
        with pytest.raises(ClientError, match=f":{number}: another program listens there") as refused:
            tunnels.toggle(id)
        assert (refused.value.status, refused.value.code) == (400, "port_in_use")
        assert tunnels.state(id)["wanted"] is False
    assert tunnels.toggle(id)["address"] == f"127.0.0.1:{number}"
    assert says(number) == b"hello"
    tunnels.remove(id)


def test_large_streams_pass_in_both_directions_at_once(tunnels: Tunnels, far: str, echoing: Service) -> None:
    id, port = tunnels.open("customService", far, remotePort=echoing.port, **ON)
    piece = os.urandom(1 << 20)
    sent, came = hashlib.sha256(), hashlib.sha256()

    def send(connected: socket.socket) -> None:
        for _ in range(48):
            connected.sendall(piece)
            sent.update(piece)
        connected.shutdown(socket.SHUT_WR)

    with client(port) as connected:
        sender = threading.Thread(target=send, args=(connected,))
        sender.start()
        size = 0
        while data := connected.recv(1 << 18):
            came.update(data)
            size += len(data)
        sender.join()
    assert (size, came.digest()) == (48 << 20, sent.digest())
    tunnels.remove(id)


@pytest.mark.parametrize("place", ["ssh", "local"])
def test_either_side_may_end_its_output_and_continue_to_read(tunnels: Tunnels, far: str, place: str) -> None:
    host = far if place == "ssh" else LOCAL
    with closing(Service(last_word)) as late, closing(Service(first_word)) as early, reserved_port() as own:
        id, port = tunnels.open("sshLocalTunnel", host, localPort=own, remotePort=late.port, remoteHost="127.0.0.1")
        with client(port) as connected:
            connected.sendall(b"x" * 100_000)
            connected.shutdown(socket.SHUT_WR)
            assert exactly(connected, 100) == b"100000 bytes"
        tunnels.remove(id)
        other, port = tunnels.open("sshLocalTunnel", host, localPort=own, remotePort=early.port, remoteHost="127.0.0.1")
        with client(port) as connected:
            assert exactly(connected, 100) == b"welcome"
            connected.sendall(b"still taken" * 10_000)
            connected.shutdown(socket.SHUT_WR)
            tunnels.until(other, lambda told: told["bytesOut"] == 110_000 and not told["streams"])
        tunnels.remove(other)


def test_a_client_that_does_not_read_stops_only_its_own_stream(tunnels: Tunnels, far: str, echoing: Service) -> None:
    def flood(connected: socket.socket) -> None:
        while True:
            connected.sendall(bytes(1 << 16))

    with closing(Service(flood)) as flooding:
        id, port = tunnels.open("customService", far, remotePort=flooding.port, **ON)
        other, echo_port = tunnels.open("customService", far, "echo", remotePort=echoing.port, **ON)
        with client(port):
            held = tunnels.until(id, lambda told: told["bytesIn"] > 1 << 20)["bytesIn"]
            for _ in range(20):
                assert says(echo_port) == b"hello"
            # Socket buffers and windows are full by then, and take no more.
            tunnels.until(id, lambda told: told["bytesIn"] < (64 << 20))
            assert held < 64 << 20
        tunnels.until(id, lambda told: not told["streams"])
        tunnels.remove(id, other)


def test_a_port_that_refuses_disconnects_the_client_and_is_reported(
    tunnels: Tunnels, far: str, closed_port: int
) -> None:
    id, port = tunnels.open("customService", far, remotePort=closed_port, **ON)
    # The end may come while the client still connects.
    with pytest.raises(ConnectionResetError), client(port) as connected:
        connected.recv(1)
    told = tunnels.until(id, lambda told: told["lastError"])
    assert (told["state"], told["lastError"]["code"]) == ("open", "host_refused")
    tunnels.remove(id)


def test_socks_resolves_and_connects_on_the_remote_host(
    tunnels: Tunnels, far: str, echoing: Service, closed_port: int
) -> None:
    id, port = tunnels.open("sshDynamicTunnel", far)

    with socks(port, b"localhost", echoing.port) as connected:
        assert exactly(connected, 10)[:2] == b"\5\0"
        connected.sendall(b"by name")
        assert exactly(connected, 7) == b"by name"
    with socks(port, b"127.0.0.1", closed_port) as connected:
        assert exactly(connected, 10)[:2] == b"\5\5"
        assert connected.recv(1) == b""
    with client(port) as connected:
        connected.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert connected.recv(1) == b""
    tunnels.remove(id)


def socks(port: int, host: bytes, to: int) -> socket.socket:
    """Connect to a SOCKS server and request ``host`` and the port ``to``."""
    connected = client(port)
    connected.sendall(b"\5\1\0")
    assert exactly(connected, 2) == b"\5\0"
    connected.sendall(b"\5\1\0\3" + bytes([len(host)]) + host + struct.pack(">H", to))
    return connected


@pytest.mark.parametrize("host", [b"-le/bin/id", b"a]:1!!SYSTEM:id,x=[b", b"a/b", b"a\0b", b"a b", b"a\nb", b""])
def test_a_host_name_that_looks_like_an_option_is_not_one_for_the_relay(
    tunnels: Tunnels, far: str, host: bytes
) -> None:
    inside = tunnels.add("shellEnvironment", far, "inside")
    id, port = tunnels.open("sshDynamicTunnel", inside)
    with socks(port, host, 80) as connected:
        assert exactly(connected, 10)[:2] == b"\5\5"
    assert tunnels.state(id)["lastError"]["code"] == "host_refused"
    tunnels.remove(id, inside)


@pytest.mark.parametrize("host", [b"a..b", b"a\0b", b""])
def test_an_impossible_host_name_is_refused_by_the_daemon(tunnels: Tunnels, host: bytes) -> None:
    id, port = tunnels.open("sshDynamicTunnel", LOCAL)
    with socks(port, host, 9) as connected:
        assert exactly(connected, 10)[:2] == b"\5\5"
    assert tunnels.state(id)["lastError"]["code"] == "host_refused"
    tunnels.remove(id)


@pytest.mark.parametrize("place", ["ssh", "local"])
def test_a_port_of_the_remote_host_leads_here(
    tunnels: Tunnels, far: str, echoing: Service, place: str, own_port: int
) -> None:
    host = far if place == "ssh" else LOCAL
    free, port = tunnels.open("sshRemoteTunnel", host, localPort=echoing.port)
    assert says(port) == b"hello"
    tunnels.remove(free)
    id, port = tunnels.open("sshRemoteTunnel", host, localPort=echoing.port, remotePort=own_port)
    with ExitStack() as opened:
        connections = [opened.enter_context(client(port)) for _ in range(20)]
        for number, connected in enumerate(connections):
            connected.sendall(b"%02d" % number)
        for number, connected in enumerate(connections):
            assert exactly(connected, 2) == b"%02d" % number
        assert tunnels.state(id)["streams"] == 20
    tunnels.toggle(id, state=False)
    with pytest.raises(ConnectionRefusedError):
        client(port)
    tunnels.remove(id)


def test_a_taken_port_of_the_remote_host_is_reported(tunnels: Tunnels, far: str, echoing: Service) -> None:
    id = tunnels.add("sshRemoteTunnel", far, remotePort=echoing.port, localPort=1)
    told = tunnels.toggle(id)
    assert (told["state"], told["lastError"]["code"]) == ("retrying", "internal")
    assert "does not listen on port" in told["lastError"]["message"]
    tunnels.remove(id)


def test_a_tunnel_through_a_gateway(tunnels: Tunnels, far: str, server: Sshd, echoing: Service) -> None:
    behind = add_ssh(tunnels.daemon, server, gateway=far)
    id, port = tunnels.open("customService", behind, remotePort=echoing.port, **ON)
    data = os.urandom(4 << 20)
    with client(port) as connected:
        sender = threading.Thread(target=connected.sendall, args=(data,))
        sender.start()
        assert exactly(connected, len(data)) == data
        sender.join()
    tunnels.remove(id, behind)


def test_a_program_relays_where_the_connection_has_no_tcp_streams(tunnels: Tunnels, far: str, echoing: Service) -> None:
    inside = tunnels.add("shellEnvironment", far, "inside")
    id, port = tunnels.open("customService", inside, remotePort=echoing.port, **ON)
    assert tunnels.state(id)["relay"] in ("nc", "socat", "bash", "python3")
    data = os.urandom(1 << 20)
    with client(port) as connected:
        sender = threading.Thread(target=connected.sendall, args=(data,))
        sender.start()
        assert exactly(connected, len(data)) == data
        sender.join()
    tunnels.remove(id, inside)


def test_a_remote_tunnel_over_a_connection_that_cannot_listen_is_refused(tunnels: Tunnels, far: str) -> None:
    inside = tunnels.add("shellEnvironment", far, "inside")
    id = tunnels.add("sshRemoteTunnel", inside, localPort=1)
    with pytest.raises(ClientError, match="cannot listen") as refused:
        tunnels.toggle(id)
    assert refused.value.code == "transport_unsupported"
    assert (tunnels.state(id)["state"], tunnels.state(id)["wanted"]) == ("stopped", False)
    tunnels.remove(id, inside)


def test_a_service_of_this_machine_keeps_its_port(tunnels: Tunnels, echoing: Service) -> None:
    id, port = tunnels.open("customService", LOCAL, "here", remotePort=echoing.port, localPort=echoing.port)
    assert port == echoing.port
    assert says(port) == b"hello"
    (info,) = tunnels.daemon.client.post("/connection/info", connections=[id])["infos"]
    assert info["name"] == ["services", "here"]
    tunnels.daemon.client.post("/connection/update", connection=id, name="renamed")
    (info,) = tunnels.daemon.client.post("/connection/info", connections=[id])["infos"]
    assert info["name"] == ["services", "renamed"]
    tunnels.remove(id)


def test_a_tunnel_runs_no_shell_and_a_machine_is_not_toggled(tunnels: Tunnels, far: str) -> None:
    id = tunnels.add("customService", far, remotePort=1)
    post = tunnels.daemon.client.post
    for path, text in (("browse", "file system"), ("terminal", "shell")):
        assert post(f"/connection/{path}", connection=far) == {}
        with pytest.raises(ClientError, match=f"not a {text} connection") as refused:
            post(f"/connection/{path}", connection=id)
        assert refused.value.status == 400
    with pytest.raises(ClientError, match="is a tunnel") as refused:
        post("/shell/start", connection=id)
    assert refused.value.code == "transport_unsupported"
    with pytest.raises(ClientError) as refused:
        post("/connection/toggle", connection=far, state=True)
    assert (refused.value.status, refused.value.code) == (400, "not_toggleable")
    post("/connection/refresh", connection=id)
    tunnels.remove(id)


def test_silent_socks_clients_are_displaced_by_others(tunnels: Tunnels, echoing: Service) -> None:
    id, port = tunnels.open("sshDynamicTunnel", LOCAL)
    before = descriptors(tunnels.daemon.pid)["socket"]
    with ExitStack() as silent:
        for _ in range(2 * MAX_GREETED):
            silent.enter_context(client(port)).sendall(b"\5")
        with socks(port, b"localhost", echoing.port) as connected:
            assert exactly(connected, 10)[:2] == b"\5\0"
            assert descriptors(tunnels.daemon.pid)["socket"] - before <= MAX_GREETED + 2
    tunnels.remove(id)


@pytest.mark.parametrize("is_owner", [True, False], ids=["the owner's", "a token's"])
def test_clients_of_tunnels_leave_descriptors_to_everything_else(
    tmp_path: Path, echoing: Service, own_port: int, is_owner: bool
) -> None:
    few = Tunnels(Daemon(tmp_path, program=("sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "sh", *PROGRAM)))
    daemon = few.daemon
    with ExitStack() as clients:
        clients.callback(daemon.stop)
        id = few.add("sshLocalTunnel", LOCAL, remoteHost="127.0.0.1", remotePort=echoing.port, localPort=own_port)
        if is_owner:
            few.toggle(id)
        else:
            answer = create(daemon, "tunnel", "connection.read").send("/connection/toggle", connection=id, state=True)
            assert answer.status == 200
        for _ in range(OPEN_FILES):
            clients.enter_context(client(own_port))
        assert send(daemon.url, "/daemon/status", {}, bearer(daemon)).status == 200
        most = int(OPEN_FILES * DESCRIPTORS) if is_owner else of_tokens(int(OPEN_FILES * DESCRIPTORS))[0]
        told = few.until(id, lambda told: told["streams"] == most // STREAM_DESCRIPTORS)
        assert told["lastError"]["code"] == "stream_limit"
        assert descriptors(daemon.pid).total() < OPEN_FILES / 2
        if not is_owner:
            other = create(daemon, "tunnel", "connection.read")
            another = few.add("sshDynamicTunnel", LOCAL, "another")
            assert other.send("/connection/toggle", connection=another, state=True).status == 200
            _, port = few.open("sshDynamicTunnel", LOCAL, "the owner's")
            for each in (few.port(another), port):
                with socks(each, b"localhost", echoing.port) as connected:
                    assert exactly(connected, 10)[:2] == b"\5\0"
