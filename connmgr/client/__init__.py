"""A client of the daemon's HTTP API, which needs only the standard library.

with Client() as daemon:
    for id in daemon.connection.query("web*"):
        daemon.shell.start(id)
        print(daemon.shell.exec(id, "uptime").stdout)
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connmgr.client.address import default_auth_file, default_url
from connmgr.client.credentials import BadCredential, check_api_key, check_token, digest, from_environment, read_token
from connmgr.client.errors import AccessDenied, ClientError, Unreachable
from connmgr.client.http import HttpSession
from connmgr.client.repeat import RETRY_TIMEOUT, OnRetry, Remedy
from connmgr.client.wire import Closeable

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from connmgr.client.connections import Applied, Categories, Connections, HostKeys
    from connmgr.client.daemon import DaemonItself, Page
    from connmgr.client.files import Download, Extracted, FileEntry, Files, Progress, Undo
    from connmgr.client.fleet import Facts, Inventories, Runs, Schedules
    from connmgr.client.jobs import Jobs
    from connmgr.client.names import LOCAL_MACHINE, Name
    from connmgr.client.output import Input, Piece, RawResult, Result, Stream
    from connmgr.client.rights import Approvals, AuditLog, SavedCommands, Tokens
    from connmgr.client.shells import Broadcast, Outcome, RawOutcome, Shells
    from connmgr.client.terminals import Recordings, Terminals
    from connmgr.client.tunnels import Multiplex, Tunnels
    from connmgr.client.vault import Secrets, Signers, Vault
    from connmgr.contract.category import CategoryInfo as Category
    from connmgr.contract.connection import ConnectionInfo as Connection
    from connmgr.contract.connection import ConnectionRefreshResponse as Refreshed
    from connmgr.contract.connection import ForgottenHostKey as ForgottenKey
    from connmgr.contract.connection import TypeInfo as ConnectionType
    from connmgr.contract.daemon import DaemonStatusResponse as DaemonStatus
    from connmgr.contract.daemon import VersionResponse as Version
    from connmgr.contract.event import Event
    from connmgr.contract.shell import ShellInfo
    from connmgr.contract.shell import ShellStatus as RunningShell
    from connmgr.contract.vault import StatusResponse as VaultStatus

__all__ = [
    "DEFAULT_CATEGORY",
    "LOCAL_MACHINE",
    "ROOT_CATEGORY",
    "AccessDenied",
    "Applied",
    "BadCredential",
    "Broadcast",
    "Category",
    "Client",
    "ClientError",
    "Connection",
    "ConnectionType",
    "DaemonStatus",
    "Download",
    "Event",
    "Extracted",
    "FileEntry",
    "ForgottenKey",
    "Name",
    "Outcome",
    "Piece",
    "Progress",
    "RawOutcome",
    "RawResult",
    "Refreshed",
    "Result",
    "RunningShell",
    "ShellInfo",
    "Stream",
    "Unreachable",
    "VaultStatus",
    "Version",
]

ROOT_CATEGORY = "bfb0b51a-e7a3-4ce4-8878-8d4cb5828d6c"
DEFAULT_CATEGORY = "97458c07-75c0-4f9d-a06e-92d8cdf67c40"

_LATER = {
    "Applied": "client.connections",
    "Broadcast": "client.shells",
    "Category": "contract.category:CategoryInfo",
    "Connection": "contract.connection:ConnectionInfo",
    "ConnectionType": "contract.connection:TypeInfo",
    "DaemonStatus": "contract.daemon:DaemonStatusResponse",
    "Download": "client.files",
    "Event": "contract.event",
    "Extracted": "client.files",
    "FileEntry": "client.files",
    "ForgottenKey": "contract.connection:ForgottenHostKey",
    "LOCAL_MACHINE": "client.names",
    "Name": "client.names",
    "Outcome": "client.shells",
    "Piece": "client.output",
    "Progress": "client.files",
    "RawOutcome": "client.shells",
    "RawResult": "client.output",
    "Refreshed": "contract.connection:ConnectionRefreshResponse",
    "Result": "client.output",
    "RunningShell": "contract.shell:ShellStatus",
    "ShellInfo": "contract.shell",
    "Stream": "client.output",
    "VaultStatus": "contract.vault:StatusResponse",
    "Version": "contract.daemon:VersionResponse",
}
"""Where names of this module are, and what they are called there."""


def __getattr__(name: str) -> Any:
    """Return a name of a module that is loaded on first use: few programs need it, and all would wait for it."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = _LATER[name].partition(":")
    value = getattr(import_module(f"connmgr.{module}"), there or name)
    globals()[name] = value
    return value


CLIENT_NAME = "connmgr client"
TIMEOUT_SECONDS = 86400.0 + 60.0
"""Seconds to wait for an answer by default: the longest time of a command, and a minute."""


class _Group:
    """A group of endpoints, of the class in the attribute's annotation; its module is imported on first use.

    Few programs need all groups, and all would wait for their modules.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._class = name, owner.__annotations__[name]

    def __get__(self, client: Client | None, owner: type) -> Any:
        if client is None:
            return self
        group = getattr(import_module(f"connmgr.client.{self._module}"), self._class)(client._session)
        # From now on the attribute is found in the client before this descriptor.
        client.__dict__[self._name] = group
        return group


def _group(module: str) -> Any:
    # As Any, so that mypy takes the class in each attribute's annotation.
    return _Group(module)


class Client(Closeable):
    """A session with the daemon over one kept-alive connection, for one thread; :meth:`clone` makes another thread's.

    Without ``base_url`` it connects to ``CONNMGR_HOST`` and ``CONNMGR_PORT``, else to the address in ``daemon.json``
    beside the auth file, else to 127.0.0.1:21721. It prefers the Unix socket there.

    It authenticates with the one credential that is named: ``token``, a text of ``/token/create``, ``token_file``, a
    file with it, or ``api_key``, which may be a token too. ``session_token`` continues another client's session; alone
    it is the only credential, and its end is an error. ``auth_file`` names the auth file of this user's daemon, and the
    place of the Unix socket. Without all of these, the variable ``CONNMGR_TOKEN``, ``CONNMGR_TOKEN_FILE`` or
    ``CONNMGR_API_KEY_FILE`` may name a credential. If nothing does, the auth file at ``CONNMGR_AUTH_FILE``, or that of
    this user's daemon, makes the client the owner. A named credential that is empty, or two of them, raise
    :class:`BadCredential`; the auth file never takes their place.

    It sends nothing to a program of another user on this machine, which may have taken a dead daemon's port; only Linux
    tells who owns a port. ``foreign`` allows a daemon of another user, whose API key you have.

    It shakes hands before the first request, and again when the daemon rejects the token as expired or unknown; only
    then does it repeat a request. When a connection breaks during a request it raises :class:`Unreachable`. If the
    client is closed or interrupted during :meth:`Shells.exec`, the daemon kills the command.
    """

    shell: Shells = _group("shells")
    jobs: Jobs = _group("jobs")
    fs: Files = _group("files")
    terminal: Terminals = _group("terminals")
    recording: Recordings = _group("terminals")
    connection: Connections = _group("connections")
    category: Categories = _group("connections")
    hostkey: HostKeys = _group("connections")
    tunnel: Tunnels = _group("tunnels")
    multiplex: Multiplex = _group("tunnels")
    runs: Runs = _group("fleet")
    schedules: Schedules = _group("fleet")
    inventories: Inventories = _group("fleet")
    fact: Facts = _group("fleet")
    vault: Vault = _group("vault")
    secret: Secrets = _group("vault")
    ca: Signers = _group("vault")
    token: Tokens = _group("rights")
    approval: Approvals = _group("rights")
    command: SavedCommands = _group("rights")
    audit: AuditLog = _group("rights")
    undo: Undo = _group("files")
    daemon: DaemonItself = _group("daemon")
    web: Page = _group("daemon")

    def __init__(
        self,
        base_url: str | None = None,
        auth_file: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
        *,
        name: str = CLIENT_NAME,
        timeout: float = TIMEOUT_SECONDS,
        session_token: str | None = None,
        foreign: bool = False,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
    ) -> None:
        secret = _credential(api_key, token, token_file)
        if session_token is not None:
            check_api_key(session_token, "The parameter session_token")
        if auth_file is not None and not os.fspath(auth_file):
            raise BadCredential("The parameter auth_file is empty: leave it out for that of this user's daemon.")
        has_own = secret is not None or auth_file is not None
        if not has_own and session_token is None:
            secret = from_environment(os.environ)
        beside = default_auth_file() if auth_file is None else Path(auth_file)
        self.base_url = (default_url(beside) if base_url is None else base_url).rstrip("/")
        self._session = HttpSession(
            self.base_url,
            beside,
            secret,
            name=name,
            timeout=timeout,
            token=session_token,
            foreign=foreign,
            is_renewable=has_own or session_token is None,
        )

    def events(
        self,
        kinds: Sequence[str] | None = None,
        after: int | None = None,
        *,
        ago: float | None = None,
        retry_timeout: float = RETRY_TIMEOUT,
        on_retry: OnRetry | None = None,
    ) -> Iterator[Event]:
        """Yield what changes, first the line ``begun``; see :func:`connmgr.client.daemon.events`."""
        from connmgr.client.daemon import events

        return events(self._session, kinds, after, ago, retry_timeout, on_retry)

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        self._session.close()

    def abandon(self) -> None:
        """Make another thread's current request, if any, fail as if its connection broke."""
        self._session.abandon()

    def shake_hands(self) -> None:
        """Begin a session now instead of before the first request, unless the client has one."""
        if self._session.token is None:
            self._session.shake_hands()

    def clone(self, timeout: float | None = None) -> Client:
        """Return a client of the same session, with its own connection, for another thread.

        It waits ``timeout`` seconds for an answer, by default as long as this one.
        """
        session = self._session
        # Threads that shook hands for themselves would begin as many sessions.
        self.shake_hands()
        twin = Client(
            self.base_url,
            session.auth_file,
            session.api_key,
            name=session.name,
            timeout=session.timeout if timeout is None else timeout,
            session_token=session.token,
            foreign=session.foreign,
        )
        twin._session.is_renewable = session.is_renewable
        return twin

    @property
    def session_token(self) -> str | None:
        """The token of this session, None before the first request."""
        return self._session.token

    @property
    def credential(self) -> str | None:
        """A digest that names the token or API key that this client authenticates with; None for the auth file."""
        secret = self._session.api_key
        return None if secret is None else digest(secret)

    def answer_by(self, deadline: float | None) -> None:
        """Let requests and parts of answers raise :class:`Unreachable` at ``deadline``, a time.monotonic() or None."""
        self._session.deadline = deadline

    def remedy(self, remedy: Remedy | None) -> None:
        """Call ``remedy`` after each refused request, with the error and the body; if it returns True, repeat it."""
        self._session.remedy = remedy

    def patience(self, patience: Callable[[socket.socket], None] | None) -> None:
        """Call ``patience`` after each request was sent, with the socket at which its answer will come."""
        self._session.patience = patience

    def remedies(self, error: ClientError, **fields: Any) -> bool:
        """Whether the remedy wants to repeat a request of ``fields`` that was refused by ``error``."""
        remedy = self._session.remedy
        return remedy is not None and remedy(error, self._session.encode(**fields))

    def post(self, path: str, /, **fields: Any) -> Any:
        """Send ``fields`` as a JSON object to ``path``, return a dict or raw bytes, or raise :class:`ClientError`."""
        return self._session.post(path, **fields)

    def run(self, stdin: Input | None, **fields: Any) -> Stream:
        """Send ``fields`` to ``/shell/exec`` as :meth:`post` does; otherwise as :meth:`Shells.stream`."""
        from connmgr.client.output import run

        return run(self._session, fields, stdin)

    def send(self, path: str, body: bytes, content_type: str) -> Any:
        """Send a raw body to the endpoint ``path``; otherwise as :meth:`post`."""
        return self._session.send(path, body, content_type)


def _credential(api_key: str | None, token: str | None, token_file: str | os.PathLike[str] | None) -> str | None:
    """Return the one token or API key that parameters name, or None.

    :raises BadCredential: they name several, or what they name is not one.
    """
    parameters = [
        name
        for name, value in (("api_key", api_key), ("token", token), ("token_file", token_file))
        if value is not None
    ]
    if len(parameters) > 1:
        raise BadCredential(f"The parameters {' and '.join(parameters)} name several credentials: give one.")
    if token is not None:
        return check_token(token, "The parameter token")
    if token_file is not None:
        return read_token(token_file)
    return None if api_key is None else check_api_key(api_key, "The parameter api_key")
