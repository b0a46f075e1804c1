"""Finds the daemon: its URL, its auth file, and the connection to it."""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from connmgr import paths
from connmgr.client.credentials import BadCredential
from connmgr.client.listener import connect_beside
from connmgr.client.wire import HTTP_PORT, Connection
from connmgr.paths import find_daemon, url_of

LOOPBACK = {"localhost", "::1"}


class DaemonConnection(Connection):
    """A connection to the daemon; :func:`connection_to` makes one."""

    beside: Path | None = None
    """The Unix socket of this user's daemon at this address; it is tried before the port."""

    def connect(self) -> socket.socket:
        found = connect_beside(self.beside, self.timeout) if self.beside is not None else None
        if found is None:
            return super().connect()
        self.sock = found
        return found

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
    port = _named("CONNMGR_PORT") or str(paths.DEFAULT_PORT)
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"Bad value of environment variable CONNMGR_PORT: {port!r} (not a port).")
    running = None if is_address_named() else find_daemon(auth_file)
    return running.url if running else url_of(_named("CONNMGR_HOST") or "127.0.0.1", port)


def is_address_named() -> bool:
    """Whether ``CONNMGR_HOST`` or ``CONNMGR_PORT`` name an address; port 0 does not, because it means any free port."""
    return bool(_named("CONNMGR_HOST") or (_named("CONNMGR_PORT") or "0").strip("0"))


def default_auth_file() -> Path:
    """Return the path of the auth file: ``CONNMGR_AUTH_FILE``, or that of this user's daemon.

    :raises BadCredential: the variable is empty, or names the root directory.
    """
    try:
        found = Path(_named("CONNMGR_AUTH_FILE") or paths.auth_file(os.environ))
    except ValueError as error:
        raise BadCredential(str(error)) from error
    if not found.name:
        # The daemon's other files stand beside it, by its name.
        raise BadCredential(f"CONNMGR_AUTH_FILE is {found}, which is a directory and not a daemon's auth file.")
    return found


def _named(variable: str) -> str | None:
    value = os.environ.get(variable)
    if value is not None and not value.strip():
        raise ValueError(paths.is_empty(variable))
    return value
