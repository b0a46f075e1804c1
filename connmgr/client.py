"""A thin client of the daemon's HTTP API, on the standard library alone."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from connmgr import paths

NAME = "connmgr client"
DEFAULT_TIMEOUT = 86400.0 + 60.0
"""Seconds to wait for an answer by default: as long as a command may run."""


class ClientError(Exception):
    """The daemon refused a request or could not carry it out, or cannot be reached.

    ``code`` is the stable name of the cause, ``status`` the HTTP status, 0 where no answer came (``unreachable``), and
    ``details`` holds all further members of the error.
    """

    def __init__(self, message: str, code: str, status: int, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.details = details or {}


class Client:
    """A session with the daemon over one connection; for one thread at a time.

    Without ``base_url`` it talks to ``CONNMGR_HOST`` and ``CONNMGR_PORT``, by default 127.0.0.1:21721. It authenticates
    with ``api_key`` where it is given one, else with the auth file, by default ``CONNMGR_AUTH_FILE`` or the one that
    this user's daemon makes. It shakes hands when the first request is made, and anew when its token has expired.
    """

    def __init__(
        self,
        base_url: str | None = None,
        auth_file: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
        *,
        name: str = NAME,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.base_url = (base_url or _default_url()).rstrip("/")
        self._auth_file = Path(auth_file or os.environ.get("CONNMGR_AUTH_FILE") or paths.auth_file(os.environ))
        self._api_key = api_key
        self._name = name
        self._token: str | None = None
        parts = urlsplit(self.base_url)
        self._connection = _Connection(parts.hostname or "", parts.port or 80, timeout=timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        self._connection.close()

    def post(self, path: str, /, **fields: Any) -> Any:
        """Send ``fields`` as a JSON object to the endpoint ``path`` and return its answer.

        That is a dict, empty where the endpoint has nothing to say, or bytes where it answers with raw content.
        :raises ClientError: the answer is an error, or there is none.
        """
        return self.send(path, json.dumps(fields).encode(), "application/json")

    def send(self, path: str, body: bytes, content_type: str) -> Any:
        """Send a raw body to the endpoint ``path``; otherwise as :meth:`post`."""
        fresh = self._token is None
        if self._token is None:
            self._token = self._shake_hands()
        try:
            return self._request(path, body, content_type)
        except ClientError as error:
            # The daemon was restarted, or the token not used for long; nothing was done with the request.
            if error.code != "invalid_token" or fresh:
                raise
        self._token = self._shake_hands()
        return self._request(path, body, content_type)

    def _shake_hands(self) -> str:
        self._token = None
        auth = {"type": "apiKey", "key": self._api_key} if self._api_key else self._local_auth()
        body = {"auth": auth, "client": {"type": "api", "name": self._name}}
        answer = self._request("/handshake", json.dumps(body).encode(), "application/json")
        return str(answer["sessionToken"])

    def _local_auth(self) -> dict[str, str]:
        try:
            return {"type": "local", "authFileContent": self._auth_file.read_text()}
        except OSError as error:
            message = f"The auth file {self._auth_file} cannot be read ({error.strerror}): is the daemon running?"
            raise ClientError(message, "unreachable", 0) from error

    def _request(self, path: str, body: bytes, content_type: str) -> Any:
        headers = {"Content-Type": content_type}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            self._connection.close_if_stale()
            self._connection.request("POST", path, body, headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            message = f"The daemon at {self.base_url} does not answer: {error or type(error).__name__}"
            raise ClientError(message, "unreachable", 0) from error
        if response.status != 200:
            raise _error(response.status, content)
        if response.headers.get_content_type() != "application/json":
            return content
        return json.loads(content) if content else {}


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close_if_stale(self) -> None:
        """Close the connection if the daemon has: sending on it would fail when the request is under way already."""
        if self.sock is None:
            return
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        if poll.poll(0):
            self.close()


def _default_url() -> str:
    host = os.environ.get("CONNMGR_HOST") or "127.0.0.1"
    port = os.environ.get("CONNMGR_PORT") or paths.DEFAULT_PORT
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _error(status: int, content: bytes) -> ClientError:
    try:
        body = json.loads(content)
        shown = dict(body.get("error", body))
        return ClientError(str(shown.pop("message")), str(shown.pop("code")), status, shown)
    except (ValueError, AttributeError, KeyError, TypeError):
        return ClientError(f"An answer with status {status} that is not the daemon's.", "unknown", status)
