"""HTTP/1.1 as the daemon uses it, over one connection at a time.

Importing the standard library's client, which knows much more of HTTP, would take longer than a command.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO, TypeVar

BLOCK_BYTES = 256 * 1024
LINE_BYTES = 64 * 1024
MAX_HEADERS = 100
CHUNK_END = b"\r\n"
HTTP_PORT = 80
SWITCHING = 101
"""The status that ends HTTP on a connection: the requested protocol follows."""

Body = bytes | IO[bytes] | Iterable[bytes]

_IN_NAME = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_HEXADECIMAL = b"0123456789ABCDEFabcdef"
_ONCE = {"content-length", "transfer-encoding"}


Self = TypeVar("Self", bound="Closeable")


class Closeable:
    """Closed at the end of a ``with`` block, by :meth:`close`."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what it holds; calling it again does nothing."""
        raise NotImplementedError


class WireError(Exception):
    """The data from the other side is not an answer, or is incomplete."""


class SendError(Exception):
    """The rest of a body was not sent, because the connection is closed."""


class Headers(dict[str, str]):
    """The headers of an answer, by their names in lower case."""

    @property
    def content_type(self) -> str:
        """The media type without its parameters."""
        return self.get("content-type", "").partition(";")[0].strip().lower()


class Response:
    """An answer whose body is read once: ``ended`` after its end, ``last`` if the connection carries no other."""

    def __init__(self, connection: Connection, file: IO[bytes]) -> None:
        """Read status and headers from ``file``.

        :raises OSError | WireError: they do not come.
        """
        self._connection = connection
        self._file = file
        self.status = 100
        while self.status < 200 and self.status != SWITCHING:
            version, self.status = _status(_line(file))
            self.headers = _headers(file)
        # RFC 9112, 6.3: Transfer-Encoding outranks Content-Length, and an answer with neither ends with the connection.
        self._chunked = "transfer-encoding" in self.headers
        length = self.headers.get("content-length", "")
        if self._chunked and self.headers["transfer-encoding"].lower() != "chunked":
            raise WireError("an answer in an unknown transfer coding")
        if length and not (length.isascii() and length.isdigit() and len(length) <= 18):
            raise WireError("an answer with a length that is not a number")
        # Bytes left of the body or of the chunk; None for a body that ends with the connection.
        self._left: int | None = 0 if self._chunked else int(length) if length else None
        self.last = version == 0 or self._left is None or self.headers.get("connection", "").lower() == "close"
        self._has_begun = False
        self.ended = self._left == 0 and not self._chunked
        if self.ended:
            self._end()

    def read1(self, most: int) -> bytes:
        """Return the data that has come, 1 to ``most`` bytes; nothing at the end.

        :raises OSError | WireError: the answer is incomplete.
        """
        if self._file.closed and not self.ended:
            raise WireError("the connection was closed")
        if not self.ended and self._chunked and self._left == 0:
            self._next_chunk()
        if self.ended:
            return b""
        piece = self._file.read1(most if self._left is None else min(most, self._left))  # type: ignore[attr-defined]
        if self._left is None:
            if not piece:
                self._end()
            return bytes(piece)
        if not piece:
            raise WireError("the answer broke off")
        self._left -= len(piece)
        if self._left == 0 and not self._chunked:
            self._end()
        return bytes(piece)

    def read(self) -> bytes:
        """Return the rest of the body; otherwise as :meth:`read1`."""
        return b"".join(iter(lambda: self.read1(BLOCK_BYTES), b""))

    def close(self) -> None:
        """Release the answer, and close the connection if the answer was not read to its end."""
        self._file.close()
        if not (self.ended or self.last):
            self._connection.leave(self)

    def _next_chunk(self) -> None:
        if self._has_begun and self._file.readline(len(CHUNK_END) + 1) != CHUNK_END:
            raise WireError("an answer whose chunks do not end")
        self._has_begun = True
        size = _line(self._file).partition(b";")[0].strip()
        if not 1 <= len(size) <= 15 or size.translate(None, _HEXADECIMAL):
            raise WireError("an answer with a chunk whose size is malformed")
        self._left = int(size, 16)
        if self._left == 0:
            _headers(self._file)
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._file.close()


class BodySender:
    """Sends the rest of a chunked body, in any thread, while another one reads the answer from ``connected``."""

    def __init__(self, connected: socket.socket) -> None:
        # The connection may close its own before the answer is read.
        self._socket = connected.dup()
        # Otherwise the end of a killed client would wait behind input that the daemon does not read, and its command
        # would run on: over TCP a FIN follows all data, and a reset does not.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def send(self, piece: bytes) -> None:
        """Send a piece, as fast as the daemon takes it; raise SendError if the connection is closed."""
        # An empty chunk would end the body.
        if piece:
            self._send(_chunk(piece))

    def end(self) -> None:
        """Send the end of the body; raise SendError if the connection is closed."""
        self._send(b"0\r\n\r\n")

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        room = select.poll()
        try:
            room.register(self._socket, select.POLLOUT)
            while rest:
                # Without a limit of time: the daemon waits for the command.
                room.poll()
                rest = rest[self._socket.send(rest) :]
        except OSError as error:
            raise SendError("the daemon takes no more of the body") from error

    def leave(self) -> None:
        """Break the connection off, which wakes a thread that sends."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release it, when no thread sends."""
        self._socket.close()


class Connection:
    """A connection to ``host`` and ``port``; ``sock`` is None until :meth:`connect` and after :meth:`close`.

    ``timeout`` is in seconds, for each send and receive.
    """

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self.host = host
        self.port = port
        self.timeout = timeout
        self.sock: socket.socket | None = None
        self._file: IO[bytes] | None = None
        self._response: Response | None = None

    def connect(self) -> socket.socket:
        """Open the connection and return its socket."""
        self.sock = socket.create_connection((self.host, self.port), self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.sock

    def close(self) -> None:
        """Close the connection, and an answer that was not read to its end."""
        # The socket stays open as long as the file does.
        for opened in (self._file, self.sock):
            if opened is not None:
                opened.close()
        self._file = self.sock = self._response = None

    def leave(self, response: Response) -> None:
        """Close the connection if ``response`` is its current answer, not that of an earlier connection."""
        if self._response is response:
            self.close()

    def post(
        self,
        path: str,
        body: Body,
        headers: dict[str, str],
        length: int | None = None,
        *,
        descriptor: int | None = None,
    ) -> None:
        """Send a request. A ``body`` other than bytes is sent in chunks, unless its ``length`` is given.

        With a body of bytes, the descriptor ``descriptor`` goes along; the connection must be a Unix socket's.
        :raises OSError | WireError: it cannot be sent, or the answer before was not read to its end.
        :raises ValueError: path or headers contain a character that would end their line.
        """
        if self._response is not None and not self._response.ended:
            raise WireError("the answer to the request before was not read")
        self._response = None
        opened = self._require_socket()
        if isinstance(body, bytes):
            request = self._head("POST", path, headers | {"Content-Length": str(len(body))}) + body
            size = 0
            if descriptor is not None:
                # The first byte carries the descriptor (unix(7)); sendmsg may take only a part of the rest.
                rights = struct.pack("i", descriptor)
                size = opened.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            opened.sendall(request[size:])
            return
        chunked = length is None
        framing = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(length)}
        opened.sendall(self._head("POST", path, headers | framing))
        for piece in _pieces(body):
            opened.sendall(_chunk(piece) if chunked else piece)
        if chunked:
            opened.sendall(b"0\r\n\r\n")

    def post_head(self, path: str, head: bytes, headers: dict[str, str]) -> BodySender:
        """Send a request with the beginning of its body, and return what sends the rest; otherwise as :meth:`post`."""
        if self._response is not None and not self._response.ended:
            raise WireError("the answer to the request before was not read")
        self._response = None
        opened = self._require_socket()
        lead = self._head("POST", path, headers | {"Transfer-Encoding": "chunked"})
        opened.sendall(lead + _chunk(head))
        return BodySender(opened)

    def ask_to_switch(self, path: str, headers: dict[str, str]) -> None:
        """Send a request without a body for another protocol, by ``GET``; otherwise as :meth:`post`."""
        if self._response is not None and not self._response.ended:
            raise WireError("the answer to the request before was not read")
        self._response = None
        self._require_socket().sendall(self._head("GET", path, headers))

    def switch(self) -> tuple[socket.socket, bytes]:
        """Hand over the socket after an answer with :data:`SWITCHING`, with received data of the other protocol.

        The socket is non-blocking from now on. The connection can be opened again for another request.
        :raises OSError | WireError: the connection is closed.
        """
        opened, file = self._require_socket(), self._file
        opened.setblocking(False)
        received: bytes = file.peek() if file is not None else b""  # type: ignore[attr-defined]
        if file is not None:
            file.close()
        self._file = self.sock = self._response = None
        return opened, received

    def response(self) -> Response:
        """Return the answer to the request that was sent.

        The last answer of a connection keeps the socket, and the connection can be opened again for another request.
        :raises OSError | WireError: there is none.
        """
        opened = self._require_socket()
        # A buffered file, because an answer's head and small body then cost one recv().
        self._file = opened.makefile("rb")
        self._response = response = Response(self, self._file)
        if response.last and response.status != SWITCHING:
            self._file = self.sock = self._response = None
            # It stays open as long as the answer's file does.
            opened.close()
        return response

    def _head(self, method: str, path: str, headers: dict[str, str]) -> bytes:
        # The codec takes long to load, and does not change a name in ASCII.
        name = self.host if self.host.isascii() else self.host.encode("idna").decode()
        host = f"[{name}]" if ":" in name else name
        fields = {"Host": host if self.port == HTTP_PORT else f"{host}:{self.port}", **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        # min() looks at the characters without a step of the interpreter for each.
        if " " in path or any(min(line) < " " or "\x7f" in line for line in lines):
            raise ValueError("A request with a blank in its path, or a control character in a header.")
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")

    def _require_socket(self) -> socket.socket:
        if self.sock is None:
            raise WireError("the connection is closed")
        return self.sock


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def _pieces(body: IO[bytes] | Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces of ``body`` that are not empty, because an empty chunk would end the body."""
    read = getattr(body, "read", None)
    pieces: Iterable[bytes] = iter(lambda: read(BLOCK_BYTES), b"") if read else body
    return (piece for piece in pieces if piece)


def _headers(file: IO[bytes]) -> Headers:
    headers = Headers()
    for _ in range(MAX_HEADERS + 1):
        line = _line(file)
        if not line.strip(CHUNK_END):
            return headers
        name, colon, value = line.partition(b":")
        field = name.decode("latin-1").lower()
        # Two lengths, or two encodings, would let two readers see two answers (RFC 9112, 6.3: request smuggling).
        if not colon or not name or name.translate(None, _IN_NAME) or (field in _ONCE and field in headers):
            raise WireError("an answer with a malformed header")
        headers[field] = value.strip().decode("latin-1")
    raise WireError("an answer with too many headers")


def _line(file: IO[bytes]) -> bytes:
    line = file.readline(LINE_BYTES + 1)
    if not line:
        raise WireError("the connection was closed without an answer")
    if len(line) > LINE_BYTES or not line.endswith(b"\n"):
        raise WireError("an answer that breaks off, or with a line that is too long")
    return line


def _status(line: bytes) -> tuple[int, int]:
    """Return the minor version of HTTP and the status."""
    version, _, rest = line.removesuffix(b"\n").removesuffix(b"\r").partition(b" ")
    status, _, reason = rest.partition(b" ")
    is_valid = version in (b"HTTP/1.0", b"HTTP/1.1") and len(status) == 3 and status.isdigit() and b"1" <= status < b"6"
    if not is_valid or b"\r" in reason:
        raise WireError("an answer that is not HTTP/1.1")
    return int(version[-1:]), int(status)
