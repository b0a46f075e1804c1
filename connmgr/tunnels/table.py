"""All wanted tunnels: toggled, started with the daemon, restarted with their connections, ended with tokens."""

from __future__ import annotations

import errno
import logging
import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

from connmgr.contract.event import TUNNEL
from connmgr.errors import (
    ConnectTimeout,
    ConnmgrError,
    IntegrityError,
    NotToggleable,
    OperationError,
    PermissionDenied,
    PortInUse,
    SecretLocked,
    Stopping,
    StreamLimit,
    TokenRevoked,
)
from connmgr.events import Publish, unheard
from connmgr.fields import map_secrets
from connmgr.links.table import LinkTable
from connmgr.paths import is_loopback
from connmgr.plugin import Deadline, Forward
from connmgr.plugin import Tunnel as TunnelType
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.shares import refused
from connmgr.streams.listener import Accepted, Admit, Place, PortListener
from connmgr.streams.loop import Loop
from connmgr.tunnels.shares import Holder, TunnelShares
from connmgr.tunnels.tunnel import FAILED, FINAL, STOPPED, LiveTunnel, Route, TunnelStatus, open_route
from connmgr.vault import Connection, Vault
from connmgr.vault.names import LOCAL

MAX_TUNNELS = 1000
"""Most tunnels; a token has a share."""

TOKEN_FORWARDS = 100
"""Most tunnels of one token that are not stored."""

WORKERS = 2048
"""Most threads for what may block: opening the route of each tunnel, dialling, and writing to programs that relay."""

LOOK_SECONDS = 0.5
"""Interval of checks for lost links."""

RELEASE_SECONDS = 10.0
"""Longest wait for a stopped tunnel to release its link."""

WANTED, BY_TOKEN = "sessionEnabled", "sessionToken"
"""Members of a connection's ``cache``: whether it is wanted, and the id of the token that toggled it."""

logger = logging.getLogger("connmgr.tunnels")


@dataclass(eq=False)
class _Entry:
    """A wanted tunnel, or the error that prevents it; the access that opens its route; the token with which it ends.

    It counts for ``holder``.
    """

    access: Access
    token: str | None
    holder: Holder
    via: str
    """The connection that it goes through."""
    tunnel: LiveTunnel | None = None
    failure: ConnmgrError | None = None
    is_forward: bool = False
    """Whether it is not stored: :meth:`Tunnels.forward` has opened it."""

    @property
    def status(self) -> TunnelStatus:
        if self.tunnel is not None:
            return self.tunnel.status
        return TunnelStatus(FAILED, last_error=self.failure)


class Tunnels:
    """Keeps the wanted tunnels open; opening a route may take ``timeout`` seconds.

    Safe to use from several threads.
    """

    def __init__(
        self, vault: Vault, registry: Registry, links: LinkTable, timeout: float, publish: Publish = unheard
    ) -> None:
        self._vault, self._registry, self._links, self._timeout = vault, registry, links, timeout
        self._publish = publish
        # A loop of its own beside that of the streams, so that no terminal waits behind a download.
        self._loop = Loop("tunnels", workers=WORKERS)
        self._shares = TunnelShares()
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        # Stored tunnels that are being closed: their ports may still be open.
        self._ending: dict[str, LiveTunnel] = {}
        self._looking = self._closed = False

    def start(
        self,
        id: str,
        access: Access,
        *,
        token: str | None = None,
        holder: Holder = None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the tunnel ``id``, and keep it open; return after the first attempt.

        An unreachable remote host is not an error. ``token`` is the id of the token with which the tunnel ends;
        ``has_ended`` returns whether that token has become invalid. The tunnel counts for ``holder``.
        :raises NotToggleable: the connection is not a tunnel.
        :raises connmgr.errors.PortInUse: another program listens on its port.
        :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
        :raises ConnmgrError: it cannot be opened, and there will be no other attempt.
        """
        record = self._vault.connections.get(id)
        entry, is_new = self._entry_for(record, access, token, holder)
        tunnel = entry.tunnel
        attempted = is_new and tunnel is not None and tunnel.attempted.wait(self._timeout)
        failure = tunnel.failure if attempted and tunnel is not None else None
        if failure is not None and isinstance(failure, (*FINAL, SecretLocked)):
            self._drop(id, entry)
            raise failure
        with self._lock:
            closed_since = self._entries.get(id) is not entry
        # It was stopped during the attempt: to note it as wanted now would open it again at the next start.
        if closed_since:
            return
        self._note(record, wanted=True, token=entry.token)
        if has_ended():
            self.stop(id)

    def forward(
        self,
        via: str,
        at: Place,
        to: Place | None,
        access: Access,
        *,
        listens_far: bool,
        token: str | None = None,
        holder: Holder = None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> tuple[str, tuple[str, int]]:
        """Open a tunnel from ``at`` to ``to`` through ``via`` that is not stored; return its id, and where it listens.

        Without ``to`` each client asks for its target by SOCKS. The address of a Unix socket is its path, and port 0.

        It is kept open until :meth:`cancel`, until ``via`` is changed or removed, or until the token has become
        invalid.
        :raises connmgr.errors.PortInUse: another program listens on its port.
        :raises ConnmgrError: it cannot be opened now.
        """
        open_it = partial(open_route, self._links, via, access, self._timeout, far=at if listens_far else None, to=to)
        with self._lock:
            self._require_room(holder)
            if holder is not None and sum(
                entry.is_forward and entry.holder == holder for entry in self._entries.values()
            ) >= (TOKEN_FORWARDS):
                raise StreamLimit(f"The token has {TOKEN_FORWARDS} forwards open; close one of them first.")
            entry, id = _Entry(access, token, holder, via, is_forward=True), str(uuid.uuid4())
            listen = None if listens_far else partial(self._listen, at, to)
            tunnel = entry.tunnel = LiveTunnel(
                self._loop, open_it, listen, to if listens_far else None, self._shares, lambda: entry.holder
            )
            self._entries[id] = entry
        tunnel.begin()
        self._look_on()
        # The attempt has this time itself; twice as long only guards against one that does not end.
        failure = (
            tunnel.failure
            if tunnel.attempted.wait(2 * self._timeout)
            else ConnectTimeout("The connection was not open in time.")
        )
        address = tunnel.status.address
        # The token may have become invalid while the link was opened; its end has then found no tunnel to close.
        if has_ended():
            failure = TokenRevoked("The token is not valid any more.")
        elif failure is None and address is None:
            failure = Stopping("The tunnel was closed.")
        if failure is not None or address is None:
            self.cancel([id])
            raise failure or Stopping("The tunnel was closed.")
        return id, address

    def cancel(self, ids: Collection[str], timeout: float = RELEASE_SECONDS) -> None:
        """Close tunnels, and wait for ``timeout`` seconds until their ports and links are released."""
        with self._lock:
            entries = {id: entry for id in ids if (entry := self._entries.pop(id, None)) is not None}
            ending = {id: entry.tunnel for id, entry in entries.items() if entry.tunnel is not None}
            self._ending |= {id: tunnel for id, tunnel in ending.items() if not entries[id].is_forward}
        deadline = Deadline(timeout)
        for released in [tunnel.stop() for tunnel in ending.values()]:
            released.wait(deadline.left())
        with self._lock:
            for id, tunnel in ending.items():
                if self._ending.get(id) is tunnel:
                    del self._ending[id]

    def stop(self, id: str) -> None:
        """Close the tunnel ``id``; return when its port and its link are released.

        :raises NotToggleable: the connection is not a tunnel.
        """
        record = self._vault.connections.get(id)
        self._kind(record)
        self._note(record, wanted=False, token=None)
        self.cancel([id])

    def status(self, id: str) -> TunnelStatus:
        """Return the state of the tunnel ``id``; one that is being closed is stopped when its port is closed."""
        with self._lock:
            entry, ending = self._entries.get(id), self._ending.get(id)
        if entry is not None:
            return entry.status
        if ending is not None and (status := ending.status).state != STOPPED:
            return status
        return TunnelStatus(STOPPED)

    def probe(self, via: str, access: Access) -> None:
        """Open the route of a tunnel through the connection ``via`` as a test; raise ConnmgrError if that fails."""
        self._links.lease(via, access, self._timeout).release()

    def resume(self) -> None:
        """Open, in another thread, the tunnels that were wanted when the daemon stopped or that have ``autoStart``."""
        self._loop.work(self._resume)

    def unlocked(self, access: Access) -> None:
        """Open again, with the owner's ``access``, the tunnels of the owner that failed because of a locked secret."""
        with self._lock:
            # Tunnels of tokens keep their token's access: unlocking the vault for the owner must not widen it.
            owned = [entry for entry in self._entries.values() if entry.token is None]
            locked = [entry for entry in owned if isinstance(entry.status.last_error, SecretLocked)]
            for entry in locked:
                entry.access = access
        for entry in locked:
            if entry.tunnel is not None:
                entry.tunnel.try_now()

    def forget(self, connections: Collection[str], token: str | None = None) -> None:
        """Close the tunnels of removed or changed connections, and open the tunnels that still exist again.

        After a change by a ``token`` only the tunnels that this token has toggled are opened again: for the other
        tunnels nobody has approved the new data.
        """
        with self._lock:
            concerned = {id: self._entries[id] for id in connections if id in self._entries}
            changed = set(connections)
            forwards = [id for id, entry in self._entries.items() if entry.is_forward and entry.via in changed]
        if token is not None:
            for record in self._stored(connections):
                if record.cache.get(WANTED) and record.cache.get(BY_TOKEN) != token:
                    self._note(record, wanted=False, token=None)
        # Closed first, for the new tunnel may listen on the same port.
        self.cancel([*concerned, *forwards])
        for id, entry in concerned.items():
            if token is None or entry.token == token:
                self._loop.work(partial(self._restart, id, entry))

    def end(self, tokens: Collection[str], through: Collection[str] | None = None) -> None:
        """Close the tunnels that were toggled with tokens of these ids, ``through`` these connections or all."""
        with self._lock:
            toggled = [(id, entry) for id, entry in self._entries.items() if entry.token in tokens]
            ending = [(id, entry) for id, entry in toggled if through is None or entry.via in through]
        # In the threads of the loop: whoever revokes a token does not wait for remote ports to close.
        for id, entry in ending:
            self._loop.work(partial(self._stop_quietly, id, entry))

    def close(self, timeout: float) -> None:
        """Close all tunnels within about ``timeout`` seconds; they stay wanted."""
        with self._lock:
            self._closed = True
        self.cancel(list(self._entries), timeout)
        self._loop.close(timeout)

    def _entry_for(self, record: Connection, access: Access, token: str | None, holder: Holder) -> tuple[_Entry, bool]:
        """Return the entry of a tunnel, and whether it is new."""
        kind = self._kind(record)
        with self._lock:
            entry = self._entries.get(record.id)
            if entry is not None and entry.tunnel is not None and entry.status.state != FAILED:
                # If the owner wants it too, the tunnel does not end with the token, and keeps the owner's access.
                if entry.token is not None or token is None:
                    entry.access = access
                    if token is None:
                        entry.token = entry.holder = None
                entry.tunnel.try_now()
                return entry, False
            self._require_room(holder)
            entry = _Entry(access, token, holder, str(record.data[kind.via or ""]))
            entry.tunnel = self._live_tunnel(kind, record, entry)
            self._entries[record.id] = entry
        entry.tunnel.begin()
        self._look_on()
        return entry, True

    def _require_room(self, holder: Holder) -> None:
        if self._closed:
            raise Stopping("The daemon is stopping.")
        why = refused(MAX_TUNNELS, holder, (entry.holder for entry in self._entries.values()))
        if why is not None:
            raise StreamLimit(f"Too many open tunnels: {why}; close one first.")
        if len(self._entries) >= MAX_TUNNELS:
            raise StreamLimit(f"Too many open tunnels ({MAX_TUNNELS:,}); close one first.")

    def _live_tunnel(self, kind: TunnelType, record: Connection, entry: _Entry) -> LiveTunnel:
        forward = kind.forward(map_secrets(kind.schema(), record.data, lambda _: ""))
        via = str(record.data[kind.via or ""])
        open_it: Callable[[], Route] = partial(self._open, kind, record, via, forward, entry)
        listen, to = None, None
        if kind.listens_far:
            to = forward.to
        elif via == LOCAL and (here := _already_here(forward)) is not None:
            open_it = partial(Route, None, address=here)
        else:
            listen = partial(self._listen, (forward.host, forward.port), forward.to)
        tell = partial(self._tell, record.id)
        return LiveTunnel(self._loop, open_it, listen, to, self._shares, lambda: entry.holder, tell)

    def _tell(self, id: str, status: TunnelStatus) -> None:
        about: dict[str, str] = {} if status.place is None else {"address": status.place}
        about |= {} if status.last_error is None else {"code": status.last_error.code}
        self._publish(TUNNEL, status.state, id, state=status.state, **about)

    def _open(self, kind: TunnelType, record: Connection, via: str, forward: Forward, entry: _Entry) -> Route:
        # Compares with the digest of the row that was read, so a change since then cannot lead the tunnel elsewhere.
        self._vault.connections.carriers_of([via], record.dependency_digest)
        far = (forward.host, forward.port) if kind.listens_far else None
        route = open_route(self._links, via, entry.access, self._timeout, far=far, to=forward.to)
        self._vault.connections.touch(record.id, via)
        return route

    def _listen(self, at: Place, to: Place | None, enter: Callable[[Accepted], None], admit: Admit) -> PortListener:
        """Listen on the tunnel's port, or at its Unix socket, on this machine.

        :raises PortInUse: the port is taken, or something has the socket's name.
        :raises OperationError: the address is not an address of this machine, or the socket cannot be made.
        :raises PermissionDenied: the daemon's user may not listen on the port, or not make the socket.
        """
        if isinstance(at, str):
            return self._listen_unix(at, to, enter, admit)
        host, port = "127.0.0.1" if at[0] == "localhost" else at[0], at[1]
        try:
            return PortListener(self._loop, (host, port), to, enter, admit)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"Cannot listen on {host}:{port}: another program listens there.") from error
            if error.errno == errno.EACCES:
                raise PermissionDenied(f"The daemon's user may not listen on port {port}.") from error
            reason = os.strerror(error.errno) if error.errno else "not an address of this machine"
            raise OperationError(f"Cannot listen on {host} port {port}: {reason}.") from error

    def _listen_unix(
        self, path: str, to: Place | None, enter: Callable[[Accepted], None], admit: Admit
    ) -> PortListener:
        try:
            return PortListener(self._loop, path, to, enter, admit)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"Cannot listen at {path}: it exists, and is left as it is; remove it first."
                ) from error
            if error.errno == errno.EACCES:
                raise PermissionDenied(f"The daemon's user may not make a Unix socket at {path}.") from error
            raise OperationError(f"Cannot listen at {path}: {error.strerror or error}.") from error

    def _kind(self, record: Connection) -> TunnelType:
        kind = self._registry.get(record.type)
        if not isinstance(kind, TunnelType):
            raise NotToggleable(f"Connections of type {record.type} are not tunnels, and cannot be toggled.")
        return kind

    def _note(self, record: Connection, *, wanted: bool, token: str | None) -> None:
        cache = {name: value for name, value in record.cache.items() if name != BY_TOKEN}
        cache |= {WANTED: wanted} | ({BY_TOKEN: token} if wanted and token is not None else {})
        if cache != record.cache:
            self._vault.connections.set_cache(record.id, cache)

    def _drop(self, id: str, entry: _Entry) -> None:
        with self._lock:
            if self._entries.get(id) is entry:
                del self._entries[id]
        if entry.tunnel is not None:
            entry.tunnel.stop()

    def _stop_quietly(self, id: str, entry: _Entry) -> None:
        if entry.is_forward:
            self.cancel([id])
            return
        try:
            self.stop(id)
        except ConnmgrError as error:
            logger.warning("The tunnel %s is closed, but the vault still lists it as wanted: %s", id, error.message)
            self.cancel([id])

    def _restart(self, id: str, entry: _Entry) -> None:
        try:
            self._entry_for(self._vault.connections.get(id), entry.access, entry.token, entry.holder)
        except ConnmgrError as error:
            logger.info("The tunnel %s is not opened again: %s", id, error.message)

    def _resume(self) -> None:
        try:
            records = self._stored(listed.id for listed in self._vault.connections.listed())
        except ConnmgrError as error:
            logger.warning("No tunnel is opened, because the vault cannot be read: %s", error.message)
            return
        for record in records:
            kind = self._kind(record)
            by_token = record.cache.get(BY_TOKEN) is not None
            if by_token and record.cache.get(WANTED):
                # The token may have been revoked while the daemon was stopped, and nothing has checked it yet.
                self._note(record, wanted=False, token=None)
            wanted = record.cache.get(WANTED) is True and not by_token
            if wanted or kind.forward(map_secrets(kind.schema(), record.data, lambda _: "")).auto_start:
                self._begin_alone(record)

    def _begin_alone(self, record: Connection) -> None:
        """Open a tunnel that no request waits for; its state shows an error."""
        access = Access()
        try:
            self._entry_for(record, access, None, None)
        except ConnmgrError as error:
            logger.warning("The tunnel %s is not opened: %s", "/".join(record.path), error.message)
            with self._lock:
                self._entries.setdefault(record.id, _Entry(access, None, None, "", failure=error))

    def _stored(self, among: Iterable[str]) -> list[Connection]:
        """Return the tunnels ``among`` the vault's connections, except those that were changed outside connmgr."""
        kinds = {entry.type.name for entry in self._registry if isinstance(entry.type, TunnelType)}
        some = set(among)
        ids = [listed.id for listed in self._vault.connections.listed() if listed.type in kinds and listed.id in some]
        records = self._vault.connections.each(ids).values() if ids else []
        return [record for record in records if not isinstance(record, IntegrityError)]

    def _look_on(self) -> None:
        with self._lock:
            begins, self._looking = not self._looking, True
        if begins:
            self._loop.after(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        with self._lock:
            tunnels = [entry.tunnel for entry in self._entries.values() if entry.tunnel is not None]
            self._looking = bool(tunnels) and not self._closed
            looks_on = self._looking
        for tunnel in tunnels:
            tunnel.look()
        if looks_on:
            self._loop.after(LOOK_SECONDS, self._look)


def _already_here(forward: Forward) -> tuple[str, int] | None:
    """Return the tunnel's address if it leads to the very address on which it would listen here, else None."""
    if forward.to is None or forward.port not in (0, forward.to[1]):
        return None
    host, port = forward.to
    # A tunnel on this machine to a port of this machine would listen on the very port to which it leads.
    return (forward.host if host == "localhost" else host, port) if is_loopback(host) else None
