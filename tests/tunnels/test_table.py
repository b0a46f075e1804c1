"""The table of a daemon's tunnels."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, cast

import pytest

from connmgr.errors import ShellLost, StreamLimit
from connmgr.links.table import LinkTable
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.shares import of_tokens
from connmgr.streams.loop import Loop
from connmgr.tunnels.shares import DIALS, TunnelShares
from connmgr.tunnels.table import MAX_TUNNELS, Tunnels, _Entry
from connmgr.tunnels.tunnel import MAX_DIALS, OPEN, STOPPED, LiveTunnel, RemotePort, Route
from connmgr.vault import Vault
from connmgr.vault.names import LOCAL
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.tunnels.services import Service, client, echo, exactly


def test_a_tunnel_is_stopped_only_when_its_port_is_closed(vault: Vault) -> None:
    closes, table = threading.Event(), Tunnels(vault, Registry.load(), cast(LinkTable, None), DEADLINE_SECONDS)
    with ExitStack() as ending:
        ending.callback(table.close, DEADLINE_SECONDS)
        listen = partial(table._listen, ("127.0.0.1", 0), "/none")
        tunnel = LiveTunnel(table._loop, lambda: Route(None), listen, None, TunnelShares())
        table._entries["one"] = _Entry(Access(), None, None, LOCAL, tunnel)
        tunnel.begin()
        assert tunnel.attempted.wait(DEADLINE_SECONDS)
        state, address = table.status("one").state, table.status("one").address
        assert state == OPEN
        assert address is not None
        # The thread that closes ports is busy.
        table._loop.call(partial(closes.wait, DEADLINE_SECONDS))
        cancels = threading.Thread(target=table.cancel, args=(["one"],))
        cancels.start()
        eventually(lambda: "one" not in table._entries, "the tunnel is not closed")
        assert table.status("one").state == OPEN
        with pytest.raises(OSError, match="in use"):
            socket.create_server(address)
        closes.set()
        cancels.join()
        assert (table.status("one").state, table.status("one").address) == (STOPPED, None)
        with pytest.raises(ConnectionRefusedError):
            client(address[1])


@contextmanager
def made(vault: Vault) -> Iterator[Tunnels]:
    table = Tunnels(vault, Registry.load(), cast(LinkTable, None), DEADLINE_SECONDS)
    try:
        yield table
    finally:
        table.close(DEADLINE_SECONDS)


def test_a_token_has_a_share_of_the_tunnels(vault: Vault) -> None:
    with made(vault) as table:
        for number in range(of_tokens(MAX_TUNNELS)[0]):
            table._entries[str(number)] = _Entry(Access(), f"of it {number}", "it", LOCAL)
        for holder in ("it", "another", None):
            if holder == "it":
                with pytest.raises(StreamLimit, match="the token has 625 of them, its share; close one"):
                    table.forward(LOCAL, ("127.0.0.1", 0), None, Access(), listens_far=False, holder=holder)
            else:
                table._require_room(holder)


class _Hangs(Route):
    """A route to a host that drops packets."""

    def dial(self, to: object) -> NoReturn:
        self.address[0].wait(DEADLINE_SECONDS)  # type: ignore[index,union-attr]
        raise ShellLost("It is lost.")


def test_a_token_whose_dials_hang_keeps_no_thread_from_the_dials_of_others(vault: Vault) -> None:
    released, tunnels = threading.Event(), list[LiveTunnel]()
    with made(vault) as table, closing(Service(echo)) as service, ExitStack() as clients:
        clients.callback(released.set)

        def tunnel_of(holder: str | None, route: Route) -> int:
            listen = partial(table._listen, ("127.0.0.1", 0), ("127.0.0.1", service.port))
            tunnel = LiveTunnel(table._loop, lambda: route, listen, None, table._shares, lambda: holder)
            clients.callback(tunnel.stop)
            tunnels.append(tunnel)
            tunnel.begin()
            assert tunnel.attempted.wait(DEADLINE_SECONDS)
            assert tunnel.status.address
            return tunnel.status.address[1]

        hanging = _Hangs(None, address=(released, 0))  # type: ignore[arg-type]
        for _ in range(DIALS // MAX_DIALS):
            port = tunnel_of("it", hanging)
            for _ in range(MAX_DIALS):
                clients.enter_context(client(port))
        most = of_tokens(DIALS)[0]
        eventually(lambda: table._shares._dials.held("it"), "they do not dial", holds=lambda seen: seen == most)

        class Here(Route):
            def dial(self, to: Any) -> socket.socket:
                return socket.create_connection(to)

        for holder in ("another", None):
            with client(tunnel_of(holder, Here(None))) as connected:
                connected.sendall(b"hello")
                assert exactly(connected, 5) == b"hello"
        released.set()
        eventually(lambda: table._shares._dials.held("it"), "dials are counted on", holds=lambda seen: not seen)
        for tunnel in tunnels:
            tunnel.stop()
        # A client whose dial ends after the loop would be closed by nobody.
        eventually(
            lambda: sum(tunnel.status.waiting for tunnel in tunnels),
            "clients are not turned away",
            holds=lambda seen: not seen,
        )


class _Silent:
    """A SOCKS client at a port of a remote host, who says what it was given, or nothing."""

    def __init__(self, says: bytes = b"") -> None:
        self.says, self.closed = says, threading.Event()
        self.told = b""

    def settimeout(self, _: float | None) -> None:
        pass

    def recv(self, _: int) -> bytes:
        says, self.says = self.says, b""
        if not says:
            self.closed.wait(DEADLINE_SECONDS)
        return says

    def sendall(self, data: bytes) -> None:
        self.told += data

    def close(self) -> None:
        self.closed.set()


class _Listener:
    port = 0

    def __init__(self, clients: list[_Silent]) -> None:
        self.clients = clients

    def accept(self, timeout: float) -> Any:
        if not self.clients:
            raise EOFError
        return self.clients.pop(0)

    def close(self) -> None:
        pass


def test_silent_clients_of_a_remote_port_give_way_to_one_that_says_where_it_leads() -> None:
    loop, shares, taken = Loop("tunnels"), TunnelShares(), SimpleQueue[Any]()
    silent = [_Silent() for _ in range(2 * MAX_DIALS)]
    with closing(Service(echo)) as service:
        wants = _Silent(b"\5\1\0\5\1\0\1\x7f\0\0\1" + struct.pack("!H", service.port))
        RemotePort(loop, _Listener([*silent, wants]), None, lambda *seen: taken.put(seen), shares, lambda: None)
        while (came := taken.get(timeout=DEADLINE_SECONDS))[1] is not wants:
            assert came[0] is None
        assert wants.told == b"\5\0" + b"\5\0\0\1" + bytes(6)
        assert shares._dials.held(None) <= MAX_DIALS
        came[0].close()
        assert not silent[-1].closed.is_set()
        for each in silent:
            each.close()
    loop.close(DEADLINE_SECONDS)
