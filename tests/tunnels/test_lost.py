"""Lost links: what clients see, how soon a tunnel is open again, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from connmgr.client import ClientError
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.oneself import ssh_server
from tests.plugins.sshd import Sshd
from tests.processes import Held
from tests.tunnels.conftest import add_ssh
from tests.tunnels.services import Service, Tunnels, client, echo, exactly, says

ON = {"address": "127.0.0.1"}
INTERRUPTIONS = 20
"""Losses of the link; the benchmark has 500."""


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Sshd]:
    with ssh_server(tmp_path) as running:
        yield running


def test_a_lost_link_disconnects_clients_and_new_ones_wait_for_the_next_link(
    tunnels: Tunnels, own_server: Sshd, echoing: Service
) -> None:
    far = add_ssh(tunnels.daemon, own_server)
    id, port = tunnels.open("customService", far, remotePort=echoing.port, **ON)
    with client(port) as before, closing(client(port)) as meanwhile:
        before.sendall(b"over the first way")
        assert exactly(before, 18) == b"over the first way"
        own_server.stop()
        with pytest.raises(ConnectionResetError):
            before.recv(1)
        meanwhile.close()
        held = client(port)
        held.sendall(b"patience")
        told = tunnels.until(id, lambda told: told["waiting"] == 1 and told["retries"])
        assert (told["state"], told["lastError"]["code"]) == ("retrying", "host_refused")
        own_server.start()
        assert exactly(held, 8) == b"patience"
        held.close()
    assert tunnels.state(id)["state"] == "open"
    tunnels.remove(id, far)


def test_a_tunnel_to_a_frozen_machine_is_reopened_after_the_thaw(
    tunnels: Tunnels, own_server: Sshd, echoing: Service
) -> None:
    far = add_ssh(tunnels.daemon, own_server, keepAlive=0.4, connectTimeout=2)
    id, port = tunnels.open("customService", far, remotePort=echoing.port, **ON)
    with client(port) as before:
        before.sendall(b"x")
        assert exactly(before, 1) == b"x"
        own_server.freeze()
        with pytest.raises(ConnectionResetError):
            before.recv(1)
        tunnels.until(id, lambda told: told["state"] == "retrying")
        with client(port) as held:
            held.sendall(b"after the thaw")
            own_server.thaw()
            assert exactly(held, 14) == b"after the thaw"
    tunnels.remove(id, far)


def test_a_frozen_link_delays_no_other_tunnel(tunnels: Tunnels, own_server: Sshd, far: str, echoing: Service) -> None:
    frozen = add_ssh(tunnels.daemon, own_server, keepAlive=30)
    stuck, into = tunnels.open("customService", frozen, "stuck", remotePort=echoing.port, **ON)
    other, port = tunnels.open("customService", far, "other", remotePort=echoing.port, **ON)
    with client(into) as flooded:
        flooded.sendall(b"x")
        assert exactly(flooded, 1) == b"x"
        own_server.freeze()
        flooded.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while True:
                sent += flooded.send(bytes(1 << 20))
        # A client of a tunnel that waited would wait for the thaw.
        for _ in range(50):
            assert says(port) == b"hello"
        own_server.thaw()
        flooded.settimeout(DEADLINE_SECONDS)
        assert exactly(flooded, sent) == bytes(sent)
    tunnels.remove(stuck, other, frozen)


@pytest.mark.slow
def test_a_client_is_disconnected_after_waiting_ten_seconds(
    tunnels: Tunnels, own_server: Sshd, echoing: Service
) -> None:
    far = add_ssh(tunnels.daemon, own_server)
    id, port = tunnels.open("customService", far, remotePort=echoing.port, **ON)
    own_server.stop()
    began = time.monotonic()
    with client(port) as held, pytest.raises(ConnectionResetError):
        held.recv(1)
    assert time.monotonic() - began > 9
    tunnels.remove(id, far)


def test_a_refused_login_or_another_host_key_is_not_retried(
    tunnels: Tunnels, own_server: Sshd, echoing: Service, own_port: int
) -> None:
    far = add_ssh(tunnels.daemon, own_server)
    id, port = tunnels.open("customService", far, remotePort=echoing.port, localPort=own_port, **ON)
    kept = own_server.authorized_keys.read_text()
    own_server.authorized_keys.write_text("")
    own_server.kill_sessions()
    told = tunnels.until(id, lambda told: told["state"] == "failed")
    assert (told["lastError"]["code"], told["address"], told["wanted"]) == ("auth_failed", None, True)
    with pytest.raises(ConnectionRefusedError):
        client(port)
    with pytest.raises(ClientError) as refused:
        tunnels.toggle(id)
    assert refused.value.code == "auth_failed"
    own_server.authorized_keys.write_text(kept)
    assert tunnels.toggle(id)["state"] == "open"
    tunnels.remove(id, far)


def test_many_interruptions_leave_nothing_behind(own_daemon: Daemon, own_server: Sshd) -> None:
    tunnels, process = Tunnels(own_daemon), psutil.Process(own_daemon.pid)
    far = add_ssh(own_daemon, own_server)
    with closing(Service(echo)) as service:
        id, port = tunnels.open("customService", far, remotePort=service.port, **ON)
        assert says(port) == b"hello"
        tunnels.until(id, lambda told: not told["streams"])
        held = Held(process.pid)
        for _ in range(INTERRUPTIONS):
            with client(port) as connected, contextlib.suppress(ConnectionResetError):
                connected.sendall(b"x")
                connected.recv(1)
                own_server.kill_sessions()
                connected.recv(1)
            assert says(port) == b"hello"
        told = tunnels.until(id, lambda told: not (told["streams"] or told["waiting"]))
        assert told["state"] == "open"
        held.await_release(INTERRUPTIONS)
        listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        assert len(listening) == 2, listening
        tunnels.toggle(id, state=False)


def test_a_thousand_streams_at_once(tunnels: Tunnels, far: str, echoing: Service) -> None:
    id, port = tunnels.open("customService", far, remotePort=echoing.port, **ON)
    opened: list[socket.socket] = []
    try:
        for _ in range(1000):
            opened.append(client(port))
        for number, connected in enumerate(opened):
            connected.sendall(b"%04d" % number)
        for number, connected in enumerate(opened):
            assert exactly(connected, 4) == b"%04d" % number
        assert tunnels.state(id)["streams"] == 1000
        # One direction of each stream is still open; they end in any order.
        for connected in opened:
            connected.shutdown(socket.SHUT_WR)
        for connected in opened:
            assert connected.recv(1) == b""
    finally:
        for connected in opened:
            connected.close()
    tunnels.until(id, lambda told: told["streams"] == 0)
    tunnels.remove(id)


def test_open_tunnels_are_reopened_after_a_restart(
    start_daemon: StartDaemon, own_server: Sshd, echoing: Service
) -> None:
    first = start_daemon()
    tunnels = Tunnels(first)
    far = add_ssh(first, own_server)
    wanted, _ = tunnels.open("customService", far, "wanted", remotePort=echoing.port, **ON)
    automatic = tunnels.add("sshLocalTunnel", far, "automatic", remotePort=echoing.port, autoStart=True)
    other, _ = tunnels.open("sshDynamicTunnel", far, "off")
    tunnels.toggle(other, state=False)
    first.stop()
    tunnels = Tunnels(start_daemon(home=first.home))
    for id in (wanted, automatic):
        tunnels.until(id, lambda told: told["state"] == "open")
        assert says(tunnels.port(id)) == b"hello"
    assert tunnels.state(other)["state"] == "stopped"


def test_after_a_restart_a_tunnel_waits_for_its_secrets_to_be_unlocked(
    start_daemon: StartDaemon, own_server: Sshd, echoing: Service
) -> None:
    first = start_daemon()
    first.client.vault.add_user("alice", "four words or more")
    first.client.vault.unlock("alice", "four words or more")
    tunnels = Tunnels(first)
    far = add_ssh(first, own_server, identity={"key": own_server.client_key.read_text()})
    id, _ = tunnels.open("customService", far, remotePort=echoing.port, **ON)
    first.stop()
    second = start_daemon(home=first.home)
    tunnels = Tunnels(second)
    told = tunnels.until(id, lambda told: told["lastError"])
    assert (told["state"], told["lastError"]["code"]) == ("retrying", "secret_locked")
    second.client.vault.unlock("alice", "four words or more")
    tunnels.until(id, lambda told: told["state"] == "open")
    assert says(tunnels.port(id)) == b"hello"


def test_a_change_of_the_connection_below_reopens_a_tunnel(
    tunnels: Tunnels, own_server: Sshd, echoing: Service, own_port: int
) -> None:
    far = add_ssh(tunnels.daemon, own_server)
    id, port = tunnels.open("customService", far, remotePort=echoing.port, localPort=own_port, **ON)
    with client(port) as connected:
        connected.sendall(b"x")
        assert exactly(connected, 1) == b"x"
        (info,) = tunnels.daemon.client.post("/connection/info", connections=[far])["infos"]
        data = {**info["rawData"], "connectTimeout": 19}
        tunnels.daemon.client.post("/connection/update", connection=far, data=data)
        with pytest.raises(ConnectionResetError):
            connected.recv(1)
    tunnels.until(id, lambda told: told["state"] == "open")
    assert says(port) == b"hello"
    tunnels.remove(far)
    with pytest.raises(ConnectionRefusedError):
        client(port)


def test_simultaneous_toggles_agree(tunnels: Tunnels, far: str, echoing: Service) -> None:
    id = tunnels.add("customService", far, remotePort=echoing.port, **ON)
    clients = [tunnels.daemon.client.clone() for _ in range(6)]

    def toggle(number: int) -> None:
        for _ in range(5):
            clients[number].connection.toggle(id, number % 2 == 0)

    threads = [threading.Thread(target=toggle, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tunnels.toggle(id)["state"] == "open"
    assert says(tunnels.port(id)) == b"hello"
    assert tunnels.toggle(id, state=False)["state"] == "stopped"
    for one in clients:
        one.close()
    tunnels.remove(id)
