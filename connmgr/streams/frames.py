"""The frames of streams, for daemon and client: binary messages of a WebSocket (RFC 6455) with their kind in front.

Each side sends data up to :data:`WINDOW_BYTES` beyond what the other has acknowledged.
"""

from __future__ import annotations

import json
import struct

from connmgr.errors import ConnmgrError

DATA = 0
"""Input of the process; or its output, including stderr if it has a terminal."""

STDERR = 1
"""Output on standard error."""

RESIZE = 2
"""The size of the terminal: columns and rows, two unsigned numbers of 16 bit."""

ACKNOWLEDGEMENT = 3
"""The number of bytes of data processed since the last acknowledgement: an unsigned number of 32 bit."""

EOF = 4
"""No more data follow from this side."""

EXIT_STATUS = 5
"""The status of the process, 128 + N for signal N: a signed number of 32 bit. The daemon then closes with 1000."""

ERROR = 6
"""The reason why the stream ends: a JSON object with ``code``, ``message`` and details. The daemon then closes."""

WINDOW_BYTES = 256 * 1024
MAX_FRAME_BYTES = WINDOW_BYTES + 1
ACKNOWLEDGED_BYTES = 64 * 1024
"""A receiver acknowledges data at the latest after so many bytes."""

MAX_SIDE = 4096
"""Most columns, and most rows, of a terminal."""

SUBPROTOCOL = "connmgr.v1"
TICKET = "connmgr.ticket."
"""The beginning of a subprotocol that carries a ticket."""

_SIZE = struct.Struct(">HH")
_COUNT = struct.Struct(">I")
_STATUS = struct.Struct(">i")


def resize(columns: int, rows: int) -> bytes:
    """Return the frame that sets the size of a terminal."""
    return bytes((RESIZE,)) + _SIZE.pack(columns, rows)


def acknowledgement(count: int) -> bytes:
    """Return the frame that acknowledges ``count`` bytes."""
    return bytes((ACKNOWLEDGEMENT,)) + _COUNT.pack(count)


def exit_status(status: int) -> bytes:
    """Return the frame with the exit status of a process."""
    return bytes((EXIT_STATUS,)) + _STATUS.pack(status)


def error(why: ConnmgrError) -> bytes:
    """Return the frame with the reason why a stream ends."""
    return bytes((ERROR,)) + json.dumps({**why.details, "code": why.code, "message": why.message}).encode()


def size_in(payload: bytes) -> tuple[int, int]:
    """Return the columns and rows in a frame's payload.

    :raises ValueError: they are missing, or not between 1 and :data:`MAX_SIDE`.
    """
    columns, rows = _unpacked(_SIZE, payload)
    if not (1 <= columns <= MAX_SIDE and 1 <= rows <= MAX_SIDE):
        raise ValueError(f"A terminal has 1 to {MAX_SIDE} columns and rows.")
    return columns, rows


def count_in(payload: bytes) -> int:
    """Return the number of bytes that a frame's payload acknowledges; raise ValueError if it is malformed."""
    return _unpacked(_COUNT, payload)[0]


def status_in(payload: bytes) -> int:
    """Return the exit status in a frame's payload; raise ValueError if it is malformed."""
    return _unpacked(_STATUS, payload)[0]


class Windows:
    """Both windows of a stream, as one side counts them. An ``eager`` side acknowledges as soon as all is processed."""

    # The socket itself is always read. If it were left unread until there is room for data, acknowledgements would stay
    # unread too. With `cat` at the other end both sides would then wait for ever: it writes back each byte that it
    # reads, so the data in both directions fill both windows.

    def __init__(self, *, eager: bool) -> None:
        self.room = WINDOW_BYTES
        """Bytes of data that may be sent."""

        self._eager = eager
        self._allowed = WINDOW_BYTES
        self._unreported = 0

    def sent(self, size: int) -> None:
        """Count ``size`` bytes of data that are sent; there must be room."""
        self.room -= size

    def acknowledged(self, size: int) -> None:
        """Count ``size`` bytes that the other side acknowledges; raise ValueError if so many were not sent."""
        if size > WINDOW_BYTES - self.room:
            raise ValueError("The acknowledgement counts more bytes than were sent.")
        self.room += size

    def received(self, size: int) -> None:
        """Count ``size`` bytes of data that have come; raise ValueError if the window does not allow them."""
        self._allowed -= size
        if self._allowed < 0:
            raise ValueError(f"More than {WINDOW_BYTES} bytes were sent beyond what was acknowledged.")

    def taken(self, size: int) -> bytes | None:
        """Count ``size`` received bytes as processed; return the acknowledgement to send, if one is due."""
        self._unreported += size
        # A frame for each piece would double the frames of a terminal; waiting for the whole window would let the other
        # side stand still for a round trip. So every quarter is reported.
        is_whole = self._eager and self._allowed + self._unreported >= WINDOW_BYTES
        if not self._unreported or not (is_whole or self._unreported >= ACKNOWLEDGED_BYTES):
            return None
        reported, self._unreported = self._unreported, 0
        self._allowed += reported
        return acknowledgement(reported)


def _unpacked(form: struct.Struct, payload: bytes) -> tuple[int, ...]:
    try:
        return form.unpack(payload)
    except struct.error:
        raise ValueError(f"The frame has {len(payload)} bytes after the first instead of {form.size}.") from None
