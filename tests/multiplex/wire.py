"""The multiplexing protocol by hand: packets, passed descriptors, and what the daemon answers."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections.abc import Sequence

from tests.deadlines import DEADLINE_SECONDS

HELLO = 1
NEW_SESSION, ALIVE_CHECK = 0x10000002, 0x10000004
OK, PERMISSION_DENIED, FAILURE, EXIT_MESSAGE, ALIVE, SESSION_OPENED = (
    0x80000001,
    0x80000002,
    0x80000003,
    0x80000004,
    0x80000005,
    0x80000006,
)
NONE = 0xFFFFFFFF


def packet(*members: int | bytes) -> bytes:
    """Return a packet of numbers and strings."""
    body = b"".join(
        struct.pack(">I", one) if isinstance(one, int) else struct.pack(">I", len(one)) + one for one in members
    )
    return struct.pack(">I", len(body)) + body


GREETING = packet(HELLO, 4)


def session(command: bytes, *, number: int = 1, environment: Sequence[bytes] = ()) -> bytes:
    """Return the request for a session without a terminal."""
    return packet(NEW_SESSION, number, b"", 0, 0, 0, 0, NONE, b"xterm", command, *environment)


class Wire:
    """A connection to a control socket."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        # First without a timeout: a full backlog refuses whoever does not wait (unix(7)).
        self.socket.connect(path)
        self.socket.settimeout(DEADLINE_SECONDS)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self._file.close()
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        """Send bytes as they are."""
        for piece in pieces:
            self.socket.sendall(piece)

    def pass_on(self, *descriptors: int) -> None:
        """Pass descriptors, each with a byte, as OpenSSH does."""
        for descriptor in descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
            self.socket.sendmsg([b"\0"], [rights])

    def receive(self) -> tuple[int, ...] | None:
        """Return the numbers at the beginning of the next packet, with a string as its length; None at the end."""
        with contextlib.suppress(ConnectionResetError):
            head = self._file.read(4)
            if len(head) == 4:
                body = self._file.read(struct.unpack(">I", head)[0])
                self.text = body[12:].decode(errors="replace") if len(body) > 12 else ""
                return struct.unpack(f">{min(3, len(body) // 4)}I", body[: 4 * min(3, len(body) // 4)])
        return None

    text = ""
    """The string of the last packet, if it had one."""

    def greet(self) -> None:
        """Exchange greetings."""
        self.send(GREETING)
        assert self.receive() == (HELLO, 4)

    def rest(self) -> list[tuple[int, ...]]:
        """Return all further packets, until the daemon closes."""
        packets = []
        while (one := self.receive()) is not None:
            packets.append(one)
        return packets


def nothing() -> int:
    """Return a descriptor of /dev/null."""
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
