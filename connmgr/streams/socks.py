"""The server's side of SOCKS 4, 4a and 5 (RFC 1928) without authentication, only for outgoing connections."""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

MAX_GREETING_BYTES = 1024
"""Longer than any client's greeting."""

CONNECT = 1
NO_AUTHENTICATION = 0
IPV4, NAME, IPV6 = 1, 3, 4
_GRANTED_4, _REFUSED_4 = struct.pack("!BBHI", 0, 90, 0, 0), struct.pack("!BBHI", 0, 91, 0, 0)
_GRANTED_5 = bytes((5, 0, 0, IPV4)) + bytes(6)
_REFUSED_5 = bytes((5, 5, 0, IPV4)) + bytes(6)


class Asked(NamedTuple):
    """The address that a client asks for, and the data that it has already sent."""

    host: str
    port: int
    rest: bytes


class Greeting:
    """The greeting of a client, before its connection leads anywhere.

    With ``grants`` the request is granted before the far side answers; a connection that fails then ends at once.
    Otherwise :meth:`reply` returns the answer when the far side has answered.
    """

    def __init__(self, *, grants: bool = True) -> None:
        self._grants = grants
        self._version = 0
        self._received = b""
        self._answer = b""
        self._agreed = False

    def take(self, received: bytes) -> Asked | None:
        """Process received data; return the client's request when it is complete.

        :raises ValueError: it is no SOCKS, asks for anything but an outgoing connection, or has ended.
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

    def _asked(self, host: str, port: int, rest: bytes) -> Asked:
        if self._grants:
            self._answer += self.reply(granted=True)
        return Asked(host, port, rest)

    def _version_4(self) -> Asked | None:
        if len(self._received) < 9:
            return None
        _, command, port, address = struct.unpack("!BBH4s", self._received[:8])
        if command != CONNECT:
            raise ValueError("not to connect")
        _, end, rest = self._received[8:].partition(b"\0")
        host = str(ipaddress.IPv4Address(address))
        # Version 4a: an invalid address, and a host name after the user.
        if address[:3] == bytes(3) and address[3]:
            name, end, rest = rest.partition(b"\0")
            host = name.decode("ascii")
        if not end:
            return None
        return self._asked(host, port, rest)

    def _agree(self) -> bool:
        if len(self._received) < 2 or len(self._received) < 2 + self._received[1]:
            return False
        methods = self._received[2 : 2 + self._received[1]]
        if NO_AUTHENTICATION not in methods:
            raise ValueError("no method")
        self._received = self._received[2 + len(methods) :]
        self._answer = bytes((5, NO_AUTHENTICATION))
        self._agreed = True
        # The rest, if it has arrived, begins with the version again.
        return bool(self._received)

    def _request_5(self) -> Asked | None:
        held = self._received
        if held[0] != self._version:
            raise ValueError("two versions")
        if len(held) < 5:
            return None
        if held[1] != CONNECT:
            raise ValueError("not to connect")
        start = 5 if held[3] == NAME else 4
        length = {IPV4: 4, NAME: held[4], IPV6: 16}.get(held[3])
        if length is None:
            raise ValueError("no address")
        if len(held) < start + length + 2:
            return None
        address, (port,) = held[start : start + length], struct.unpack("!H", held[start + length :][:2])
        host = address.decode("ascii") if held[3] == NAME else str(ipaddress.ip_address(address))
        return self._asked(host, port, held[start + length + 2 :])
