"""A daemon whose answers a test scripts, by wsproto, for hostile answers to a client of streams."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Pong, Request, TextMessage

from connmgr.client import Client
from connmgr.streams import frames
from tests.deadlines import DEADLINE_SECONDS

Script = Callable[["Accepted"], None]


class Accepted:
    """The server's side of a client's WebSocket; each call may take :data:`DEADLINE_SECONDS`."""

    def __init__(self, connected: socket.socket, head: bytes) -> None:
        self.socket = connected
        self.protocol = WSConnection(ConnectionType.SERVER)
        self.protocol.receive_data(head)
        [request] = self.protocol.events()
        assert isinstance(request, Request)
        self.target = request.target
        self.pongs: list[bytes] = []
        self.closed: int | None = None
        self._messages: list[bytes | str] = []
        self._begun: bytes | str = b""

    def accept(self) -> None:
        """Switch to the WebSocket."""
        self.raw(self.protocol.send(AcceptConnection()))

    def raw(self, data: bytes) -> None:
        """Send raw bytes."""
        self.socket.sendall(data)

    def send(self, *parts: bytes) -> None:
        """Send a message."""
        self.raw(self.protocol.send(BytesMessage(b"".join(parts))))

    def data(self, content: bytes, kind: int = frames.DATA) -> None:
        """Send output."""
        self.send(bytes((kind,)), content)

    def ping(self, content: bytes) -> None:
        """Send a ping."""
        self.raw(self.protocol.send(Ping(content)))

    def finish(self, status: int = 0) -> None:
        """Send the end of output and the exit status, and close."""
        self.send(bytes((frames.EOF,)))
        self.send(frames.exit_status(status))
        self.close(1000)

    def close(self, code: int) -> None:
        """Send a closing frame."""
        self.raw(self.protocol.send(CloseConnection(code)))

    def receive(self) -> bytes | str:
        """Return the client's next message.

        :raises EOFError: the client has closed.
        """
        while not self._messages:
            if self.closed is not None:
                raise EOFError
            received = self.socket.recv(65536)
            self.protocol.receive_data(received or None)
            for event in self.protocol.events():
                self._take(event)
        return self._messages.pop(0)

    def request(self) -> dict[str, Any]:
        """Return the first message."""
        return dict(json.loads(self.receive()))

    def input(self) -> bytes:
        """Return all input up to its end, acknowledged as it comes."""
        whole = bytearray()
        while True:
            message = self.receive()
            assert isinstance(message, bytes | bytearray)
            if message[0] == frames.EOF:
                return bytes(whole)
            if message[0] == frames.DATA:
                whole += message[1:]
                self.send(frames.acknowledgement(len(message) - 1))

    def _take(self, event: object) -> None:
        if isinstance(event, BytesMessage | TextMessage):
            self._begun = self._begun + event.data if self._begun else event.data  # type: ignore[operator]
            if event.message_finished:
                self._messages.append(self._begun)
                self._begun = b""
        elif isinstance(event, Pong):
            self.pongs.append(bytes(event.payload))
        elif isinstance(event, CloseConnection):
            self.closed = event.code


class StreamServer:
    """Listens on the loopback interface, and calls ``script`` for each WebSocket in its own thread.

    ``answers`` has the bodies of the answers to other requests, by path. An error of a script is raised at the end.
    """

    def __init__(self, script: Script, answers: Mapping[str, Any] | None = None) -> None:
        self._script = script
        self._answers = {"/handshake": {"sessionToken": "token"}, **(answers or {})}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[tuple[str, Any]] = []

    def __enter__(self) -> StreamServer:
        self._start(self._listen)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # shutdown() wakes the accepting thread; close() does not.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
        if kind is None and self._errors:
            raise self._errors[0]

    def client(self) -> Client:
        """Return a client of it."""
        return Client(self.url, api_key="key", timeout=DEADLINE_SECONDS)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            accepted.settimeout(DEADLINE_SECONDS)
            self._start(self._serve, accepted)

    def _serve(self, accepted: socket.socket) -> None:
        try:
            with accepted:
                self._requests(accepted)
        except (EOFError, ConnectionError):
            pass
        except BaseException as error:  # noqa: BLE001 - the test is told at its end
            self._errors.append(error)

    def _requests(self, accepted: socket.socket) -> None:
        held = b""
        while True:
            while b"\r\n\r\n" not in held:
                held += self._received(accepted)
            head, _, held = held.partition(b"\r\n\r\n")
            method, path, _ = head.split(b" ", 2)
            if method == b"GET":
                self._script(Accepted(accepted, head + b"\r\n\r\n"))
                self._end(accepted)
                return
            [length] = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
            while len(held) < length:
                held += self._received(accepted)
            body, held = held[:length], held[length:]
            self.requests.append((path.decode(), json.loads(body)))
            answer = json.dumps(self._answers[path.decode()]).encode()
            lines = ["HTTP/1.1 200 OK", "Content-Type: application/json", f"Content-Length: {len(answer)}", "", ""]
            accepted.sendall("\r\n".join(lines).encode() + answer)

    @staticmethod
    def _end(accepted: socket.socket) -> None:
        """Close as a daemon does: with unread input, the kernel would discard the last output."""
        if accepted.fileno() >= 0:
            # The client may have gone already.
            with suppress(OSError):
                accepted.shutdown(socket.SHUT_WR)
            while accepted.recv(65536):
                pass

    @staticmethod
    def _received(accepted: socket.socket) -> bytes:
        received = accepted.recv(65536)
        if not received:
            raise EOFError
        return received
