"""The local machine as a transport."""

from __future__ import annotations

import os
import pwd
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

from connmgr.errors import HostRefused, OperationError, ShellStartFailed
from connmgr.plugin import Channel, Pty, Transport, connect_unix
from connmgr_local.channel import LocalChannel


class LocalTransport(Transport):
    """Starts processes as children of the daemon, each in its own session, in the user's home directory."""

    runs_locally = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: set[LocalChannel] = set()
        self._closed = False

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        environment = _environment()
        home = environment["HOME"]
        with self._lock:
            if self._closed:
                raise ShellStartFailed("The connection is closed.")
            try:
                channel = LocalChannel(argv, pty, environment, home if os.access(home, os.X_OK) else "/", self._forget)
            except OSError as error:
                raise ShellStartFailed(f"{argv[0]} could not be started: {error.strerror}.") from error
            self._channels.add(channel)
        return channel

    def open_tcp(self, host: str, port: int, *, timeout: float) -> socket.socket:
        try:
            return socket.create_connection((host, port), timeout)
        except OSError as error:
            raise HostRefused(f"Cannot connect to {host}:{port}: {error.strerror or error}.") from error
        except UnicodeError as error:
            raise HostRefused(f"{host!r} is not the name or address of a host.") from error

    def open_unix(self, path: str, *, timeout: float) -> socket.socket:
        try:
            return connect_unix(path, timeout)
        except OSError as error:
            raise HostRefused(f"Cannot connect to the Unix socket {path}: {error.strerror or error}.") from error

    def listen_tcp(self, host: str, port: int, *, timeout: float) -> LocalListener:
        try:
            return LocalListener(socket.create_server((host, port), family=_family(host)))
        except OSError as error:
            raise OperationError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels = list(self._channels)
        for channel in channels:
            channel.close()

    def _forget(self, channel: LocalChannel) -> None:
        with self._lock:
            self._channels.discard(channel)


class LocalListener:
    """A port of this machine in the form of :class:`connmgr.plugin.Listener`."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.port: int = listening.getsockname()[1]

    def accept(self, timeout: float) -> socket.socket:
        """Return the next connection to the port; raise :class:`TimeoutError` if none came in time."""
        self._listening.settimeout(timeout)
        connected, _ = self._listening.accept()
        return connected

    def close(self) -> None:
        """Stop listening; calling it again does nothing."""
        # Wakes a thread that accepts.
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _environment() -> dict[str, str]:
    # The daemon's settings may hold a password (a database URL), so commands do not inherit them.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONNMGR_")}
    environment.setdefault("PATH", os.defpath)
    environment["SHELL"] = "/bin/sh"
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        # A container may run the daemon as a user id that its /etc/passwd does not list.
        environment.setdefault("HOME", "/")
        return environment
    environment.setdefault("HOME", user.pw_dir)
    environment.setdefault("USER", user.pw_name)
    environment.setdefault("LOGNAME", user.pw_name)
    environment["SHELL"] = user.pw_shell or "/bin/sh"
    return environment
