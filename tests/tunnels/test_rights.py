"""Tunnels opened by tokens: the rights that they need, and that they end with their token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rights.wire import create
from tests.tunnels.services import Service, Tunnels, client, says

ON = {"address": "127.0.0.1"}


@pytest.fixture
def tunnel(tunnels: Tunnels, far: str, echoing: Service, own_port: int) -> Iterator[str]:
    id = tunnels.add("customService", far, "for tokens", remotePort=echoing.port, localPort=own_port, **ON)
    yield id
    tunnels.remove(id)


def test_a_tunnel_of_a_token_ends_with_it(tunnels: Tunnels, tunnel: str) -> None:
    holder = create(tunnels.daemon, "tunnel")
    holder.ok("/connection/toggle", connection=tunnel, state=True)
    port = tunnels.port(tunnel)
    assert says(port) == b"hello"
    tunnels.daemon.client.post("/token/revoke", id=holder.id)
    told = tunnels.until(tunnel, lambda told: told["state"] == "stopped")
    assert told["wanted"] is False
    with pytest.raises(ConnectionRefusedError):
        client(port)


def test_a_tunnel_of_the_owner_stays_after_a_token_that_opened_it_too(tunnels: Tunnels, tunnel: str) -> None:
    holder = create(tunnels.daemon, "tunnel")
    tunnels.toggle(tunnel)
    holder.ok("/connection/toggle", connection=tunnel, state=True)
    tunnels.daemon.client.post("/token/revoke", id=holder.id)
    assert holder.refused("/tunnel/query") == "token_revoked"
    assert says(tunnels.port(tunnel)) == b"hello"


def test_a_toggle_needs_scope_and_sight(tunnels: Tunnels, far: str, tunnel: str, echoing: Service) -> None:
    toggle = {"connection": tunnel, "state": True}
    assert (
        create(tunnels.daemon, "connection.read", "shell.any").refused("/connection/toggle", **toggle) == "scope_denied"
    )
    blind = create(tunnels.daemon, "tunnel", "connection.read", connections=["other*"])
    assert blind.refused("/connection/toggle", **toggle) == "unknown_connection"
    assert blind.ok("/tunnel/query") == {"tunnels": []}
    data = {"type": "customService", "host": far, "remotePort": echoing.port}
    writer = create(tunnels.daemon, "connection.write", "connection.read", "shell.any")
    assert writer.refused("/connection/add", name="own", data=data) == "scope_denied"


def test_a_tunnel_back_to_this_machine_needs_sight_of_it(tunnels: Tunnels, far: str, echoing: Service) -> None:
    data = {"type": "sshRemoteTunnel", "host": far, "localPort": echoing.port}
    stored = tunnels.daemon.client.post("/connection/add", name="to here", data=data)["connection"]
    sees_far = create(tunnels.daemon, "tunnel", "connection.write", "connection.read", connections=["web**"])
    assert sees_far.refused("/connection/add", name="mine", data={**data, "remotePort": 1}) == "scope_denied"
    assert sees_far.refused("/connection/toggle", connection=stored, state=True) == "scope_denied"
    tunnels.remove(stored)
