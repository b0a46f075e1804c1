"""A client of the daemon's HTTP API, on the standard library alone.

with Client() as daemon:
    for id in daemon.connection.query("web*"):
        daemon.shell.start(id)
        print(daemon.shell.exec(id, "uptime").stdout)
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

from connmgr.client.endpoints import Categories, Connections, DaemonItself, Secrets, Shells, Vault
from connmgr.client.errors import AccessDenied, ClientError, Unreachable
from connmgr.client.files import Files
from connmgr.client.http import HttpSession, default_auth_file, default_url
from connmgr.client.results import (
    Category,
    Connection,
    ConnectionType,
    DaemonStatus,
    FileEntry,
    RawResult,
    Result,
    RunningShell,
    ShellInfo,
    VaultStatus,
    Version,
)
from connmgr.client.transfer import Download, Progress

__all__ = [
    "DEFAULT_CATEGORY",
    "LOCAL_MACHINE",
    "ROOT_CATEGORY",
    "AccessDenied",
    "Category",
    "Client",
    "ClientError",
    "Connection",
    "ConnectionType",
    "DaemonStatus",
    "Download",
    "FileEntry",
    "Progress",
    "RawResult",
    "Result",
    "RunningShell",
    "ShellInfo",
    "Unreachable",
    "VaultStatus",
    "Version",
]

LOCAL_MACHINE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
"""The connection to the machine that the daemon runs on."""

ROOT_CATEGORY = "bfb0b51a-e7a3-4ce4-8878-8d4cb5828d6c"
DEFAULT_CATEGORY = "97458c07-75c0-4f9d-a06e-92d8cdf67c40"

NAME = "connmgr client"
DEFAULT_TIMEOUT = 86400.0 + 60.0
"""Seconds to wait for an answer by default: as long as a command may run."""


class Client:
    """A session with the daemon over one kept connection.

    Without ``base_url`` it talks to ``CONNMGR_HOST`` and ``CONNMGR_PORT``, by default 127.0.0.1:21721. It authenticates
    with ``api_key`` where it is given one, else with the auth file, by default ``CONNMGR_AUTH_FILE`` or the one that
    this user's daemon makes. ``session_token`` continues a session that another client has begun.

    It goes by the Unix socket beside the auth file where there is one, else by the port. Nothing is sent to a program
    on this machine that another user runs, which may have taken the port of a daemon that has ended; of a port, Linux
    alone tells. Where the daemon is another user's, who has given its API key, say so with ``foreign``.

    It shakes hands before the first request, and again when the token is not valid any more, because it has expired or
    the daemon was restarted; the request, with which nothing was done then, is repeated. Nothing else ever is: where a
    connection breaks while a request is under way, :class:`Unreachable` says so. Closing it or being interrupted in the
    middle of :meth:`Shells.exec` kills the command.

    For one thread at a time; :meth:`clone` makes one for another thread.
    """

    def __init__(
        self,
        base_url: str | None = None,
        auth_file: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
        *,
        name: str = NAME,
        timeout: float = DEFAULT_TIMEOUT,
        session_token: str | None = None,
        foreign: bool = False,
    ) -> None:
        self.base_url = (base_url or default_url()).rstrip("/")
        credential = Path(auth_file or default_auth_file())
        self._session = HttpSession(
            self.base_url, credential, api_key, name=name, timeout=timeout, token=session_token, foreign=foreign
        )
        self.category = Categories(self.post)
        self.connection = Connections(self.post)
        self.shell = Shells(self.post)
        self.fs = Files(self.post, self._session)
        self.secret = Secrets(self.post)
        self.vault = Vault(self.post)
        self.daemon = DaemonItself(self.post)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        self._session.close()

    def clone(self) -> Client:
        """Return a client of the same session, with a connection of its own, for another thread."""
        session = self._session
        if session.token is None:
            session.shake_hands()
        return Client(
            self.base_url,
            session.auth_file,
            session.api_key,
            name=session.name,
            timeout=session.timeout,
            session_token=session.token,
            foreign=session.foreign,
        )

    @property
    def session_token(self) -> str | None:
        """The token of this session, None before the first request."""
        return self._session.token

    def post(self, path: str, /, **fields: Any) -> Any:
        """Send ``fields`` as a JSON object to the endpoint ``path`` and return its answer.

        That is a dict, empty where the endpoint has nothing to say, or bytes where it answers with raw content.
        :raises ClientError: the answer is an error, or there is none.
        """
        return self._session.send(path, self._session.encoded(**fields))

    def send(self, path: str, body: bytes, content_type: str) -> Any:
        """Send a raw body to the endpoint ``path``; otherwise as :meth:`post`."""
        return self._session.send(path, body, content_type)
