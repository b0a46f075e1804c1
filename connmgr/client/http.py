"""Requests to the daemon over one kept-alive connection, and the handshake before them."""

from __future__ import annotations

import json
import math
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connmgr.client.address import connection_to, read_auth_file, stranger
from connmgr.client.credentials import is_token
from connmgr.client.errors import AccessDenied, Answer, ClientError, Unreachable, from_answer
from connmgr.client.repeat import Remedy, repeated
from connmgr.client.wire import SWITCHING, Body, BodySender, Headers, Response, WireError
from connmgr.paths import auth_file_elsewhere

JSON = "application/json"
BYTES = "application/octet-stream"

LOOK_SECONDS = 0.1
"""Interval of the looks at a passed file, while the daemon reads or writes it."""


class HttpSession:
    """A session with the daemon; for one thread at a time.

    Requests without an answer at ``deadline``, a time.monotonic() or None, fail. ``token`` continues an existing
    session; without a valid one, a handshake precedes the first request, provided that the session ``is_renewable``.
    ``api_key`` is a token or the API key; if it is None, the handshake sends the auth file. Unless the daemon may be
    ``foreign``, nothing is sent to a program of another user on this machine, and the Unix socket beside the auth file
    is preferred.
    """

    def __init__(
        self,
        base_url: str,
        auth_file: Path,
        api_key: str | None,
        *,
        name: str,
        timeout: float,
        token: str | None = None,
        foreign: bool = False,
        is_renewable: bool = True,
    ) -> None:
        self.base_url = base_url
        self.auth_file = auth_file
        self.api_key = api_key
        self.name = name
        self.timeout = timeout
        self.token = token
        self.foreign = foreign
        self.is_renewable = is_renewable
        """Whether a handshake may replace an expired session: not if the session's token is the only credential."""

        self.remedy: Remedy | None = None
        self.patience: Callable[[socket.socket], None] | None = None
        """Called when a request was sent, before its answer is read; it may wait for the socket, and say so."""

        self.deadline: float | None = None
        self._answer_timeout = timeout
        self._connection = connection_to(base_url, timeout, None if foreign else auth_file)

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        self._connection.close()

    def abandon(self) -> None:
        """Make another thread's current request, if any, fail."""
        self._connection.abandon()

    @contextmanager
    def answered_within(self, seconds: float) -> Iterator[None]:
        """Wait at most ``seconds`` for each part of an answer, or the session's ``timeout`` if that is shorter."""
        self._answer_timeout = min(seconds, self.timeout)
        try:
            yield
        finally:
            self._answer_timeout = self.timeout

    def send(self, path: str, body: bytes, content_type: str = JSON) -> Any:
        """Send ``body`` and return a dict or raw bytes, or raise :class:`ClientError`."""
        return self.finish(self.open(path, body, content_type))

    def post(self, path: str, /, **fields: Any) -> Any:
        """Send ``fields`` as a JSON object, and return the answer as :meth:`send` does."""
        return self.send(path, self.encode(**fields))

    def finish(self, response: Response) -> Any:
        """Read the rest of an answer and return it as :meth:`send` does."""
        content = self._content(response)
        if response.headers.content_type != JSON:
            return content
        return self._object(content)

    @staticmethod
    def _object(content: bytes) -> Answer:
        try:
            answer = json.loads(content, object_hook=Answer) if content else Answer()
        except ValueError:
            answer = None
        if not isinstance(answer, Answer):
            raise ClientError("The answer is not a JSON object, so it is not the daemon's.", "unknown", 200)
        return answer

    @staticmethod
    def encode(**fields: Any) -> bytes:
        """Return ``fields`` as a JSON object."""
        return json.dumps(fields).encode()

    def open(
        self,
        path: str,
        body: Body,
        content_type: str = JSON,
        length: int | None = None,
        *,
        accept: str | None = None,
    ) -> Response:
        """Send ``body`` and return the answer; read its content before the next request.

        A ``body`` other than bytes is streamed, ``length`` bytes of it if given. A stream can be sent only once, so the
        token is tested first. ``accept`` is the wanted media type.
        :raises ClientError: the answer is an error, or there is none.
        """
        if not isinstance(body, bytes):
            return self._send_authorized(path, body, content_type, length, accept)
        content = body
        return repeated(
            lambda: self._send_authorized(path, content, content_type, length, accept),
            lambda error: self.remedy is not None and self.remedy(error, content),
        )

    @property
    def passes_files(self) -> bool:
        """Whether the daemon is reached by its Unix socket, over which it can be passed a file.

        :raises ClientError: the daemon cannot be reached.
        """
        self._connect()
        return self._connection.sock is not None and self._connection.sock.family == socket.AF_UNIX

    def pass_file(
        self, path: str, body: bytes, content_type: str, descriptor: int, moved: Callable[[int], object]
    ) -> Any:
        """As :meth:`send`, and pass ``descriptor``, of a regular file, which the daemon reads or writes meanwhile.

        ``moved`` is called with the position in it, now and then. The request fails if that does not change for as long
        as the session waits for an answer.
        """
        start = os.lseek(descriptor, 0, os.SEEK_CUR)

        def ask() -> Response:
            # An attempt that was refused has moved nothing; this says so for sure.
            os.lseek(descriptor, start, os.SEEK_SET)
            return self._send_authorized(path, body, content_type, None, None, descriptor=descriptor)

        def watch(answering: socket.socket) -> None:
            news = select.poll()
            news.register(answering, select.POLLIN)
            at, since = start, time.monotonic()
            while not news.poll(LOOK_SECONDS * 1000):
                # The daemon and this process share it, as the position is the open file's.
                position = os.lseek(descriptor, 0, os.SEEK_CUR)
                if position != at:
                    at, since = position, time.monotonic()
                    moved(at)
                elif time.monotonic() > since + self._connection.timeout:
                    raise TimeoutError("timed out")

        # The watch takes the place of what the caller has set, because both wait at the same socket.
        patience, self.patience = self.patience, watch
        try:
            response = repeated(ask, lambda error: self.remedy is not None and self.remedy(error, body))
        finally:
            self.patience = patience
        return self.finish(response)

    def open_body(self, path: str, head: bytes, *, accept: str) -> tuple[Response, BodySender]:
        """Send ``head``, the beginning of a body, and return the answer and what sends the rest; as :meth:`open`.

        The daemon answers before it needs the rest, so a refused request can be repeated.
        """
        senders: list[BodySender] = []

        def send(headers: dict[str, str]) -> None:
            senders.append(self._connection.post_head(path, head, headers))

        def ask() -> Response:
            # The daemon answers a stranger only when the whole body has come.
            if self.token is None:
                self.shake_hands()
            else:
                self.send("/daemon/version", b"{}")
            return self._ask(send, BYTES, accept)

        def remedied(error: ClientError) -> bool:
            while senders:
                senders.pop().close()
            # The daemon does not read the rest of a body that it refuses.
            self._connection.close()
            return self.remedy is not None and self.remedy(error, head)

        return repeated(ask, remedied), senders[-1]

    def _send_authorized(
        self,
        path: str,
        body: Body,
        content_type: str,
        length: int | None,
        accept: str | None,
        *,
        descriptor: int | None = None,
    ) -> Response:
        # A token that was issued a moment ago and is refused would be refused again: only an older one is renewed.
        fresh = self.token is None
        if self.token is None:
            self.shake_hands()
        elif not isinstance(body, bytes):
            self.send("/daemon/version", b"{}")
        try:
            return self._request(path, body, content_type, length, accept, descriptor=descriptor)
        except AccessDenied as error:
            # The daemon restarted, or the token expired: the request was not carried out.
            # A stream has been read, and cannot be sent again.
            if not self._may_renew(error, fresh=fresh) or not isinstance(body, bytes):
                raise
        self.shake_hands()
        return self._request(path, body, content_type, length, accept, descriptor=descriptor)

    def switch(self, path: str, headers: dict[str, str]) -> tuple[Headers, socket.socket, bytes]:
        """Switch the connection at ``path`` to the protocol that ``headers`` ask for, and hand it over.

        Return the headers of the answer, the non-blocking socket, and data of the protocol that has already come. The
        next request opens a new connection.
        :raises ClientError: the daemon refuses, or cannot be reached.
        """
        fresh = self.token is None
        if fresh:
            self.shake_hands()
        try:
            response = self._switch(path, headers)
        except AccessDenied as error:
            if not self._may_renew(error, fresh=fresh):
                raise
            self.shake_hands()
            response = self._switch(path, headers)
        return response.headers, *self._connection.switch()

    def _may_renew(self, error: AccessDenied, *, fresh: bool) -> bool:
        return error.code == "invalid_token" and not fresh and self.is_renewable

    def _switch(self, path: str, headers: dict[str, str]) -> Response:
        self._connect()
        authorized = {**headers, "Authorization": f"Bearer {self.token}"}
        response = self._exchange(lambda: self._connection.ask_to_switch(path, authorized))
        if response.status != SWITCHING:
            raise from_answer(response.status, self._content(response), response.headers.get("retry-after"))
        return response

    def shake_hands(self) -> None:
        """Get a new token.

        :raises ClientError: the credential is refused, or the daemon cannot be reached.
        """
        self.token = None
        auth = self._credential()
        body = self.encode(auth=auth, client={"type": "api", "name": self.name})
        answer = self._object(self._content(self._request("/handshake", body, JSON)))
        self.token = str(answer["sessionToken"])

    def _credential(self) -> dict[str, str]:
        if self.api_key is None:
            return self._local_auth()
        return (
            {"type": "token", "token": self.api_key}
            if is_token(self.api_key)
            else {"type": "apiKey", "key": self.api_key}
        )

    def _local_auth(self) -> dict[str, str]:
        try:
            return {"type": "local", "authFileContent": read_auth_file(self.auth_file, foreign=self.foreign)}
        except PermissionError as error:
            message = f"The auth file {self.auth_file} is not used: {error.strerror}. Name your own daemon's"
            raise Unreachable(f"{message} with CONNMGR_AUTH_FILE.", sent=False) from error
        except OSError as error:
            message = f"The auth file {self.auth_file} cannot be read ({error.strerror}): is the daemon running?"
            if other := auth_file_elsewhere(self.auth_file, os.environ):
                message += f" A daemon with another XDG_RUNTIME_DIR has {other}: CONNMGR_AUTH_FILE={other} names it."
            raise Unreachable(message, sent=False) from error

    def _request(
        self,
        path: str,
        body: Body,
        content_type: str,
        length: int | None = None,
        accept: str | None = None,
        *,
        descriptor: int | None = None,
    ) -> Response:
        def send(headers: dict[str, str]) -> None:
            self._connection.post(path, body, headers, length, descriptor=descriptor)

        return self._ask(send, content_type, accept)

    def _ask(self, send: Callable[[dict[str, str]], None], content_type: str, accept: str | None) -> Response:
        headers = {"Content-Type": content_type}
        if accept is not None:
            headers["Accept"] = accept
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        self._connect()
        response = self._exchange(lambda: send(headers))
        if response.status != 200:
            content = self._content(response)
            raise from_answer(response.status, content, response.headers.get("retry-after"))
        return response

    def _connect(self) -> None:
        left = math.inf if self.deadline is None else self.deadline - time.monotonic()
        if left <= 0:
            raise Unreachable(f"No time is left to ask the daemon at {self.base_url}.", sent=False)
        # The limit comes first, because connecting waits, too.
        self._connection.limit(min(self._answer_timeout, left))
        try:
            self._connection.close_if_stale()
            if self._connection.sock is not None:
                return
            connected = self._connection.connect()
            # Before anything is sent: the first bytes would be the credential.
            uid = None if self.foreign else stranger(connected)
        except (OSError, UnicodeError) as error:
            # UnicodeError: the host cannot be a name.
            self._connection.close()
            raise Unreachable(f"No daemon answers at {self.base_url}: {_reason(error)}", sent=False) from error
        if uid is not None:
            self._connection.close()
            message = f"A program of another user (uid {uid}) listens at {self.base_url}, not your daemon"
            raise Unreachable(f"{message}; nothing was sent to it.", sent=False)

    def _exchange(self, send: Callable[[], None]) -> Response:
        connection = self._connection
        try:
            try:
                send()
            except (BrokenPipeError, ConnectionResetError):
                # The daemon may have refused before the whole body was sent; then its answer can be read.
                return connection.response()
            if self.patience is not None and connection.sock is not None:
                self.patience(connection.sock)
            return connection.response()
        except (OSError, WireError) as error:
            connection.close()
            raise self._lost(error) from error
        except BaseException:
            # Otherwise a late answer could be taken for that of the next request.
            connection.close()
            raise

    def _content(self, response: Response) -> bytes:
        try:
            return response.read()
        except (OSError, WireError) as error:
            self._connection.close()
            raise self._lost(error) from error
        except BaseException:
            self._connection.close()
            raise

    def _lost(self, error: Exception) -> Unreachable:
        return Unreachable(f"The daemon at {self.base_url} does not answer: {_reason(error)}", sent=True)


def _reason(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    return f"{strerror or error or type(error).__name__}"
