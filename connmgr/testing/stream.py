"""The part of the suite for transports that carry other connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from connmgr.errors import OperationError
from connmgr.plugin import Transport
from connmgr.testing.link import WAIT_SECONDS

MESSAGE = bytes(range(256)) * 256


class StreamConformance:
    """Checks :meth:`connmgr.plugin.Transport.open_tcp`; inherit it beside :class:`ConnectionConformance`.

    The remote host must reach a server of this machine: by default on its loopback address, otherwise on ``address``.
    """

    @pytest.fixture
    def address(self) -> str:
        """This machine's address as the remote host sees it."""
        return "127.0.0.1"

    @pytest.fixture
    def echo(self, address: str) -> Iterator[int]:
        """The port of a server that echoes what one client sends, and then closes."""
        with socket.create_server((address, 0)) as server:
            server.settimeout(WAIT_SECONDS)
            thread = threading.Thread(target=_echo, args=(server,), daemon=True)
            thread.start()
            yield server.getsockname()[1]
        thread.join(WAIT_SECONDS)

    def test_a_stream_carries_bytes_both_ways(self, transport: Transport, address: str, echo: int) -> None:
        stream = transport.open_tcp(address, echo, timeout=WAIT_SECONDS)
        stream.settimeout(WAIT_SECONDS)
        received = bytearray()
        stream.sendall(MESSAGE)
        while len(received) < len(MESSAGE):
            chunk = stream.recv(1 << 16)
            assert chunk, f"the stream ended after {len(received)} of {len(MESSAGE)} bytes"
            received += chunk
        stream.close()
        assert bytes(received) == MESSAGE

    def test_what_is_written_can_end_before_what_is_read(self, transport: Transport, address: str, echo: int) -> None:
        stream = transport.open_tcp(address, echo, timeout=WAIT_SECONDS)
        stream.settimeout(WAIT_SECONDS)
        stream.sendall(b"last words")
        stream.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := stream.recv(100):
            received += chunk
        stream.close()
        assert received == b"last words"

    def test_a_silent_stream_times_out(self, transport: Transport, address: str, echo: int) -> None:
        stream = transport.open_tcp(address, echo, timeout=WAIT_SECONDS)
        stream.settimeout(0.05)
        with pytest.raises(TimeoutError):
            stream.recv(1)
        stream.close()

    def test_a_closed_port_is_an_error_of_its_own(self, transport: Transport, address: str) -> None:
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
        with pytest.raises(OperationError):
            transport.open_tcp(address, port, timeout=WAIT_SECONDS)


def _echo(server: socket.socket) -> None:
    try:
        client, _ = server.accept()
    except OSError:  # no test connected
        return
    with client:
        client.settimeout(WAIT_SECONDS)
        while chunk := client.recv(1 << 16):
            client.sendall(chunk)
