"""The server's side of SOCKS 4, 4a and 5 (RFC 1928) without authentication, for connections out alone."""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

MAX_GREETING_BYTES = 1024
"""More than any greeting of a client has."""

CONNECT = 1
NO_AUTHENTICATION = 0
IPV4, NAME, IPV6 = 1, 3, 4
_GRANTED_4, _REFUSED_4 = struct.pack("!BBHI", 0, 90, 0, 0), struct.pack("!BBHI", 0, 91, 0, 0)
_GRANTED_5 = bytes((5, 0, 0, IPV4)) + bytes(6)
_REFUSED_5 = bytes((5, 5, 0, IPV4)) + bytes(6)


class Asked(NamedTuple):
    """Where a client wants to, and what it has sent already."""

    host: str
    port: int
    rest: bytes


class Greeting:
    """What a client says before its connection leads anywhere.

    With ``grants`` it is told that it does before the far side knows: what cannot be reached is a connection that ends
    at once. Otherwise :meth:`reply` has what it is told when the far side does.
    """

    def __init__(self, *, grants: bool = True) -> None:
        self._grants = grants
        self._version = 0
        self._received = b""
        self._answer = b""
        self._agreed = False

    def take(self, received: bytes) -> Asked | None:
        """Take what has come; return where the client wants to when all of that has.

        :raises ValueError: it is no SOCKS, asks for something else than a connection out, or has ended.
        """
        self._received += received
        if not received or len(self._received) > MAX_GREETING_BYTES:
            raise ValueError("no greeting")
        version = self._version = self._received[0]
        if version == 4:
            return self._version_4()
        if version != 5:
            raise ValueError("no SOCKS")
        return self._request_5() if self._agreed or self._agree() else None

    def answer(self) -> bytes:
        """Return what is to be sent, once."""
        answer, self._answer = self._answer, b""
        return answer

    def reply(self, granted: bool) -> bytes:
        """Return what tells a client that has asked whether its connection is there."""
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
        # Version 4a: an address that cannot be, and a name behind the user.
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
        # The rest, if it has come already, begins with the version again.
        return bool(self._received)

    def _request_5(self) -> Asked | None:
        held = self._received
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
