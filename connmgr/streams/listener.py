"""A port or a Unix socket of this machine whose clients get a stream each, and SOCKS, by which clients say where.

That is the server's side of versions 4, 4a and 5 (RFC 1928), without authentication.
"""

from __future__ import annotations

import ipaddress
import os
import selectors
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from connmgr.streams.endpoints import SocketEndpoint
from connmgr.streams.loop import Loop, Timer

BACKLOG = 256
ACCEPTS_AT_ONCE = 64
GREETING_SECONDS = 10.0
"""Longest wait for the request of a SOCKS client."""

MAX_GREETED = 256
"""Most SOCKS clients of a port that have not sent their request; a further one displaces the one that waits longest."""

PAUSE_SECONDS = 0.25
"""Pause in accepting after the process has run out of descriptors."""


Place = tuple[str, int] | str
"""Where something listens: a host and its TCP port, or the path of a Unix socket."""


class Accepted(NamedTuple):
    """A client, its destination, and the data it has sent so far; ``answer`` tells a SOCKS client the outcome."""

    endpoint: SocketEndpoint
    to: Place
    early: bytes = b""
    answer: Callable[[bool], bytes] = lambda _: b""


Leave = Callable[[], object]
"""Called when a client's socket is closed."""

Admit = Callable[[socket.socket], Leave | None]
"""Says what to call when the client of a socket has left, or None if it is to be disconnected at once."""


def _any(_: socket.socket) -> Leave:
    return lambda: None


class PortListener:
    """A listening port, or a Unix socket that is made for it and has the port 0 and its path as ``host``.

    Its clients go to ``to``, or if that is None, to the address in each one's SOCKS request. ``enter`` is called with
    each client in the thread of the loop, to which all methods belong, unless ``admit``, called there before, refuses
    it.

    :raises OSError: the port is taken, or the address is not this machine's; the socket cannot be made, such as where
        something has its name.
    """

    def __init__(
        self,
        loop: Loop,
        at: Place,
        to: Place | None,
        enter: Callable[[Accepted], None],
        admit: Admit = _any,
    ) -> None:
        self._loop, self._to, self._enter, self._admit = loop, to, enter, admit
        self._made: _MadeSocket | None = None
        self.host: str
        self.port: int
        if isinstance(at, str):
            self._made = _MadeSocket(at)
            self._socket = self._made.listening
            self.host, self.port = at, 0
        else:
            family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
            self._socket = socket.create_server(at, family=family, backlog=BACKLOG)
            self.host, self.port = self._socket.getsockname()[:2]
        self._socket.setblocking(False)
        self._greeted: dict[socket.socket, tuple[Timer, Leave]] = {}
        self._is_open = self._closed = False

    def open(self) -> None:
        """Accept clients. Calling it again does nothing."""
        if not (self._is_open or self._closed):
            self._is_open = True
            self._loop.watch(self._socket.fileno(), selectors.EVENT_READ, self._accept)

    def shut(self) -> None:
        """Accept no clients until :meth:`open`; they wait at the port."""
        if self._is_open:
            self._is_open = False
            self._loop.unwatch(self._socket.fileno())

    def close(self) -> None:
        """Stop listening. Calling it again does nothing."""
        self.shut()
        if self._made is not None and not self._closed:
            self._made.remove()
        self._closed = True
        self._socket.close()
        for connected in list(self._greeted):
            self._turn_away(connected)

    def _accept(self, _: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if not self._is_open:
                return
            try:
                connected, _ = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                # A client may be gone again before it is accepted: ECONNABORTED (accept(2)).
                return
            except OSError:
                # The process has no descriptor left (EMFILE). The client stays in the queue, so the socket stays
                # readable and the loop would spin until another stream has closed its own.
                self.shut()
                self._loop.after(PAUSE_SECONDS, self.open)
                return
            leave = self._admit(connected)
            if leave is None:
                connected.close()
            elif self._to is not None:
                self._enter(Accepted(self._endpoint(connected, leave), self._to))
            else:
                self._greet(connected, leave)

    def _endpoint(self, connected: socket.socket, leave: Leave) -> SocketEndpoint:
        endpoint = SocketEndpoint(self._loop, connected)
        endpoint.at_release.append(leave)
        return endpoint

    def _greet(self, connected: socket.socket, leave: Leave) -> None:
        connected.setblocking(False)
        if len(self._greeted) >= MAX_GREETED:
            self._turn_away(next(iter(self._greeted)))
        greeting = Greeting(grants=False)
        self._loop.watch(connected.fileno(), selectors.EVENT_READ, lambda _: self._hear(connected, greeting))
        timer = self._loop.after(GREETING_SECONDS, partial(self._turn_away, connected))
        self._greeted[connected] = timer, leave

    def _hear(self, connected: socket.socket, greeting: Greeting) -> None:
        try:
            request = greeting.take(connected.recv(MAX_GREETING_BYTES))
            connected.send(greeting.answer())
        except BlockingIOError:
            return
        except (OSError, ValueError):
            with suppress(OSError):
                connected.send(greeting.answer())
            self._turn_away(connected)
            return
        if request is not None:
            timer, leave = self._greeted.pop(connected)
            timer.cancel()
            self._loop.unwatch(connected.fileno())
            endpoint = self._endpoint(connected, leave)
            self._enter(Accepted(endpoint, (request.host, request.port), request.rest, greeting.reply))

    def _turn_away(self, connected: socket.socket) -> None:
        if connected in self._greeted:
            timer, leave = self._greeted.pop(connected)
            timer.cancel()
            self._loop.unwatch(connected.fileno())
            connected.close()
            leave()


class _MadeSocket:
    """A Unix socket at a new ``path`` that only this user may connect to, until :meth:`remove`."""

    def __init__(self, path: str) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self._path = path
        try:
            # Before it has its name, which takes this mode (unix(7) on Linux): by its path another could be meant.
            os.fchmod(self.listening.fileno(), 0o600)
            self.listening.bind(path)
            self.listening.listen(BACKLOG)
            self._identity = _identity(path)
        except BaseException:
            self.listening.close()
            raise

    def remove(self) -> None:
        """Remove its name, unless that is another file's by now."""
        with suppress(OSError):
            if _identity(self._path) == self._identity:
                Path(self._path).unlink()


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


MAX_GREETING_BYTES = 1024
"""Longer than any client's greeting."""

CONNECT = 1
NO_AUTHENTICATION = 0
IPV4, NAME, IPV6 = 1, 3, 4
# Version 4 answers with version 0 and 90 or 91. Version 5 has 0, or 5 for "connection refused" (RFC 1928, section 6),
# and the address that the server is bound to: all zero, because SSH does not tell it. `ssh -D` answers the same.
_GRANTED_4, _REFUSED_4 = struct.pack("!BBHI", 0, 90, 0, 0), struct.pack("!BBHI", 0, 91, 0, 0)
_GRANTED_5 = bytes((5, 0, 0, IPV4)) + bytes(6)
_REFUSED_5 = bytes((5, 5, 0, IPV4)) + bytes(6)
_NO_METHOD_5 = bytes((5, 0xFF))
_NO_COMMAND_5, _NO_ADDRESS_5 = bytes((5, 7, 0, IPV4)) + bytes(6), bytes((5, 8, 0, IPV4)) + bytes(6)


class SocksRequest(NamedTuple):
    """The address that a client wants to reach, and the data that it has already sent."""

    host: str
    port: int
    rest: bytes


class Greeting:
    """The greeting of a client, before its connection leads anywhere.

    With ``grants`` the request is granted before the remote host answers; a connection that fails then ends at once.
    Otherwise :meth:`reply` returns the answer when the remote host has answered.
    """

    def __init__(self, *, grants: bool = True) -> None:
        self._grants = grants
        self._version = 0
        self._received = b""
        self._answer = b""
        self._agreed = False

    def take(self, received: bytes) -> SocksRequest | None:
        """Process received data; return the client's request when it is complete.

        :raises ValueError: it is not SOCKS, wants anything but an outgoing connection, or has ended; :meth:`answer`
            then has what tells the client, if its version has words for that.
        """
        self._received += received
        if not received or len(self._received) > MAX_GREETING_BYTES:
            raise ValueError("no greeting")
        # Version 5 names itself again in its request, which is never read as one of version 4.
        self._version = self._version or self._received[0]
        if self._version == 4:
            return self._version_4()
        if self._version != 5:
            raise ValueError("no SOCKS")
        return self._request_5() if self._agreed or self._agree() else None

    def answer(self) -> bytes:
        """Return the data to send, once."""
        answer, self._answer = self._answer, b""
        return answer

    def reply(self, granted: bool) -> bytes:
        """Return the answer to a client's request for a connection."""
        if self._version == 4:
            return _GRANTED_4 if granted else _REFUSED_4
        return _GRANTED_5 if granted else _REFUSED_5

    def _refuse(self, answer: bytes, why: str) -> NoReturn:
        self._answer += answer
        raise ValueError(why)

    def _requested(self, host: str, port: int, rest: bytes) -> SocksRequest:
        if self._grants:
            self._answer += self.reply(granted=True)
        return SocksRequest(host, port, rest)

    def _version_4(self) -> SocksRequest | None:
        if len(self._received) < 9:
            return None
        _, command, port, address = struct.unpack("!BBH4s", self._received[:8])
        if command != CONNECT:
            self._refuse(_REFUSED_4, "not to connect")
        _, end, rest = self._received[8:].partition(b"\0")
        host = str(ipaddress.IPv4Address(address))
        # Version 4a: the address is 0.0.0.x with x not 0, which is invalid, and a host name follows the user.
        if address[:3] == bytes(3) and address[3]:
            name, end, rest = rest.partition(b"\0")
            host = name.decode("ascii")
        if not end:
            return None
        return self._requested(host, port, rest)

    def _agree(self) -> bool:
        if len(self._received) < 2 or len(self._received) < 2 + self._received[1]:
            return False
        methods = self._received[2 : 2 + self._received[1]]
        if NO_AUTHENTICATION not in methods:
            self._refuse(_NO_METHOD_5, "no method")
        self._received = self._received[2 + len(methods) :]
        self._answer = bytes((5, NO_AUTHENTICATION))
        self._agreed = True
        # The rest, if it has arrived, begins with the version again.
        return bool(self._received)

    def _request_5(self) -> SocksRequest | None:
        received = self._received
        if received[0] != self._version:
            raise ValueError("two versions")
        if len(received) < 5:
            return None
        if received[1] != CONNECT:
            # BIND and UDP ASSOCIATE: a client that is told does not wait for a datagram.
            self._refuse(_NO_COMMAND_5, "not to connect")
        start = 5 if received[3] == NAME else 4
        length = {IPV4: 4, NAME: received[4], IPV6: 16}.get(received[3])
        if length is None:
            self._refuse(_NO_ADDRESS_5, "no address")
        if len(received) < start + length + 2:
            return None
        address, (port,) = received[start : start + length], struct.unpack("!H", received[start + length :][:2])
        host = address.decode("ascii") if received[3] == NAME else str(ipaddress.ip_address(address))
        return self._requested(host, port, received[start + length + 2 :])
