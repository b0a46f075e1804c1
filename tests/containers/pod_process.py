"""A program of a pod, whose streams travel as messages that begin with the number of a channel."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any, Protocol

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping
from wsproto.utilities import LocalProtocolError

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CHUNK = 32 << 10
STREAMS_SECONDS = 0.05
"""Time before the first output. kubectl before 1.34 drops what comes before it has made its streams, and tells nobody
when it has (kubernetes/kubernetes#131189); a real cluster takes longer to start a program."""


class Messages:
    """The messages of one WebSocket; several threads may send."""

    def __init__(self, read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
        self._read = read
        self._write = write
        self._frames = Connection(ConnectionType.SERVER)
        self._lock = threading.Lock()

    def send(self, channel: int, data: bytes) -> None:
        """Send data of a channel, unless the client has disconnected."""
        with self._lock, suppress(OSError, LocalProtocolError):
            self._write(self._frames.send(BytesMessage(data=bytes([channel]) + data)))

    def close(self) -> None:
        with self._lock, suppress(OSError, LocalProtocolError):
            self._write(self._frames.send(CloseConnection(code=1000)))

    def each(self, take: Callable[[int, bytes], None]) -> None:
        """Call ``take`` with each message's channel and content until the client disconnects."""
        whole = bytearray()
        with suppress(OSError):
            while data := self._read(CHUNK):
                self._frames.receive_data(data)
                for event in self._frames.events():
                    if isinstance(event, Ping):
                        with self._lock:
                            self._write(self._frames.send(event.response()))
                    elif isinstance(event, CloseConnection):
                        return
                    elif isinstance(event, BytesMessage):
                        whole += event.data
                        if event.message_finished:
                            take(whole[0], bytes(whole[1:]))
                            whole.clear()


class Channels(Protocol):
    """Messages of one client, each with the number of a channel."""

    def send(self, channel: int, data: bytes) -> None: ...
    def close(self) -> None: ...
    def each(self, take: Callable[[int, bytes], None]) -> None: ...


class Piped:
    """A program on pipes."""

    def __init__(self, argv: Sequence[str], messages: Channels) -> None:
        self.messages = messages
        self.process = self.start([os.fsencode(word) for word in argv])

    def start(self, argv: Sequence[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )

    def outputs(self) -> Sequence[tuple[int, IO[bytes]]]:
        """Return the program's output streams by channel."""
        assert self.process.stdout
        assert self.process.stderr
        return [(STDOUT, self.process.stdout), (STDERR, self.process.stderr)]

    def take(self, channel: int, data: bytes) -> None:
        """Act on a message of the client."""
        assert self.process.stdin
        if channel == STDIN and not self.process.stdin.closed:
            with suppress(OSError):
                view = memoryview(data)
                while view:
                    view = view[self.process.stdin.write(view) :]
        elif channel == CLOSE:
            self.process.stdin.close()

    def ended(self) -> None:
        """Release the program's streams."""
        assert self.process.stdin
        self.process.stdin.close()

    def live(self) -> None:
        """Carry the program's streams until it ends; if the client disconnects, end its input."""
        told = threading.Thread(target=self._tell)
        told.start()
        self.messages.each(self.take)
        self.ended()
        told.join()

    def _tell(self) -> None:
        time.sleep(STREAMS_SECONDS)
        threads = [threading.Thread(target=self._copy, args=output) for output in self.outputs()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        code = self.process.wait()
        self.messages.send(ERROR, json.dumps(_status(128 - code if code < 0 else code)).encode())
        self.messages.close()

    def _copy(self, channel: int, stream: IO[bytes]) -> None:
        with suppress(OSError), stream:
            while data := stream.read(CHUNK):
                self.messages.send(channel, data)


class OnTerminal(Piped):
    """A program on a terminal."""

    def start(self, argv: Sequence[bytes]) -> subprocess.Popen[bytes]:
        self._primary, secondary = pty.openpty()
        process = subprocess.Popen(
            argv,
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(secondary)
        return process

    def outputs(self) -> Sequence[tuple[int, IO[bytes]]]:
        return [(STDOUT, open(os.dup(self._primary), "rb", buffering=0))]  # noqa: PTH123 - its reader closes it

    def take(self, channel: int, data: bytes) -> None:
        if channel == STDIN:
            os.write(self._primary, data)
        elif channel == RESIZE:
            size = json.loads(data)
            packed = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
            fcntl.ioctl(self._primary, termios.TIOCSWINSZ, packed)

    def ended(self) -> None:
        os.close(self._primary)


def _status(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": causes},
    }
