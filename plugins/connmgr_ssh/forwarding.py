"""Global requests of a link (RFC 4254, section 4), and the ports of the remote host that they open (section 7):
requests ``tcpip-forward`` and channels ``forwarded-tcpip``; and its Unix sockets, by OpenSSH's extension of that.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from paramiko import common
from paramiko.message import Message

from connmgr.errors import OperationError
from connmgr.plugin import Deadline
from connmgr_ssh.channels import TcpStream
from connmgr_ssh.packets import packed

MAX_UNACCEPTED = 128
"""Most streams that wait to be accepted; the next is refused."""

CANCEL_SECONDS = 5.0
"""Longest wait until the remote host has stopped listening on a port."""


class Reply:
    """The answer to a global request; the reading thread calls it with the message, or None for a refusal."""

    def __init__(self, when_granted: Callable[[Message], None] = lambda _: None) -> None:
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


class GlobalRequests:
    """The requests that wait for answers; answers name no request, but come in the order of the requests.

    The reading thread calls :meth:`answered` and :meth:`end`. ``post`` sends a message.
    """

    def __init__(self, post: Callable[[Message, Deadline], None]) -> None:
        self._post = post
        self._ordering = threading.Lock()
        self._replies: deque[Reply | None] = deque()

    def ask(self, message: Message, deadline: Deadline, reply: Reply | None = None) -> None:
        """Send a request; ``reply`` is called with its answer.

        :raises EOFError | OSError: the connection is gone.
        """
        # Answers come in the order of the requests (RFC 4254, section 4). The lock is held while the message is sent,
        # so that the list has that order.
        with self._ordering:
            self._replies.append(reply)
            try:
                self._post(message, deadline)
            except BaseException:
                self._replies.pop()
                raise

    def ask_at_once(self, send: Callable[[], bool]) -> None:
        """Call ``send`` to send a request, unless another thread is sending one; ``send`` returns whether it did."""
        if self._ordering.acquire(blocking=False):
            try:
                self._replies.append(None)
                if not send():
                    self._replies.pop()
            finally:
                self._ordering.release()

    def answered(self, answer: Message | None) -> None:
        """Pass an answer, None for a refusal, to the oldest request."""
        reply = self._replies.popleft() if self._replies else None
        if reply is not None:
            reply(answer)

    def end(self) -> None:
        """Refuse all waiting requests: the link is gone."""
        for reply in list(self._replies):
            if reply is not None:
                reply(None)


class RemoteListener:
    """A port or a Unix socket of the remote host in the form of :class:`connmgr.plugin.Listener`.

    ``cancel`` tells the remote host to stop listening, and may fail.
    """

    def __init__(self, port: int, cancel: Callable[[Deadline], None]) -> None:
        self.port = port
        self._cancel = cancel
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
        raise TimeoutError("No connection came in time.")

    def end(self) -> None:
        """Note that the link is gone."""
        with self._changed:
            self._closed = True
            streams = list(self._streams)
            self._streams.clear()
            self._changed.notify_all()
        for stream in streams:
            stream.close()

    def close(self) -> None:
        """Stop listening; calling it again does nothing."""
        if not self._closed:
            self.end()
            with suppress(OSError, EOFError):
                self._cancel(Deadline(CANCEL_SECONDS))


class RemotePorts:
    """The ports and the Unix sockets of the remote host that a link listens on."""

    def __init__(self, requests: GlobalRequests) -> None:
        self._requests = requests
        self._listeners: dict[int | bytes, RemoteListener] = {}

    def listen(self, host: str, port: int, deadline: Deadline) -> RemoteListener | None:
        """Let the remote host listen on ``host:port``, 0 for a free port; return None if it refuses or is gone.

        :raises TimeoutError: it did not answer in time.
        :raises EOFError | OSError: the connection is gone.
        """

        def listening(answer: Message) -> tuple[int, RemoteListener]:
            # The answer has a port only if the request had port 0 (RFC 4254, section 7.1).
            given = port or answer.get_int()
            request = _request(b"cancel-tcpip-forward", host, given)
            return given, RemoteListener(given, partial(self._cancel, given, request))

        return self._listen(_request(b"tcpip-forward", host, port), listening, deadline)

    def listen_unix(self, path: str, deadline: Deadline) -> RemoteListener | None:
        """Let the remote host listen at the Unix socket ``path`` (OpenSSH's PROTOCOL, section 2.4), as :meth:`listen`.

        :raises TimeoutError: it did not answer in time.
        :raises EOFError | OSError: the connection is gone.
        """
        key = path.encode()
        cancel = partial(self._cancel, key, _socket_request(b"cancel-streamlocal-forward@openssh.com", key))
        request = _socket_request(b"streamlocal-forward@openssh.com", key)
        return self._listen(request, lambda _: (key, RemoteListener(0, cancel)), deadline)

    def _listen(
        self, request: Message, listening: Callable[[Message], tuple[int | bytes, RemoteListener]], deadline: Deadline
    ) -> RemoteListener | None:
        listeners: list[RemoteListener] = []

        def granted(answer: Message) -> None:
            # In the reading thread, because connections may arrive directly after the answer.
            key, listener = listening(answer)
            self._listeners[key] = listener
            listeners.append(listener)

        reply = Reply(granted)
        self._requests.ask(request, deadline, reply)
        if not reply.wait(deadline.left()):
            raise TimeoutError("The remote host did not answer.")
        return listeners[0] if reply.granted else None

    def taking(self, key: int | bytes) -> RemoteListener | None:
        """Return the listener of a port or of a Unix socket, if one more stream may wait there."""
        # By the port alone: the address is the one that the client has reached (RFC 4254, section 7.2), and not always
        # the one of the request, such as 0.0.0.0 or localhost.
        listener = self._listeners.get(key)
        return listener if listener is not None and listener.takes_more else None

    def end(self) -> None:
        """Note that the link is gone."""
        for listener in list(self._listeners.values()):
            listener.end()

    def _cancel(self, key: int | bytes, message: Message, deadline: Deadline) -> None:
        self._listeners.pop(key, None)
        reply = Reply()
        self._requests.ask(message, deadline, reply)
        reply.wait(deadline.left())


def refused(host: str, port: int, name: str) -> OperationError:
    """Return the error for a remote host that refuses to listen."""
    where = f"port {port}" if port else "a free port"
    return OperationError(
        f"{name} does not listen on {where} of {host}: the port is taken there, or its sshd does not let this user "
        "forward ports (AllowTcpForwarding, GatewayPorts)."
    )


def _request(kind: bytes, host: str, port: int) -> Message:
    fields = packed(kind) + b"\1" + packed(host.encode()) + struct.pack(">I", port)
    return Message(bytes([common.MSG_GLOBAL_REQUEST]) + fields)


def _socket_request(kind: bytes, path: bytes) -> Message:
    return Message(bytes([common.MSG_GLOBAL_REQUEST]) + packed(kind) + b"\1" + packed(path))
