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
# Version 4 answers with version 0 and 90 or 91. Version 5 has 0, or 5 for "connection refused" (RFC 1928, section 6),
# and the address that the server is bound to: all zero, because SSH does not tell it. `ssh -D` answers the same.
_GRANTED_4, _REFUSED_4 = struct.pack("!BBHI", 0, 90, 0, 0), struct.pack("!BBHI", 0, 91, 0, 0)
_GRANTED_5 = bytes((5, 0, 0, IPV4)) + bytes(6)
_REFUSED_5 = bytes((5, 5, 0, IPV4)) + bytes(6)


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

        :raises ValueError: it is not SOCKS, wants anything but an outgoing connection, or has ended.
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

    def _requested(self, host: str, port: int, rest: bytes) -> SocksRequest:
        if self._grants:
            self._answer += self.reply(granted=True)
        return SocksRequest(host, port, rest)

    def _version_4(self) -> SocksRequest | None:
        if len(self._received) < 9:
            return None
        _, command, port, address = struct.unpack("!BBH4s", self._received[:8])
        if command != CONNECT:
            raise ValueError("not to connect")
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
            raise ValueError("no method")
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
            raise ValueError("not to connect")
        start = 5 if received[3] == NAME else 4
        length = {IPV4: 4, NAME: received[4], IPV6: 16}.get(received[3])
        if length is None:
            raise ValueError("no address")
        if len(received) < start + length + 2:
            return None
        address, (port,) = received[start : start + length], struct.unpack("!H", received[start + length :][:2])
        host = address.decode("ascii") if received[3] == NAME else str(ipaddress.ip_address(address))
        return self._requested(host, port, received[start + length + 2 :])
