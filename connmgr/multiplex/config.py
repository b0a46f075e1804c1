"""What OpenSSH's ``ssh`` reads of control sockets: names of hosts, their configuration, and the file that is kept.

A host's control socket has a second name, which ends with the port and the user that its connection has. ``ssh`` makes
that name from the port and the user it was told (``%p`` and ``%r`` in ``ControlPath``). So it finds no socket where it
was told others, and runs the ``ProxyCommand``, which says why in one line. It never logs in past the connection.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from connmgr.errors import ConnmgrError, OperationError, RequestError
from connmgr.fields import map_secrets
from connmgr.multiplex.passengers import Sender
from connmgr.multiplex.sockets import MAX_PATH_BYTES, ControlSockets
from connmgr.plugin import ConnectionType
from connmgr.plugin.types import EXPLAINER, KEPT_CONFIG
from connmgr.poller import Poller
from connmgr.registry import Registry
from connmgr.vault import Connection, Vault
from connmgr.vault.connection_rows import SET_BY_TOKEN
from connmgr.vault.names import LOCAL
from connmgr.vault.search import Listed

SHELL = "shell"
"""The usage category of types that have shells."""

UNSAID_USER = "as-stored"
"""The user in the configuration of a connection that does not say whom it runs commands as."""

SSH_PORT = 22
LOOK_SECONDS = 30.0
"""Interval of looks for what other daemons of the same vault have changed."""

LOGIN_SECONDS = 60.0
"""Time for which the user and the port are taken for those that ssh_config says."""

MAX_FILE_BYTES = 64 << 20
CHANGING = frozenset(
    {
        *("connection.add", "connection.apply", "connection.refresh", "connection.remove", "connection.update"),
        "category.remove",
    }
)
"""Actions after which hosts, or their names, may be others."""

_HOST = re.compile(r"[\w.][\w.+-]*")
"""Names of hosts that ssh and scp take as they are: no pattern, no user, no path, no option."""

_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@+=-]{0,63}")
"""Users whose names ssh takes as they are, and that a file's name may contain."""

logger = logging.getLogger("connmgr.multiplex")


def hosts_of(connections: Collection[Listed]) -> dict[str, list[str]]:
    """Return the names by which ssh may call each of ``connections``, the shortest first; none is that of two."""
    candidates = _candidates(connections)
    counts = Counter(name for names in candidates.values() for name in names)
    return {id: [name for name in names if counts[name] == 1] for id, names in candidates.items()}


def _candidates(connections: Collection[Listed]) -> dict[str, list[str]]:
    """Return the names that each of ``connections`` could have as a host, if no other had them."""
    names = {
        connection.id: ["local"]
        if connection.id == LOCAL
        else list(dict.fromkeys((connection.path[-1], "+".join(connection.path))))
        for connection in connections
    }
    return {id: [name for name in some if _HOST.fullmatch(name)] for id, some in names.items()}


class SshHost(NamedTuple):
    """A host of the configuration: ``names`` for ssh, the path of its socket, and what ssh is to take it for."""

    names: Sequence[str]
    control_path: Path
    user: str
    port: int
    forwards_agent: bool

    @property
    def expected(self) -> Path:
        """The path that ``ssh`` makes of ``ControlPath``, as long as it is told no other port or user."""
        return self.control_path.with_name(f"{self.control_path.name}.{self.port}.{self.user}")


class Rendered(NamedTuple):
    """A configuration, its hosts by their connections, and the paths of the connections that it leaves out."""

    text: str
    hosts: Mapping[str, SshHost]
    unnamed: list[list[str]]


class SshConfigs:
    """Renders configurations for the sockets of ``vault``'s connections."""

    def __init__(self, vault: Vault, registry: Registry) -> None:
        self._vault, self._registry = vault, registry
        self._logins: dict[str, tuple[float, Mapping[str, Any], tuple[str, int]]] = {}
        """By connection: when its login was asked for, for what data, and the user and the port that were found."""

    def with_shells(self) -> dict[str, Listed]:
        """Return the connections that have shells, by their ids, in the order of their paths."""
        usage = {entry.type.name: entry.type.usage_category for entry in self._registry}
        return {
            connection.id: connection
            for connection in self._vault.connections.listed()
            if usage.get(connection.type) == SHELL
        }

    def render(self, listed: Mapping[str, Listed], paths: Mapping[str, Path], program: Sequence[str]) -> Rendered:
        """Return the configuration for the sockets at ``paths``, by connection, and give them their second names.

        ``listed`` are all connections whose names count. ``program`` are the words that call ``connmgr``.
        :raises OSError: a second name cannot be given.
        """
        names = hosts_of(listed.values())
        records = {
            id: record
            for id, record in self._vault.connections.each(list(paths)).items()
            if isinstance(record, Connection)
        }
        hosts: dict[str, SshHost] = {}
        unnamed: list[list[str]] = []
        for id, path in paths.items():
            host = self._host(records[id], names[id], path) if names[id] and id in records else None
            if host is None:
                unnamed.append(list(listed[id].path))
                continue
            hosts[id] = host
        _give_second_names(hosts.values())
        candidates = _candidates(listed.values())
        shared = sorted({name for id in paths for name in candidates[id] if name not in names[id]})
        blocks = [_block(host, program) for host in hosts.values()] + [_refusal(name, program) for name in shared]
        return Rendered("\n".join(blocks), hosts, unnamed)

    def choose(self, selection: Wanted, *, for_owner: bool) -> Chosen:
        """Return the ``selection`` among the connections that have shells.

        For the owner, a connection that a token has made or changed is left out, unless it is wanted by its id, and
        takes no name away from another.
        """
        # Otherwise a token could put itself in the place of any host that the owner's programs call.
        listed = self.with_shells()
        foreign = self._set_by_tokens(listed) - set(selection.connections) if for_owner else frozenset[str]()
        chosen = selection.choose(self._vault, listed)
        return Chosen(
            [id for id in chosen if id not in foreign],
            {id: connection for id, connection in listed.items() if id not in foreign},
            [list(listed[id].path) for id in chosen if id in foreign],
        )

    def _set_by_tokens(self, ids: Collection[str]) -> frozenset[str]:
        records = self._vault.connections.each(ids).values()
        return frozenset(
            record.id for record in records if isinstance(record, Connection) and SET_BY_TOKEN in record.cache
        )

    def _host(self, record: Connection, names: Sequence[str], path: Path) -> SshHost | None:
        """Return the host of a connection, None if its user or its path do not fit into a path of a socket."""
        user, port = self._known_login(record)
        host = SshHost(names, path, user, port, bool(record.data.get("forwardAgent")))
        fits = _USER.fullmatch(user) and len(os.fsencode(host.expected)) <= MAX_PATH_BYTES
        return host if fits else None

    def _known_login(self, record: Connection) -> tuple[str, int]:
        """Return what :meth:`_login` has found lately; for each of thousands, ssh_config would be read each time."""
        at = time.monotonic()
        asked_at, data, login = self._logins.get(record.id, (-LOGIN_SECONDS, {}, ("", 0)))
        if at - asked_at >= LOGIN_SECONDS or data != record.data:
            login = self._login(record)
            self._logins[record.id] = at, record.data, login
        return login

    def _login(self, record: Connection) -> tuple[str, int]:
        """Return the user and the port of a connection, as its type knows them."""
        if record.id == LOCAL:
            import pwd

            return pwd.getpwuid(os.geteuid()).pw_name, SSH_PORT
        user, port = record.data.get("user"), record.data.get("port")
        if not (isinstance(user, str) and user and isinstance(port, int) and port != SSH_PORT):
            kind = self._registry.get(record.type)
            if isinstance(kind, ConnectionType):
                try:
                    dialled = kind.dialled(map_secrets(kind.schema(), record.data, lambda _: ""))
                except OperationError:
                    # What ssh_config says cannot be read; a login would fail for the same reason, and say so.
                    dialled = ()
                if dialled:
                    return dialled[-1].user, dialled[-1].port
            if not user and record.data.get("elevated"):
                user = "root"
        return (user if isinstance(user, str) and user else UNSAID_USER), (port if isinstance(port, int) else SSH_PORT)


def _give_second_names(hosts: Collection[SshHost]) -> None:
    """Give each socket its second name, and take away earlier ones, and those of sockets that are gone.

    :raises OSError: the directory cannot be changed.
    """
    own = {host.control_path.name: host.expected.name for host in hosts}
    there: set[str] = set()
    for directory in {host.control_path.parent for host in hosts}:
        there |= _take_second_names(directory, own)
    for host in hosts:
        if host.expected.name not in there:
            # Another request may have just given it.
            with suppress(FileExistsError):
                host.expected.symlink_to(host.control_path.name)


def _take_second_names(directory: Path, own: Mapping[str, str]) -> set[str]:
    """Remove the second names of sockets that are gone, and those that are not in ``own``, by names of sockets.

    Return those of ``own`` that are there.
    """
    there: set[str] = set()
    for entry in directory.iterdir():
        name, dot, _ = entry.name.partition(".")
        if not (name and dot and entry.is_symlink()):
            continue
        if own.get(name) == entry.name:
            there.add(entry.name)
        elif name in own or not entry.exists():
            entry.unlink(missing_ok=True)
    return there


def _block(host: SshHost, program: Sequence[str]) -> str:
    # ssh expands % and passes the line to a shell, where %n and %p are words without special characters: names of this
    # file, and a number. %r could be anything that was typed, and is not passed.
    command = shlex.join(program).replace("%", "%%")
    path = str(host.control_path).replace("%", "%%")
    names = ",".join(host.names)
    lines = [
        # Another HostName would be another machine, which no path of a socket shows.
        f"Match originalhost {names} !host {names}",
        "    ControlPath none",
        f"    ProxyCommand {command} {' '.join(EXPLAINER)}",
        f"Host {' '.join(host.names)}",
        f'    ControlPath "{path}.%p.%r"',
        "    ControlMaster no",
        f"    User {host.user}",
        f"    Port {host.port}",
        f"    ProxyCommand {command} {' '.join(EXPLAINER)}",
        "    SendEnv LANG LC_* SSH_AUTH_SOCK",
        "    ForwardX11 no",
        *(["    ForwardAgent yes"] if host.forwards_agent else []),
    ]
    return "".join(f"{line}\n" for line in lines)


def _refusal(name: str, program: Sequence[str]) -> str:
    # Without it, ssh would look for a machine of that name by itself.
    command = shlex.join(program).replace("%", "%%")
    return f"Host {name}\n    ControlPath none\n    ProxyCommand {command} {' '.join(EXPLAINER)}\n"


class Chosen(NamedTuple):
    """The selected connections by id, all connections whose names count, and the paths of connections left out."""

    ids: list[str]
    listed: Mapping[str, Listed]
    left_out: list[list[str]]


class Wanted(NamedTuple):
    """What a kept file is to contain: connections by pairs of filters, for paths and for names, or by ids.

    ``filters`` None means all. ``program`` are the words that call ``connmgr``.
    """

    filters: Sequence[tuple[str, str]] | None
    connections: Sequence[str]
    program: Sequence[str]

    def choose(self, vault: Vault, listed: Mapping[str, Listed]) -> list[str]:
        """Return the ids of the ``listed`` connections that are selected, in their order."""
        if self.filters is None:
            return list(listed)
        chosen = set(self.connections)
        for path, name in self.filters:
            chosen |= {
                connection.id for connection in vault.connections.listed(connection_filter=path, name_filter=name)
            }
        return [id for id in listed if id in chosen]


class KeptConfig:
    """Keeps ``file`` as the connections are, from :meth:`keep` to :meth:`forget`, across restarts of the daemon.

    Its second line says what it is to contain and whose it is: that of the daemon with the vault in ``place``. A person
    who deletes the file ends that, too. ``sender`` has the rights of sockets that the daemon opens by itself; those
    that somebody has opened keep theirs. ``write`` replaces a file's content. Safe to use from several threads.
    """

    def __init__(
        self,
        vault: Vault,
        configs: SshConfigs,
        sockets: ControlSockets,
        file: Path,
        place: Path,
        sender: Sender,
        write: Callable[[Path, str], None],
    ) -> None:
        self._vault, self._configs, self._sockets = vault, configs, sockets
        self._file, self._place, self._sender, self._write = file, str(place), sender, write
        self._lock = threading.Lock()
        self._poller = Poller("ssh-config", self._refresh, LOOK_SECONDS, logger)
        self._is_kept = False

    def keep(self, selection: Wanted, sender: Sender) -> tuple[Path, Rendered]:
        """Write the file, and keep it from now on; its sockets get the rights of ``sender``.

        :raises RequestError: there is a file that is not this daemon's.
        :raises ConnmgrError: no sockets can be opened, or the file cannot be written.
        """
        with self._lock:
            file = self._read()
            if file is not None and file[0] is None:
                raise RequestError(
                    f"{self._file} is not a file of the daemon with the vault in {self._place}: move it away, and "
                    "repeat this."
                )
            rendered = self._update(selection, sender, file[1] if file else None)
            self._is_kept = True
        self.look()
        return self._file, rendered

    def forget(self) -> Path | None:
        """Remove the file, close its sockets, and keep it no longer; return its path, None if none was kept."""
        with self._lock:
            file = self._read()
            if file is None or file[0] is None:
                return None
            chosen = set(file[0].choose(self._vault, self._configs.with_shells()))
            places = {socket.path.parent for socket in self._sockets.all() if socket.connection in chosen}
            self._sockets.close(None, chosen)
            for directory in places:
                _take_second_names(directory, {})
            self._file.unlink(missing_ok=True)
            self._is_kept = False
        return self._file

    def resume(self) -> None:
        """Keep the file, and open its sockets, if there is one."""
        with self._lock:
            file = self._read()
            self._is_kept = file is not None and file[0] is not None
        self.look()

    def look(self) -> None:
        """Write the file again soon: connections have changed."""
        if self._is_kept:
            self._poller.poke()

    def close(self) -> None:
        """End the thread, and leave the file as it is."""
        self._poller.close(None)

    def _refresh(self) -> float | None:
        with self._lock:
            file = self._read()
            if file is None or file[0] is None:
                # Another file in its place is not ours.
                self._is_kept = False
                return None
            try:
                self._update(file[0], None, file[1])
            except (ConnmgrError, OSError) as error:
                logger.warning("The file %s for ssh is not current: %s", self._file, error)
        return LOOK_SECONDS

    def _update(self, selection: Wanted, sender: Sender | None, before: str | None) -> Rendered:
        """Open the sockets with the rights of ``sender``, or without it missing ones; write the file if it changed."""
        chosen, listed, left_out = self._configs.choose(selection, for_owner=True)
        paths = (
            {} if sender else {socket.connection: socket.path for socket in self._sockets.all() if socket.token is None}
        )
        missing = {id: "/".join(listed[id].path) for id in chosen if id not in paths}
        if missing:
            paths |= self._sockets.open(missing, sender or self._sender)
        rendered = self._configs.render(listed, {id: paths[id] for id in chosen}, selection.program)
        text = f"{KEPT_CONFIG}# {json.dumps({'vault': self._place, **selection._asdict()})}\n\n{rendered.text}"
        if text != before:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._file, text)
        return rendered._replace(unnamed=left_out + rendered.unnamed)

    def _read(self) -> tuple[Wanted | None, str] | None:
        """Return the file's selection, None if the file is not ours, and its text; None without a file."""
        try:
            with self._file.open("rb") as file:
                text = file.read(MAX_FILE_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("The file %s for ssh cannot be read: %s", self._file, error.strerror)
            return None, ""
        first, second = (*text.split("\n", 2), "", "")[:2]
        return (_wanted(second, self._place) if f"{first}\n" == KEPT_CONFIG else None), text


def _wanted(line: str, place: str) -> Wanted | None:
    """Parse the second line of a kept file; None if it is another daemon's, or has been edited."""
    try:
        members: dict[str, Any] = json.loads(line.removeprefix("# "))
        filters = members["filters"]
        pairs = None if filters is None else [(str(path), str(name)) for path, name in filters]
        selection = Wanted(pairs, _texts(members["connections"]), _texts(members["program"]))
    except (ValueError, KeyError, TypeError):
        return None
    return selection if members.get("vault") == place and selection.program else None


def _texts(values: Iterable[Any]) -> list[str]:
    return [str(value) for value in values]
