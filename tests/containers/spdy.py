"""The streams of a program of a pod by SPDY/3.1 (draft 3.1 of the protocol), which kubectl before 1.31 speaks.

kubectl opens one stream for each of the program's, and names it in its headers. Neither side limits how much the other
may send: kubectl's library sends no window updates, and ignores them.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress

from tests.containers.pod_process import CLOSE, ERROR, RESIZE, STDERR, STDIN, STDOUT

CHANNELS = {b"error": ERROR, b"stdin": STDIN, b"stdout": STDOUT, b"stderr": STDERR, b"resize": RESIZE}
SYN_STREAM, SYN_REPLY, PING = 1, 2, 6
FIN = 1
_CONTROL, _VERSION = 0x8000, 3

_NAMES = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow
authorization cache-control connection content-base content-encoding content-language content-length content-location
content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match
if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range
referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get
status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""
_CODES = "100 101 201 202 205 206 300 302 303 304 305 306 307 402 405 406 407 408 409 410 411 412 413 414 415 416 417"
_REASONS = (
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
)
_DATES = "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
_VALUES = (
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    """Return the text with which both sides compress headers; zlib refuses any other."""
    names = (name.replace("_", " ").encode() for name in _NAMES.split())
    listed = b"".join(struct.pack(">I", len(name)) + name for name in names)
    codes = f"{_CODES} 502 504 505".replace(" ", "")
    return listed + f"{codes}{_REASONS}{_DATES}{_VALUES}".encode()


def _headers(block: bytes) -> dict[bytes, bytes]:
    """Return the headers of a block, which has their count, and each name and value after its length."""
    words, at = [], 4
    while at < len(block):
        (size,) = struct.unpack_from(">I", block, at)
        words.append(block[at + 4 : at + 4 + size])
        at += 4 + size
    return dict(zip(words[::2], words[1::2], strict=True))


class SpdyMessages:
    """The messages of one connection, with the interface of :class:`tests.containers.pod_process.Messages`.

    Making one waits until the client has opened ``streams`` streams.
    """

    def __init__(self, read: Callable[[int], bytes], write: Callable[[bytes], object], streams: int) -> None:
        self._read = read
        self._write = write
        self._lock = threading.Lock()
        self._inflate = zlib.decompressobj(zdict=_dictionary())
        self._deflate = zlib.compressobj(zdict=_dictionary())
        self._channels: dict[int, int] = {}
        self._frames = self._each_frame()
        while len(self._channels) < streams and next(self._frames, None):
            pass

    def send(self, channel: int, data: bytes, flags: int = 0) -> None:
        """Send data of a channel, unless the client has disconnected."""
        stream = next((id for id, own in self._channels.items() if own == channel), None)
        if stream is not None:
            self._send(struct.pack(">II", stream, flags << 24 | len(data)) + data)

    def close(self) -> None:
        """End all that the program prints."""
        for channel in (STDOUT, STDERR, ERROR):
            self.send(channel, b"", FIN)

    def each(self, take: Callable[[int, bytes], None]) -> None:
        """Call ``take`` with each message's channel and content until the client disconnects."""
        for channel, data, flags in self._frames:
            if data:
                take(channel, data)
            if channel == STDIN and flags & FIN:
                take(CLOSE, b"")

    def _each_frame(self) -> Iterator[tuple[int, bytes, int]]:
        """Answer what control frames ask, and yield channel, content and flags of the others and of new streams."""
        with suppress(OSError, EOFError):
            while True:
                first, second = struct.unpack(">II", self._exactly(8))
                flags, content = second >> 24, self._exactly(second & 0xFFFFFF)
                if not first >> 16 & _CONTROL:
                    yield self._channels[first], content, flags
                elif first & 0xFFFF == SYN_STREAM:
                    yield self._opened(content), b"", flags
                elif first & 0xFFFF == PING:
                    self._control(PING, content)

    def _opened(self, content: bytes) -> int:
        (stream,) = struct.unpack(">I", content[:4])
        channel = self._channels[stream] = CHANNELS[_headers(self._inflate.decompress(content[10:]))[b"streamtype"]]
        # Without headers of its own.
        empty = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._control(SYN_REPLY, struct.pack(">I", stream) + empty)
        return channel

    def _control(self, kind: int, content: bytes) -> None:
        self._send(struct.pack(">HHI", _CONTROL | _VERSION, kind, len(content)) + content)

    def _send(self, frame: bytes) -> None:
        with self._lock, suppress(OSError):
            self._write(frame)

    def _exactly(self, size: int) -> bytes:
        """Return the next ``size`` bytes.

        :raises EOFError: the client has disconnected.
        """
        content = b""
        while len(content) < size:
            data = self._read(size - len(content))
            if not data:
                raise EOFError
            content += data
        return content
