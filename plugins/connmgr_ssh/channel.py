"""Processes on the far side: channels of the type ``session`` (RFC 4254, section 6)."""

from __future__ import annotations

import shlex
import struct
from collections.abc import Sequence

from connmgr.errors import ShellStartFailed, TransportUnsupported
from connmgr.plugin import Channel, Deadline, Pty
from connmgr_ssh.stream import BACKGROUND_SECONDS, NARROW_WINDOW_BYTES, STDERR, STDOUT, WINDOW_BYTES, Stream, packed

READ_BYTES = 160 * 1024
"""Most bytes returned at once; larger blocks of memory are costly to get (mallopt(3))."""

_RAW_MODES = bytes([53, 0, 0, 0, 0, 72, 0, 0, 0, 0, 0])
"""RFC 4254, section 8: no ECHO and no ONLCR, so that output is what the process wrote."""

_USUAL_MODES = bytes([0])
"""An empty list: the far side keeps its default modes."""


class SessionChannel(Stream, Channel):
    """A process on the far side."""

    first_window = NARROW_WINDOW_BYTES

    def start(self, argv: Sequence[str], *, pty: Pty | None, deadline: Deadline) -> None:
        """Run ``argv``, which the far side's login shell parses.

        :raises ShellStartFailed: the far side refused.
        """
        if pty:
            modes = _RAW_MODES if pty.raw else _USUAL_MODES
            terminal = packed(pty.term.encode()) + struct.pack(">IIII", pty.columns, pty.rows, 0, 0) + packed(modes)
            if not self.request(b"pty-req", terminal, deadline):
                raise ShellStartFailed("The SSH server refused to give the session a terminal.")
            self.merged = True
        command = shlex.join(argv).encode("utf-8", errors="surrogateescape")
        if not self.request(b"exec", packed(command), deadline):
            raise ShellStartFailed("The SSH server refused to run a command.")

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        self._wait(self._has_news, timeout)
        with self._lock:
            stdout, stderr = self._taken(STDOUT, READ_BYTES), self._taken(STDERR, READ_BYTES)
            if self._readiness is not None and not (any(self._arrived) or self._ended):
                self._readiness.clear()
            if not (stdout or stderr):
                if self._ended:
                    raise EOFError
                return b"", b""
        self._consume(len(stdout) + len(stderr))
        return stdout, stderr

    def _has_news(self) -> object:
        return self._arrived[STDOUT] or self._arrived[STDERR] or self._ended

    def expect_bulk(self) -> None:
        self._widen(WINDOW_BYTES)

    def resize(self, columns: int, rows: int) -> None:
        if not self.merged:
            raise TransportUnsupported("This process has no terminal whose size could be set.")
        # RFC 4254, section 6.7: this request has no answer.
        size = struct.pack(">IIII", columns, rows, 0, 0)
        self.link.post_soon(self._request(b"window-change", size, wants_answer=False), self)

    def exit_status(self, timeout: float) -> int:
        if not self._wait(lambda: self._status is not None or self.closed, max(0.0, timeout)):
            raise TimeoutError("The process still runs.")
        if self._status is None:
            raise EOFError
        return self._status

    def _say_goodbye(self) -> None:
        if self._status is None:
            self.link.post(
                self._request(b"signal", packed(b"HUP"), wants_answer=False), Deadline(BACKGROUND_SECONDS), self
            )
