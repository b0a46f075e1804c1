"""A channel after a login: output that was read early comes first, and output of the login is left out."""

from __future__ import annotations

from connmgr.links.last_line import LastLine
from connmgr.plugin import Channel, Deadline

STATUS_SECONDS = 1.0
"""Longest wait for the exit status of a program whose streams have ended."""


class ResumedChannel(Channel):
    """A channel some of whose output was already read. Output on stderr up to and including ``mark`` is dropped.

    So is a ``last_line`` (:attr:`connmgr.plugin.Wrapper.last_line`) of stderr.
    """

    def __init__(self, channel: Channel, stdout: bytes, stderr: bytes, mark: bytes, last_line: bytes = b"") -> None:
        self.merged = channel.merged
        self._channel = channel
        self._early = stdout, stderr
        self._mark = b"" if channel.merged else mark
        self._login = b""
        self._last_line = LastLine(last_line) if last_line and not channel.merged else None

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        deadline = Deadline(timeout)
        while self._mark or self._last_line or any(self._early):
            early, self._early = self._early, (b"", b"")
            try:
                # Read even if there is early output: the descriptor may stay readable until the channel is read.
                stdout, stderr = self._channel.recv(0 if any(early) else deadline.left())
            except (EOFError, OSError) as error:
                if any(early):
                    # The next call raises it again.
                    stdout, stderr = b"", b""
                elif isinstance(error, EOFError) and (rest := self._rest()):
                    return b"", rest
                else:
                    raise
            stdout, stderr = early[0] + stdout, self._past_login(early[1] + stderr)
            if (last_line := self._last_line) is not None:
                stderr = last_line.passed(stderr)
            if stdout or stderr or deadline.passed:
                return stdout, stderr
        return self._channel.recv(deadline.left())

    def _rest(self) -> bytes:
        """Return the held-back output of stderr, at its end."""
        last_line = self._last_line
        if last_line is None:
            return b""
        try:
            status = self._channel.exit_status(STATUS_SECONDS)
        except (TimeoutError, EOFError, OSError):
            status = None
        return last_line.rest(status)

    def _past_login(self, stderr: bytes) -> bytes:
        if not self._mark:
            return stderr
        said, mark, rest = (self._login + stderr).partition(self._mark)
        if mark:
            self._mark = self._login = b""
        else:
            self._login = said[-len(self._mark) :]
        return rest

    def sendall(self, data: bytes, timeout: float) -> None:
        self._channel.sendall(data, timeout)

    def shutdown_write(self) -> None:
        self._channel.shutdown_write()

    def fileno(self) -> int | None:
        return self._channel.fileno()

    def expect_bulk(self) -> None:
        self._channel.expect_bulk()

    def resize(self, columns: int, rows: int) -> None:
        self._channel.resize(columns, rows)

    def exit_status(self, timeout: float) -> int:
        return self._channel.exit_status(timeout)

    def close(self) -> None:
        self._mark, self._early, self._last_line = b"", (b"", b""), None
        self._channel.close()
