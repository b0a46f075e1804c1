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
from connmgr_ssh.requests import GlobalRequests, Reply
from connmgr_ssh.stream import packed
from connmgr_ssh.tcp import TcpStream

MAX_UNACCEPTED = 128
"""Most streams that wait to be accepted; the next is refused."""

CANCEL_SECONDS = 5.0
"""Longest wait until the far side has stopped listening on a port."""


class FarListener:
    """A port of the far side in the form of :class:`connmgr.plugin.Listener`.

    ``cancel`` tells the far side to stop listening, and may fail.
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
        """Queue ``stream`` for :meth:`accept`."""
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


class FarPorts:
    """The ports of the far side that a link listens on."""

    def __init__(self, requests: GlobalRequests) -> None:
        self._requests = requests
        self._listeners: dict[int, FarListener] = {}

    def listen(self, host: str, port: int, deadline: Deadline) -> FarListener | None:
        """Let the far side listen on ``host:port``, 0 for a free port; return None if it refuses or is gone.

        :raises TimeoutError: it did not answer in time.
        :raises EOFError | OSError: the connection is gone.
        """
        found: list[FarListener] = []

        def granted(answer: Message) -> None:
            # Connections may arrive directly after the answer.
            found.append(FarListener(host, port or answer.get_int(), self._cancel))
            self._listeners[found[0].port] = found[0]

        reply = Reply(granted)
        self._requests.ask(_request(b"tcpip-forward", host, port), deadline, reply)
        if not reply.wait(deadline.left()):
            raise TimeoutError("The far side did not answer.")
        return found[0] if reply.granted else None

    def taking(self, port: int) -> FarListener | None:
        """Return the listener of a port, if one more stream may wait there."""
        listener = self._listeners.get(port)
        return listener if listener is not None and listener.takes_more else None

    def end(self) -> None:
        """Note that the link is gone."""
        for listener in list(self._listeners.values()):
            listener.end()

    def _cancel(self, port: int, message: Message, deadline: Deadline) -> None:
        self._listeners.pop(port, None)
        reply = Reply()
        self._requests.ask(message, deadline, reply)
        reply.wait(deadline.left())


def refused(host: str, port: int, name: str) -> OperationError:
    """Return the error for a far side that refuses to listen."""
    where = f"port {port}" if port else "a free port"
    return OperationError(
        f"{name} does not listen on {where} of {host}: the port is taken there, or its sshd does not let this user "
        "forward ports (AllowTcpForwarding, GatewayPorts)."
    )


def _request(kind: bytes, host: str, port: int) -> Message:
    fields = packed(kind) + b"\1" + packed(host.encode()) + struct.pack(">I", port)
    return Message(bytes([common.MSG_GLOBAL_REQUEST]) + fields)
