"""The table of a daemon's tunnels."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import ExitStack
from functools import partial
from typing import cast

import pytest

from connmgr.links.table import LinkTable
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.tunnels.table import Tunnels, _Entry
from connmgr.tunnels.tunnel import OPEN, STOPPED, LiveTunnel, Route
from connmgr.vault import Vault
from connmgr.vault.names import LOCAL
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.tunnels.services import client


def test_a_tunnel_is_stopped_only_when_its_port_is_closed(vault: Vault) -> None:
    closes, table = threading.Event(), Tunnels(vault, Registry.load(), cast(LinkTable, None), DEADLINE_SECONDS)
    with ExitStack() as ending:
        ending.callback(table.close, DEADLINE_SECONDS)
        listen = partial(table._listen, ("127.0.0.1", 0), "/none", sys.maxsize)
        tunnel = LiveTunnel(table._loop, lambda: Route(None), listen, None)
        table._entries["one"] = _Entry(Access(), None, LOCAL, tunnel)
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
