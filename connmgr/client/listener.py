"""Finds out which user's program listens at an address, before a client sends it a secret."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from connmgr.processes import SOCKET_TABLES, TcpAddress, is_trusted, is_unmapped, peer_uid, sockets_at, tcp_address

TCP_LISTEN = "0A"
AUTH_FILE_BYTES = 4096
_IPV4_BYTES = 4


def connect_beside(path: Path, timeout: float | None) -> socket.socket | None:
    """Connect to the Unix socket at ``path``; return None unless a trusted user's daemon serves it."""
    try:
        status = path.lstat()
        if not stat.S_ISSOCK(status.st_mode) or not is_trusted(status.st_uid):
            return None
    except OSError:
        return None
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.settimeout(timeout)
        connected.connect(str(path))
    except OSError:
        connected.close()
        return None
    return connected


def stranger(connected: socket.socket) -> int | None:
    """Return the user id of the listener behind ``connected``, or None if it is this process' user or root.

    Also None if it is unknown: on another machine, in another network namespace, or without ``/proc/net/tcp``.
    :raises OSError: the system does not name the user at the other end of a Unix socket.
    """
    if connected.family == socket.AF_UNIX:
        uid = peer_uid(connected)
        return None if is_trusted(uid) else uid
    here, there = connected.getsockname(), connected.getpeername()
    if here[0] != there[0] and not there[0].startswith(("127.", "::ffff:127.")):
        return None
    own, far = (tcp_address(connected.family, one) for one in (here, there))
    for uid in _owners(own, far):
        if not is_trusted(uid) and not is_unmapped(uid):
            return uid
    return None


def _owners(own: TcpAddress, far: TcpAddress) -> Iterator[int]:
    """Yield the user ids of the accepted end of the connection, if it was accepted, and of the listening socket."""
    # Reading a table takes milliseconds. The IPv6 table also lists sockets that accept IPv4.
    for table in SOCKET_TABLES if len(far[0]) == _IPV4_BYTES else SOCKET_TABLES[1:]:
        listeners: dict[bytes, int] = {}
        for local, remote, state, uid in sockets_at(table, far[1]):
            if local == far and remote == own:
                # The listener may have changed since it accepted the connection.
                yield uid
            elif state == TCP_LISTEN:
                listeners.setdefault(local[0], uid)
        for address in (far[0], bytes(_IPV4_BYTES), bytes(16)):
            if address in listeners:
                yield listeners[address]
                return


def read_auth_file(path: Path, *, foreign: bool) -> str:
    """Return the content of the auth file at ``path``.

    :raises PermissionError: it is not a readable file of this user or root. Only a ``foreign`` daemon's file may belong
        to another user, who could otherwise collect secrets that are meant for this user's daemon.
    :raises OSError: it cannot be read.
    """
    # O_NONBLOCK, so that a FIFO is refused instead of waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(errno.EPERM, "it is not a file", str(path))
        if not (foreign or is_trusted(status.st_uid)):
            raise PermissionError(errno.EPERM, f"it belongs to another user, uid {status.st_uid}", str(path))
        return file.read(AUTH_FILE_BYTES).decode("utf-8", "replace")
