"""Ports of the far side: requests ``tcpip-forward`` and channels ``forwarded-tcpip`` (RFC 4254, section 7)."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from paramiko import common
from paramiko.message import Message

from connmgr.errors import OperationError
from connmgr.plugin import Deadline
from connmgr_ssh.stream import packed
from connmgr_ssh.tcp import TcpStream

MAX_UNACCEPTED = 128
"""Streams that wait to be accepted; further ones are refused."""


CANCEL_SECONDS = 5.0
"""Longest time to wait until a port is not listened on any more."""


class Reply:
    """The answer to a global request, which whoever reads from the link calls with the message, None for a refusal."""

    def __init__(self, when_granted: Callable[[Message], None]) -> None:
        self._when_granted = when_granted
        self._settled = threading.Event()
        self.granted = False

    def __call__(self, message: Message | None) -> None:
        if message is not None:
            self.granted = True
            self._when_granted(message)
        self._settled.set()

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the answer; return whether it came."""
        return self._settled.wait(timeout)


class FarListener:
    """A port of the far side in the form of :class:`connmgr.plugin.Listener`.

    ``cancel`` has the far side stop listening, and may fail.
    """

    def __init__(self, host: str, port: int, cancel: Callable[[int, Message, Deadline], None]) -> None:
        self.port = port
        self._host, self._cancel = host, cancel
        self._changed = threading.Condition()
        self._streams: deque[TcpStream] = deque()
        self._closed = False

    @property
    def takes_more(self) -> bool:
        """Whether one more stream may wait."""
        return not self._closed and len(self._streams) < MAX_UNACCEPTED

    def put(self, stream: TcpStream) -> None:
        """Have ``stream`` accepted."""
        with self._changed:
            if not self._closed:
                self._streams.append(stream)
                self._changed.notify()
                return
        stream.close()

    def accept(self, timeout: float) -> TcpStream:
        """Return the next stream opened to the port.

        :raises TimeoutError: none came within ``timeout`` seconds.
        :raises EOFError: the port or the link is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._streams or self._closed, timeout)
            if self._streams:
                return self._streams.popleft()
            if self._closed:
                raise EOFError
        raise TimeoutError("Nobody came.")

    def end(self) -> None:
        """Note that the link is gone."""
        with self._changed:
            self._closed = True
            left = list(self._streams)
            self._streams.clear()
            self._changed.notify_all()
        for stream in left:
            stream.close()

    def close(self) -> None:
        """Stop listening; calling it again does nothing."""
        if not self._closed:
            self.end()
            with suppress(OSError, EOFError):
                request = _request(b"cancel-tcpip-forward", self._host, self.port)
                self._cancel(self.port, request, Deadline(CANCEL_SECONDS))


def forward_request(host: str, port: int) -> Message:
    """Return the message that asks to listen on ``host:port``."""
    return _request(b"tcpip-forward", host, port)


def refused(host: str, port: int, name: str) -> OperationError:
    """Return the error of a far side that does not listen."""
    where = f"port {port}" if port else "a free port"
    return OperationError(
        f"{name} does not listen on {where} of {host}: the port is taken there, or its sshd does not let this user "
        "forward ports (AllowTcpForwarding, GatewayPorts)."
    )


def _request(kind: bytes, host: str, port: int) -> Message:
    fields = packed(kind) + b"\1" + packed(host.encode()) + struct.pack(">I", port)
    return Message(bytes([common.MSG_GLOBAL_REQUEST]) + fields)
