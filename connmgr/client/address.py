"""Where the daemon is: its URL, its auth file, and whether the program that listens there is the user's own."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from connmgr import paths
from connmgr.client.credentials import BadCredential
from connmgr.client.wire import HTTP_PORT, Connection
from connmgr.paths import find_daemon, url_of
from connmgr.processes import SOCKET_TABLES, TcpAddress, is_trusted, is_unmapped, peer_uid, sockets_at, tcp_address

LOOPBACK = {"localhost", "::1"}


class DaemonConnection(Connection):
    """A connection to the daemon; :func:`connection_to` makes one."""

    beside: Path | None = None
    """The Unix socket of this user's daemon at this address; it is tried before the port."""

    def connect(self) -> socket.socket:
        unix_socket = connect_beside(self.beside, self.timeout) if self.beside is not None else None
        if unix_socket is None:
            return super().connect()
        self.sock = unix_socket
        return unix_socket

    def limit(self, seconds: float) -> None:
        """Wait at most ``seconds`` whenever something is sent or received."""
        self.timeout = seconds
        if self.sock is not None:
            self.sock.settimeout(seconds)

    def abandon(self) -> None:
        """Wake a thread that waits for an answer; for it, the connection breaks."""
        sock = self.sock
        if sock is not None:
            # The socket may be closed already.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close_if_stale(self) -> None:
        """Close the connection if the daemon has closed it; otherwise the next request would fail after it is sent."""
        if self.sock is None:
            return
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        if poll.poll(0):
            self.close()


def connection_to(url: str, timeout: float, auth_file: Path | None) -> DaemonConnection:
    """Return the connection to the daemon at ``url``, not open yet; the socket beside ``auth_file`` is preferred.

    :raises ValueError: ``url`` cannot be the URL of a daemon.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname and not _has_blank(parts.hostname):
            connection = DaemonConnection(parts.hostname, parts.port or HTTP_PORT, timeout)
            if auth_file is not None and (parts.hostname in LOOPBACK or parts.hostname.startswith("127.")):
                connection.beside = paths.socket_of(auth_file, connection.port)
            return connection
    except ValueError:
        pass
    raise ValueError(f"Not the URL of a daemon, such as http://127.0.0.1:{paths.DEFAULT_PORT}: {url}")


def _has_blank(host: str) -> bool:
    return any(character <= " " or character == "\x7f" for character in host)


def default_url(auth_file: Path) -> str:
    """Return the URL that ``CONNMGR_HOST`` and ``CONNMGR_PORT`` name, or else that of the daemon with ``auth_file``.

    If no daemon runs, return the default URL.
    :raises ValueError: ``CONNMGR_PORT`` is not a port, or one of the two is empty.
    """
    port = _value_of("CONNMGR_PORT") or str(paths.DEFAULT_PORT)
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"Bad value of environment variable CONNMGR_PORT: {port!r} (not a port).")
    running = None if is_address_named() else find_daemon(auth_file)
    return running.url if running else url_of(_value_of("CONNMGR_HOST") or "127.0.0.1", port)


def is_address_named() -> bool:
    """Whether ``CONNMGR_HOST`` or ``CONNMGR_PORT`` name an address; port 0 does not, because it means any free port."""
    return bool(_value_of("CONNMGR_HOST") or (_value_of("CONNMGR_PORT") or "0").strip("0"))


def default_auth_file() -> Path:
    """Return the path of the auth file: ``CONNMGR_AUTH_FILE``, or that of this user's daemon.

    :raises BadCredential: the variable is empty, or names the root directory.
    """
    try:
        path = Path(_value_of("CONNMGR_AUTH_FILE") or paths.auth_file(os.environ))
    except ValueError as error:
        raise BadCredential(str(error)) from error
    if not path.name:
        # The daemon's other files stand beside it, by its name.
        raise BadCredential(f"CONNMGR_AUTH_FILE is {path}, which is a directory and not a daemon's auth file.")
    return path


def _value_of(variable: str) -> str | None:
    value = os.environ.get(variable)
    if value is not None and not value.strip():
        raise ValueError(paths.is_empty(variable))
    return value


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
    # A dead daemon's port is free for every user of this machine, and the client's first bytes are its credential.
    here, there = connected.getsockname(), connected.getpeername()
    if here[0] != there[0] and not there[0].startswith(("127.", "::ffff:127.")):
        return None
    own, far = (tcp_address(connected.family, address) for address in (here, there))
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
