"""The Unix socket beside the auth file; the kernel tells each side which user the other one is."""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from waitress import wasyncore
from waitress.server import TcpWSGIServer

from connmgr.daemon.channel import ClientChannel
from connmgr.paths import socket_of
from connmgr.processes import is_trusted, peer_uid

ADDRESS = ("localhost", 0)
"""The address shown for clients of a Unix socket, which have none."""

logger = logging.getLogger("connmgr.daemon")


class SocketFile:
    """A Unix socket beside ``auth_file``, mode 0600: found until :meth:`remove`, and listening until :meth:`close`.

    The caller holds the auth file, so sockets of other daemons beside it are leftovers, and are removed. If no socket
    can be made (the path is too long or taken), ``bound`` is None and clients use the port.
    """

    def __init__(self, auth_file: Path, port: int) -> None:
        self.bound: socket.socket | None = None
        self._path = socket_of(auth_file, port)
        for left in _left_beside(auth_file):
            left.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX)
        try:
            bound.bind(str(self._path))
            self._path.chmod(0o600)
            bound.listen()
        except OSError as error:
            bound.close()
            reason = error.strerror or str(error)
            logger.warning("No Unix socket at %s: %s. Clients use the port.", self._path, reason)
            return
        self.bound = bound

    def remove(self) -> None:
        """Unlink the socket, so that no further client finds it; calling it again does nothing."""
        if self.bound is not None:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unlink the socket and stop listening."""
        self.remove()
        if self.bound is not None:
            self.bound.close()


def _left_beside(auth_file: Path) -> Iterator[Path]:
    """Yield this user's sockets that :func:`socket_of` names for ``auth_file``, whatever their ports."""
    # Sockets of other programs, and of daemons with other auth files, may have similar names.
    ours = re.compile(re.escape(auth_file.name) + r"\.[0-9]+\.sock")
    try:
        for path in auth_file.parent.iterdir():
            if ours.fullmatch(path.name):
                status = path.lstat()
                if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid():
                    yield path
    except OSError as error:
        logger.warning("Sockets of earlier daemons are not looked for in %s: %s.", auth_file.parent, error.strerror)


class UnixListener(wasyncore.dispatcher):
    """Accepts clients of ``server`` on a bound Unix socket that run as this user or root, while it ``has_room``."""

    def __init__(
        self, server: TcpWSGIServer, bound: socket.socket, sockets: dict[int, Any], has_room: Callable[[], bool]
    ) -> None:
        super().__init__(bound, map=sockets)
        self._server = server
        self._sockets = sockets
        self._has_room = has_room
        self.accepting = True

    def readable(self) -> bool:
        return self._has_room()

    def writable(self) -> bool:
        return False

    def handle_accept(self) -> None:
        try:
            accepted = self.accept()
        except OSError:
            return
        if accepted is None:
            return
        connected = accepted[0]
        try:
            uid = peer_uid(connected)
        except OSError:
            connected.close()
            return
        if is_trusted(uid):
            ClientChannel(self._server, connected, ADDRESS, self._server.adj, map=self._sockets).peer_uid = uid
        else:
            connected.close()
