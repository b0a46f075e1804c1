"""A client of streams, written from the protocol alone, that shows each frame."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from tests.api.wire import Answer, address
from tests.deadlines import DEADLINE_SECONDS


class NotUpgradedError(Exception):
    """The daemon answered without an upgrade."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status} {answer.body.decode()}")
        self.answer = answer


@dataclass
class Ended:
    """What a stream received by its end: output, sizes, status, error, and the code of the close frame."""

    stdout: bytes = b""
    stderr: bytes = b""
    status: int | None = None
    error: dict[str, Any] = field(default_factory=dict)
    code: int | None = None
    sizes: list[tuple[int, int]] = field(default_factory=list)


class Stream:
    """A WebSocket at ``path`` of the daemon at ``url``; it may acknowledge output as it comes.

    :raises NotUpgradedError: the daemon refused the upgrade.
    """

    def __init__(
        self,
        url: str,
        path: str,
        token: str | None,
        *,
        headers: Mapping[str, str] | None = None,
        subprotocols: Sequence[str] = (),
        acknowledges: bool = True,
    ) -> None:
        host, port = address(url)
        self.acknowledges = acknowledges
        self.socket = socket.create_connection((host, port), DEADLINE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = WSConnection(ConnectionType.CLIENT)
        given = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        extra = [(name.encode(), value.encode()) for name, value in given.items()]
        self._write(
            self.connection.send(
                Request(host=f"{host}:{port}", target=path, extra_headers=extra, subprotocols=list(subprotocols))
            )
        )
        self.ended = Ended()
        self._message = bytearray()
        self.subprotocol = self._opened()

    def _opened(self) -> str | None:
        status, headers, body = 0, {}, b""
        while True:
            self._read()
            for event in self.connection.events():
                if isinstance(event, AcceptConnection):
                    return event.subprotocol
                if isinstance(event, RejectConnection):
                    status = event.status_code
                    headers = {name.decode().title(): value.decode() for name, value in event.headers}
                if isinstance(event, RejectData):
                    body += event.data
                    if event.body_finished:
                        self.socket.close()
                        raise NotUpgradedError(Answer(status, headers, body))

    def _read(self) -> None:
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        self.connection.receive_data(data or None)

    def _write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a frame."""
        self._write(self.connection.send(BytesMessage(bytes((kind,)) + payload)))

    def say(self, text: str) -> None:
        """Send a text message."""
        self._write(self.connection.send(TextMessage(text)))

    def ask(self, **request: Any) -> Stream:
        """Send the first message."""
        self.say(json.dumps(request))
        return self

    def write(self, data: bytes) -> None:
        """Send data."""
        self.send(0, data)

    def resize(self, columns: int, rows: int, times: int = 1, then: bytes = b"") -> None:
        """Send the size of the terminal ``times`` times, and ``then`` data, in one write."""
        sizes = self.connection.send(BytesMessage(b"\2" + struct.pack(">HH", columns, rows))) * times
        self._write(sizes + (self.connection.send(BytesMessage(b"\0" + then)) if then else b""))

    def await_taken(self) -> None:
        """Wait until the daemon has read all input; it must send no output meanwhile."""
        self._write(self.connection.send(Ping()))
        answered = False
        while not answered:
            self._read()
            for event in self.connection.events():
                if isinstance(event, Ping):
                    # The daemon asks a client whether it is there that has sent nothing for a while.
                    self._write(self.connection.send(event.response()))
                    continue
                assert isinstance(event, Pong), event
                answered = True

    def acknowledge(self, size: int) -> None:
        """Acknowledge output."""
        self.send(3, struct.pack(">I", size))

    def end_input(self) -> None:
        """Send EOF."""
        self.send(4)

    def frames(self) -> list[bytes]:
        """Wait for frames and return them; an empty list at the end."""
        found: list[bytes] = []
        while self.ended.code is None:
            # Some may have arrived with the answer to the upgrade.
            for event in self.connection.events():
                if isinstance(event, BytesMessage):
                    self._message += event.data
                    if event.message_finished:
                        found.append(bytes(self._message))
                        self._message.clear()
                elif isinstance(event, Ping):
                    self._write(self.connection.send(event.response()))
                elif isinstance(event, CloseConnection):
                    self.ended.code = event.code
                    self.socket.close()
                    break
            if found or self.ended.code is not None:
                break
            self._read()
        for frame in found:
            self._note(frame)
        return found

    def _note(self, frame: bytes) -> None:
        kind, payload = frame[0], frame[1:]
        if kind == 0:
            self.ended.stdout += payload
        elif kind == 1:
            self.ended.stderr += payload
        elif kind == 2:
            columns, rows = struct.unpack(">HH", payload)
            self.ended.sizes.append((columns, rows))
        elif kind == 5:
            (self.ended.status,) = struct.unpack(">i", payload)
        elif kind == 6:
            self.ended.error = json.loads(payload)
        if kind in (0, 1) and self.acknowledges and self.ended.code is None:
            self.acknowledge(len(payload))

    def until(self, text: bytes) -> bytes:
        """Wait until the output contains ``text``, and return it all."""
        end = time.monotonic() + DEADLINE_SECONDS
        while text not in self.ended.stdout:
            assert time.monotonic() < end, f"{text!r} did not come, but {self.ended}"
            assert self.frames(), f"{text!r} did not come, but {self.ended}"
        return self.ended.stdout

    def finish(self) -> Ended:
        """Read to the end of the stream, and return how it ended."""
        while self.frames():
            pass
        return self.ended

    def close(self) -> None:
        """Disconnect without a close frame."""
        self.socket.close()
