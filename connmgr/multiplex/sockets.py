"""The control sockets: files in a directory that only the daemon's user enters, and one listener for all of them."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import selectors
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from connmgr.contract.multiplex import REMOTE
from connmgr.errors import ConnectTimeout, InvalidRequest, NoControlSocket, Stopping
from connmgr.multiplex.clients import MultiplexClient
from connmgr.multiplex.passengers import Passenger, Pipeline, Sender, Served
from connmgr.processes import is_trusted, most_open_files, peer_uid
from connmgr.secrets.principals import Access
from connmgr.shares import refused, room
from connmgr.streams.listener import Place
from connmgr.streams.loop import Loop
from connmgr.tunnels.table import Tunnels
from connmgr.tunnels.tunnel import FAILED, STOPPED

BACKLOG = 128
ACCEPTS_AT_ONCE = 32
PAUSE_SECONDS = 0.25
"""Pause in accepting after the process has run out of descriptors."""

MAX_IDLE = 512
"""Most clients that ask for nothing; beyond it the one of whoever has the most that has waited longest is closed."""

MAX_AT_WORK = 512
"""Most clients that have a session, or wait for an answer, each with up to four descriptors; a token has a share."""

RESERVED_DESCRIPTORS = 4096
"""Descriptors that sockets leave to everything else, as far as the process may have more than twice as many."""

MAX_PATH_BYTES = 107
"""Longest path of a socket on Linux (sun_path of unix(7) has 108 bytes, with the NUL that ends it)."""

NAME_CHARACTERS = 20
TURN_SECONDS = 60.0
"""Longest wait for a forward that is being opened for another program."""


class ForwardedPort(NamedTuple):
    """A forward as it was asked for: ``-L``, ``-R`` or ``-D``, where it listens, and where it leads."""

    kind: str
    at: Place
    to: Place | None


class OpenedForward(NamedTuple):
    """An open forward: the id of its tunnel, and the address at which it listens, with the port 0 if it is a path."""

    tunnel: str
    address: tuple[str, int]


class ControlSocket(NamedTuple):
    """A socket at ``path`` that stands for ``connection``, with the rights of ``sender``."""

    connection: str
    name: str
    """The connection's name, as the command line has it."""

    sender: Sender
    path: Path
    listening: socket.socket
    forwards: dict[ForwardedPort, OpenedForward]
    """The open forwards; used under the lock of :class:`ControlSockets`."""

    @property
    def token(self) -> str | None:
        """The id of the token with which it ends; None for the owner."""
        return self.sender.token


_Key = tuple[str, "str | None"]
"""A connection and the id of a token, or None for the owner: there is one socket for each."""


class ControlSockets:
    """All control sockets of the daemon, in ``directory``; ``name`` tells them apart from sockets of other daemons.

    Safe to use from several threads; ``loop`` serves their clients.
    """

    pipeline: Pipeline
    """Set before the first socket is opened."""

    def __init__(self, loop: Loop, tunnels: Tunnels, directory: Path, name: str) -> None:
        self.loop, self._tunnels, self._directory, self._name = loop, tunnels, directory, name
        self._lock = threading.Lock()
        self._sockets: dict[_Key, ControlSocket] = {}
        self._opening: dict[tuple[_Key, ForwardedPort], threading.Event] = {}
        self._closing = False
        self._clients: dict[MultiplexClient, None] = {}
        self._kept: dict[_Key, list[Mapping[str, Any]]] = {}
        """The forwards that last without a client, as they were asked for; in the thread of the loop."""

        self._numbers = itertools.count(1)

    # In any thread.

    def open(self, connections: Mapping[str, str], sender: Sender) -> dict[str, Path]:
        """Listen for each of ``connections``, by their names, with the rights of ``sender``; return the sockets' paths.

        A socket that is open gets these rights from now on: those of another session of the same token or owner.

        :raises NoControlSocket: the directory cannot be used, or no more descriptors are left for sockets.
        """
        opened: list[ControlSocket] = []
        paths: dict[str, Path] = {}
        with self._lock:
            if self._closing:
                raise Stopping("The daemon is stopping.")
            _prepare(self._directory)
            room = self._room_of(sender.holder)
            for connection, name in connections.items():
                key = connection, sender.token
                entry = self._sockets.get(key)
                if entry is not None and not entry.path.is_socket():
                    # Somebody has removed or replaced it.
                    self._retire({key: self._sockets.pop(key)})
                    entry = None
                if entry is None:
                    if room <= 0:
                        raise NoControlSocket(
                            f"{len(self._sockets)} control sockets are open; more would exceed the daemon's "
                            "limit of open files (ulimit -n), or the token's share of it: close some first."
                        )
                    room -= 1
                    entry = self._bound(connection, name, sender)
                    opened.append(entry)
                else:
                    entry = entry._replace(name=name, sender=sender)
                self._sockets[key] = entry
                paths[connection] = entry.path
        if opened:
            self.loop.call(partial(self._watch, opened))
        if sender.ended:
            # The token was revoked meanwhile, too late for that to find these sockets.
            self.end([sender.token] if sender.token is not None else [])
        return paths

    def unlocked(self, sender: Sender) -> None:
        """Give the owner's sockets the rights of a session of the owner in which a user was unlocked."""
        with self._lock:
            for key, entry in self._sockets.items():
                if entry.token is None:
                    self._sockets[key] = entry._replace(sender=sender)

    def close(self, token: str | None, connections: Collection[str] | None = None) -> int:
        """Close sockets of a token or the owner; return how many. Sessions run on."""
        return self._end(
            lambda entry: entry.token == token and (connections is None or entry.connection in connections)
        )

    def forward(self, connection: str, access: Access, sender: Sender, port: ForwardedPort) -> OpenedForward:
        """Open a forward of the socket for ``connection``, or find it; it ends with the socket.

        :raises InvalidRequest: there is no such socket.
        :raises ConnmgrError: the forward cannot be opened.
        """
        key, until = (connection, sender.token), time.monotonic() + TURN_SECONDS
        while True:
            with self._lock:
                opened_forward = self._known(key, port)
                if opened_forward is not None:
                    return opened_forward
                others = self._opening.get((key, port))
                if others is None:
                    done = self._opening[key, port] = threading.Event()
                    break
            # Two programs that ask for the same at once get the same.
            if not others.wait(max(0.0, until - time.monotonic())):
                raise ConnectTimeout("The forward is still being opened for another program; try again.")
        try:
            return self._opened(key, access, sender, port)
        finally:
            with self._lock:
                del self._opening[key, port]
            done.set()

    def _known(self, key: _Key, port: ForwardedPort) -> OpenedForward | None:
        """Return a forward that is open, or None; called under the lock."""
        forwards = self._find(key).forwards
        opened_forward = forwards.get(port)
        if opened_forward is not None and self._tunnels.status(opened_forward.tunnel).state in (STOPPED, FAILED):
            # It ended with a change of the connection, or for good.
            del forwards[port]
            self.loop.work(partial(self._tunnels.cancel, [opened_forward.tunnel]))
            return None
        return opened_forward

    def _opened(self, key: _Key, access: Access, sender: Sender, port: ForwardedPort) -> OpenedForward:
        tunnel, address = self._tunnels.forward(
            key[0],
            port.at,
            port.to,
            access,
            listens_far=port.kind == REMOTE,
            token=sender.token,
            holder=sender.holder,
            has_ended=lambda: sender.ended,
        )
        with self._lock:
            at = self._sockets.get(key)
            if at is not None:
                opened = at.forwards[port] = OpenedForward(tunnel, address)
                return opened
        self._tunnels.cancel([tunnel])
        raise InvalidRequest("connection: Its control socket was closed meanwhile.")

    def cancel(self, connection: str, token: str | None, port: ForwardedPort) -> bool:
        """Close a forward of a socket; return whether there was one."""
        with self._lock:
            opened_forward = self._find((connection, token)).forwards.pop(port, None)
        if opened_forward is not None:
            self._tunnels.cancel([opened_forward.tunnel])
        return opened_forward is not None

    def _room_of(self, holder: str | None) -> int:
        """Return how many more sockets may be opened for ``holder`` (:mod:`connmgr.shares`)."""
        limit = most_open_files()
        most = max(limit - RESERVED_DESCRIPTORS, limit // 2)
        return room(most, holder, ((entry.sender.holder, 1) for entry in self._sockets.values()))

    def _find(self, key: _Key) -> ControlSocket:
        if key not in self._sockets:
            raise InvalidRequest("connection: It has no open control socket; /multiplex/open opens one.")
        return self._sockets[key]

    def forget(self, connections: Collection[str]) -> None:
        """Close the sockets of connections that were removed."""
        self._end(lambda entry: entry.connection in connections)

    def end(self, tokens: Collection[str]) -> None:
        """Close the sockets of tokens that have become invalid."""
        self._end(lambda entry: entry.token in tokens)

    def all(self) -> list[ControlSocket]:
        """Return the open sockets."""
        with self._lock:
            return list(self._sockets.values())

    def resized(self) -> None:
        """Look at the sizes of all terminals, after a client's signal. Safe in a signal handler."""
        self.loop.call(self._resize)

    def stop(self) -> None:
        """Close all sockets, and open no more."""
        with self._lock:
            self._closing = True
        self._end(lambda _: True)

    def number(self) -> int:
        """Return a number for a session."""
        return next(self._numbers) & 0x7FFFFFFF

    def _end(self, concerns: Callable[[ControlSocket], bool]) -> int:
        with self._lock:
            ending = {key: entry for key, entry in self._sockets.items() if concerns(entry)}
            for key, entry in ending.items():
                del self._sockets[key]
                entry.path.unlink(missing_ok=True)
        self._retire(ending)
        return len(ending)

    def _retire(self, ending: Mapping[_Key, ControlSocket]) -> None:
        """Stop listening at sockets that have no name any more, and end their forwards."""
        if ending:
            self.loop.call(partial(self._unwatch, list(ending.values())))
        if tunnels := [forward.tunnel for at in ending.values() for forward in at.forwards.values()]:
            # In another thread: this one may be that in which tunnels end.
            self.loop.work(partial(self._tunnels.cancel, tunnels))

    def _bound(self, connection: str, name: str, sender: Sender) -> ControlSocket:
        """Return a socket that listens at its path.

        :raises NoControlSocket: it cannot be made, or another daemon listens there.
        """
        words = "\0".join((self._name, connection, sender.token or ""))
        path = self._directory / sha256(words.encode()).hexdigest()[:NAME_CHARACTERS]
        beside = self._directory / f".{secrets.token_hex((NAME_CHARACTERS - 2) // 2)}"
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.setblocking(False)
            # Listening before it gets its name, so that no client finds one that refuses.
            listening.bind(str(beside))
            listening.listen(BACKLOG)
            _name(beside, path)
        except OSError as error:
            listening.close()
            raise NoControlSocket(f"No control socket can be made at {path}: {error.strerror}.") from error
        except BaseException:
            listening.close()
            raise
        finally:
            beside.unlink(missing_ok=True)
        return ControlSocket(connection, name, sender, path, listening, {})

    # In the thread of the loop.

    def left(self, client: MultiplexClient) -> None:
        """Handle that a client is gone."""
        self._clients.pop(client, None)

    def keep(self, at: Served, forward: Mapping[str, Any], *, lasts: bool) -> None:
        """Note that a forward lasts without the client that has opened it, or no longer does."""
        lasting_forwards = self._kept.setdefault((at.connection, at.sender.token), [])
        if lasts and forward not in lasting_forwards:
            lasting_forwards.append(forward)
        elif not lasts and forward in lasting_forwards:
            lasting_forwards.remove(forward)

    def is_kept(self, at: Served, forward: Mapping[str, Any]) -> bool:
        """Whether a forward lasts, or another client has asked for it."""
        key = at.connection, at.sender.token
        others = (client.forwards for client in self._clients if (client.at.connection, client.at.sender.token) == key)
        return forward in self._kept.get(key, ()) or any(forward in theirs for theirs in others)

    def passengers_of(self, at: Served) -> list[Passenger]:
        """Return the sessions that were begun at a control socket."""
        of = at.connection, at.sender.token
        clients = [client for client in self._clients if (client.at.connection, client.at.sender.token) == of]
        return [client.passenger for client in clients if client.passenger is not None]

    def why_busy(self, at: Served) -> str | None:
        """Return why no further client of a control socket may begin anything now, or None."""
        at_work = [client.at.sender.holder for client in self._clients if not client.is_idle]
        if len(at_work) >= MAX_AT_WORK:
            return f"All {MAX_AT_WORK} places of clients at control sockets are taken; try again later."
        why = refused(MAX_AT_WORK, at.sender.holder, at_work)
        return None if why is None else f"Of {MAX_AT_WORK} clients at control sockets {why}; try again later."

    def _watch(self, opened: Iterable[ControlSocket]) -> None:
        for entry in opened:
            if entry.listening.fileno() >= 0:
                key = entry.connection, entry.token
                self.loop.watch(
                    entry.listening.fileno(), selectors.EVENT_READ, partial(self._accept, key, entry.listening)
                )

    def _unwatch(self, ended: Iterable[ControlSocket]) -> None:
        for entry in ended:
            self._kept.pop((entry.connection, entry.token), None)
            if entry.listening.fileno() >= 0:
                self.loop.unwatch(entry.listening.fileno())
                entry.listening.close()

    def _accept(self, key: _Key, listening: socket.socket, _: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            at = self._sockets.get(key)
            if at is None or at.listening is not listening:
                return
            try:
                connected, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                # The process has no descriptor left; others will close theirs.
                self.loop.unwatch(listening.fileno())
                self.loop.after(PAUSE_SECONDS, partial(self._watch, [at]))
                return
            self._admit(connected, at)

    def _admit(self, connected: socket.socket, at: ControlSocket) -> None:
        try:
            # The directory is closed to others, but root, or a mount into a container, may bring them here.
            trusted = is_trusted(peer_uid(connected))
        except OSError:
            # Nothing is known of a client that has left already.
            trusted = False
        if not trusted or at.sender.ended:
            connected.close()
            return
        idle = [client for client in self._clients if client.is_idle]
        if len(idle) >= MAX_IDLE:
            # Of whoever has most: clients of one token that connect and say nothing must not close those of others.
            counts = Counter(client.at.sender.holder for client in idle)
            most = max(counts.values())
            next(client for client in idle if counts[client.at.sender.holder] == most).close()
        client = MultiplexClient(self, connected, at)
        if not client.closed:
            self._clients[client] = None

    def _resize(self) -> None:
        for client in list(self._clients):
            if client.passenger is not None:
                client.passenger.resize()


def _prepare(directory: Path) -> None:
    """Make ``directory``, and check that only this user can enter it.

    :raises NoControlSocket: it cannot be made, is not a directory of this user, or is open to others.
    """
    if len(os.fsencode(directory)) + 1 + NAME_CHARACTERS > MAX_PATH_BYTES:
        raise NoControlSocket(
            f"The path of {directory} is too long for sockets, which have at most {MAX_PATH_BYTES} bytes: give the "
            "daemon an auth file with a shorter path (auth-file)."
        )
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        status = directory.lstat()
    except OSError as error:
        raise NoControlSocket(
            f"The directory {directory} for control sockets cannot be used: {error.strerror}."
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise NoControlSocket(f"{directory}, for control sockets, is not a directory of the daemon's user.")
    if status.st_mode & 0o077:
        raise NoControlSocket(f"The directory {directory} for control sockets is open to others: chmod 700 {directory}")


def _name(beside: Path, path: Path) -> None:
    """Give the socket ``beside`` the name ``path`` too, in place of that of a daemon that has died.

    :raises OSError: another daemon listens there.
    """
    try:
        # link(2) fails where the name is taken; rename(2) would take it from another daemon that listens there.
        path.hardlink_to(beside)
    except FileExistsError:
        # Only a socket without a listener refuses: its daemon has died, and left the name.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            else:
                raise OSError(errno.EADDRINUSE, "another program listens there") from None
        path.hardlink_to(beside)
