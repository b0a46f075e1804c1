"""Sends a response in the thread that makes it, its header with the first piece, as fast as the client reads."""

from __future__ import annotations

import select
import time
from typing import Any

from waitress.channel import ClientDisconnected, HTTPChannel

from connmgr.shares import waiting

DIRECT_BYTES = 32 * 1024
"""Smaller pieces of a response go through waitress's buffers; larger ones are sent directly."""

POLL_SECONDS = 1.0


class SendingChannel(HTTPChannel):
    """waitress's channel, which sends as much as it can in the thread that answers."""

    _sending = False
    _awaits_reader = False
    """Whether the answer itself waits for its reader between pieces, so that sending a piece need not wait."""

    _header: bytes | None = b""
    """The header of a response until it is sent with the body; None before there is one."""

    def drained(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until the socket has accepted all that was written; return whether it has.

        No time limit of this module applies meanwhile; the caller limits how long a client may read nothing. The socket
        of a client that has gone accepts nothing.
        """
        self._awaits_reader = True
        deadline = time.monotonic() + seconds
        while True:
            self.last_activity = time.time()
            with self.outbuf_lock:
                if not self.connected or self.socket is None:
                    return False
                if self.total_outbufs_len:
                    # Private to waitress, whose public way is its main thread: this one sends a large response itself,
                    # at the pace of its reader.
                    self._flush_exception(self._flush_some, do_close=False)  # type: ignore[attr-defined]
                if not self.total_outbufs_len:
                    return True
            left = deadline - time.monotonic()
            if left <= 0 or self._broken(left, leaving=True):
                return False

    def write_soon(self, data: Any) -> int:
        """Send a piece of the response, the header together with the first piece of the body.

        The main thread sends the rest of a small piece later. Large pieces are sent directly, which saves copies and
        memory.
        """
        if self._header is None:
            self._header = data
        elif len(data) < DIRECT_BYTES or self._awaits_reader:
            whole, self._header = self._header + data, b""
            sent = self._send_now(memoryview(whole))
            if sent < len(whole):
                with waiting():
                    super().write_soon(whole[sent:])
        else:
            self._send_header()
            self._send_all(data)
        return len(data)

    def _send_header(self) -> None:
        """Send the header if it still waits for the first piece of the body."""
        if self._header:
            self.write_soon(b"")

    def _send_all(self, data: bytes) -> None:
        rest = memoryview(data)
        self.last_activity = time.time()
        self._sending = True
        try:
            while rest := rest[self._send_now(rest) :]:
                self._await_room()
        finally:
            self._sending = False

    def _send_now(self, data: memoryview) -> int:
        """Send as much of ``data`` as the socket accepts, after queued data."""
        with self.outbuf_lock:
            if not self.connected or self.socket is None:
                raise ClientDisconnected
            if self.total_outbufs_len:
                self._flush_some(do_close=False)  # type: ignore[attr-defined]
            if self.total_outbufs_len:
                return 0
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                return 0
            except OSError:
                raise ClientDisconnected from None
            self.last_activity = time.time()
            return sent

    def _await_room(self) -> None:
        if self._broken(POLL_SECONDS):
            raise ClientDisconnected

    def _broken(self, seconds: float, *, leaving: bool = False) -> bool:
        """Wait up to ``seconds`` until the socket accepts data; return whether the connection is broken.

        With ``leaving``, the end of the client's side counts too, where the system reports it.
        """
        # The main thread times out a client that reads nothing, and may close the socket at any moment. Polling a
        # descriptor number that was reused is harmless and short.
        polled = self.socket
        descriptor = polled.fileno() if polled is not None else -1
        if descriptor < 0:
            return True
        poll = select.poll()
        ends = getattr(select, "POLLRDHUP", 0) if leaving else 0
        poll.register(descriptor, select.POLLOUT | ends)
        waited = min(seconds, POLL_SECONDS) * 1000
        with waiting():
            happened = poll.poll(waited)
        return any(event & (select.POLLERR | select.POLLHUP | ends) for _, event in happened)
