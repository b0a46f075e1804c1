"""A client of the daemon's HTTP API, which needs only the standard library.

with Client() as daemon:
    for id in daemon.connection.query("web*"):
        daemon.shell.start(id)
        print(daemon.shell.exec(id, "uptime").stdout)
"""

from __future__ import annotations

import os
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from connmgr.client.address import default_auth_file, default_url
from connmgr.client.credentials import BadCredential, check_api_key, check_token, digest, from_environment, read_token
from connmgr.client.errors import AccessDenied, ClientError, Unreachable
from connmgr.client.http import HttpSession
from connmgr.client.names import LOCAL_MACHINE, Name
from connmgr.client.repeat import RETRY_TIMEOUT, OnRetry, Remedy

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from connmgr.client.broadcast import Broadcast, Outcome, RawOutcome
    from connmgr.client.ca import Signers
    from connmgr.client.connections import Applied, Connections
    from connmgr.client.endpoints import Categories, DaemonItself, HostKeys, Page, Tunnels
    from connmgr.client.facts import Facts
    from connmgr.client.files import Download, Extracted, FileEntry, Files, Progress
    from connmgr.client.inventories import Inventories
    from connmgr.client.jobs import Jobs
    from connmgr.client.multiplex import Multiplex
    from connmgr.client.output import Input, Piece, RawResult, Result, Stream
    from connmgr.client.rights import Approvals, AuditLog, SavedCommands, Tokens
    from connmgr.client.runs import Runs
    from connmgr.client.schedules import Schedules
    from connmgr.client.shells import Shells
    from connmgr.client.terminals import Recordings, Terminals
    from connmgr.client.undo import Undo
    from connmgr.client.vault import Secrets, Vault
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
    "Broadcast": "client.broadcast",
    "Category": "contract.category:CategoryInfo",
    "Connection": "contract.connection:ConnectionInfo",
    "ConnectionType": "contract.connection:TypeInfo",
    "DaemonStatus": "contract.daemon:DaemonStatusResponse",
    "Download": "client.files",
    "Event": "contract.event",
    "Extracted": "client.files",
    "FileEntry": "client.files",
    "ForgottenKey": "contract.connection:ForgottenHostKey",
    "Outcome": "client.broadcast",
    "Piece": "client.output",
    "Progress": "client.files",
    "RawOutcome": "client.broadcast",
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
    found = getattr(import_module(f"connmgr.{module}"), there or name)
    globals()[name] = found
    return found


CLIENT_NAME = "connmgr client"
TIMEOUT_SECONDS = 86400.0 + 60.0
"""Seconds to wait for an answer by default: the longest time of a command, and a minute."""


class Client:
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

    # Each group is imported on first use: few programs need all of them, and all would wait for their modules.

    @cached_property
    def category(self) -> Categories:
        """``/category``."""
        from connmgr.client.endpoints import Categories

        return Categories(self.post)

    @cached_property
    def connection(self) -> Connections:
        """``/connection``."""
        from connmgr.client.connections import Connections

        return Connections(self.post)

    @cached_property
    def shell(self) -> Shells:
        """``/shell``."""
        from connmgr.client.shells import Shells

        return Shells(self.post, self._session)

    @cached_property
    def hostkey(self) -> HostKeys:
        """``/hostkey``."""
        from connmgr.client.endpoints import HostKeys

        return HostKeys(self.post)

    @cached_property
    def tunnel(self) -> Tunnels:
        """``/tunnel``."""
        from connmgr.client.endpoints import Tunnels

        return Tunnels(self.post)

    @cached_property
    def daemon(self) -> DaemonItself:
        """``/daemon``."""
        from connmgr.client.endpoints import DaemonItself

        return DaemonItself(self.post)

    @cached_property
    def fs(self) -> Files:
        """``/fs``."""
        from connmgr.client.files import Files

        return Files(self.post, self._session)

    @cached_property
    def fact(self) -> Facts:
        """``/fact``."""
        from connmgr.client.facts import Facts

        return Facts(self.post)

    @cached_property
    def undo(self) -> Undo:
        """``/undo``."""
        from connmgr.client.undo import Undo

        return Undo(self.post)

    @cached_property
    def vault(self) -> Vault:
        """``/vault``."""
        from connmgr.client.vault import Vault

        return Vault(self.post)

    @cached_property
    def secret(self) -> Secrets:
        """``/secret``."""
        from connmgr.client.vault import Secrets

        return Secrets(self.post)

    @cached_property
    def jobs(self) -> Jobs:
        """``/job``."""
        from connmgr.client.jobs import Jobs

        return Jobs(self.post, self._session)

    @cached_property
    def schedules(self) -> Schedules:
        """``/schedule``."""
        from connmgr.client.schedules import Schedules

        return Schedules(self.post)

    @cached_property
    def inventories(self) -> Inventories:
        """``/inventory``."""
        from connmgr.client.inventories import Inventories

        return Inventories(self.post)

    @cached_property
    def ca(self) -> Signers:
        """``/ca``."""
        from connmgr.client.ca import Signers

        return Signers(self.post)

    @cached_property
    def runs(self) -> Runs:
        """``/run``."""
        from connmgr.client.runs import Runs

        return Runs(self.post)

    @cached_property
    def token(self) -> Tokens:
        """``/token``."""
        from connmgr.client.rights import Tokens

        return Tokens(self.post)

    @cached_property
    def approval(self) -> Approvals:
        """``/approval``."""
        from connmgr.client.rights import Approvals

        return Approvals(self.post)

    @cached_property
    def command(self) -> SavedCommands:
        """``/command``."""
        from connmgr.client.rights import SavedCommands

        return SavedCommands(self.post)

    @cached_property
    def audit(self) -> AuditLog:
        """``/audit``."""
        from connmgr.client.rights import AuditLog

        return AuditLog(self.post)

    @cached_property
    def terminal(self) -> Terminals:
        """``/terminal``."""
        from connmgr.client.terminals import Terminals

        return Terminals(self.post, self._session)

    @cached_property
    def recording(self) -> Recordings:
        """``/recording``."""
        from connmgr.client.terminals import Recordings

        return Recordings(self.post)

    @cached_property
    def multiplex(self) -> Multiplex:
        """``/multiplex``."""
        from connmgr.client.multiplex import Multiplex

        return Multiplex(self.post)

    @cached_property
    def web(self) -> Page:
        """``/web``."""
        from connmgr.client.endpoints import Page

        return Page(self.post)

    def events(
        self,
        kinds: Sequence[str] | None = None,
        after: int | None = None,
        *,
        ago: float | None = None,
        retry_timeout: float = RETRY_TIMEOUT,
        on_retry: OnRetry | None = None,
    ) -> Iterator[Event]:
        """Yield what changes, first the line ``begun``; see :func:`connmgr.client.events.events`."""
        from connmgr.client.events import events

        return events(self._session, kinds, after, ago, retry_timeout, on_retry)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        self._session.close()

    def abandon(self) -> None:
        """Make another thread's current request, if any, fail as if its connection broke."""
        self._session.abandon()

    def clone(self, timeout: float | None = None) -> Client:
        """Return a client of the same session, with its own connection, for another thread.

        It waits ``timeout`` seconds for an answer, by default as long as this one.
        """
        session = self._session
        if session.token is None:
            session.shake_hands()
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
        return remedy is not None and remedy(error, self._session.encoded(**fields))

    def post(self, path: str, /, **fields: Any) -> Any:
        """Send ``fields`` as a JSON object to ``path``, return a dict or raw bytes, or raise :class:`ClientError`."""
        return self._session.send(path, self._session.encoded(**fields))

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
    named = [
        name for name, one in (("api_key", api_key), ("token", token), ("token_file", token_file)) if one is not None
    ]
    if len(named) > 1:
        raise BadCredential(f"The parameters {' and '.join(named)} name several credentials: give one.")
    if token is not None:
        return check_token(token, "The parameter token")
    if token_file is not None:
        return read_token(token_file)
    return None if api_key is None else check_api_key(api_key, "The parameter api_key")
