"""The transport of a wrapper: every process is started through the program that wraps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from connmgr.errors import AuthFailed, ElevationFailed, ShellLost
from connmgr.links.login import Login
from connmgr.plugin import LEAST_SECONDS, Channel, Deadline, Pty, TerminalRequired, Transport, Wrapper

_RAW = Pty(raw=True)
"""The terminal of a login, for a program that shall have none."""


class WrappedTransport(Transport):
    """The transport of a connection whose type is a :class:`Wrapper`: every process is started through it."""

    def __init__(self, wrapper: Wrapper, data: Mapping[str, Any], inner: Transport) -> None:
        self.runs_locally = inner.runs_locally
        self._wrapper = wrapper
        self._data = data
        self._inner = inner
        self._terminal = False

    @property
    def alive(self) -> bool:
        return self._inner.alive

    def answers(self, timeout: float) -> bool:
        return self._inner.answers(timeout)

    @property
    def outer(self) -> Transport:
        """The transport over which its programs are started."""
        return self._inner

    def words(self, argv: Sequence[str]) -> list[str]:
        """Return the argv that runs ``argv`` without a login when it is started over :attr:`outer`."""
        return self._wrapper.wrap(argv, self._data, Login(self._wrapper, self._data, Deadline(0)).prompt, pty=False)

    @property
    def on_terminal(self) -> bool:
        """Whether this login, or one below it, is known to need a terminal."""
        over = isinstance(self._inner, WrappedTransport) and self._inner.on_terminal
        return over or self._terminal or self._wrapper.needs_pty(self._data)

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        deadline = Deadline(timeout)
        given = pty or (_RAW if self.on_terminal else None)
        try:
            return self._start(argv, deadline, given, raw=given is _RAW)
        except TerminalRequired as error:
            if given:
                raise ElevationFailed("The login requires a terminal, and refuses the one that it has.") from error
        self._terminal = True
        return self._start(argv, deadline, _RAW, raw=True)

    def _start(self, argv: Sequence[str], deadline: Deadline, pty: Pty | None, *, raw: bool) -> Channel:
        """Start ``argv`` through all logins, on one terminal or none; only the last login makes it ``raw``."""
        login = Login(self._wrapper, self._data, deadline)
        holds_login = raw or self._wrapper.needs_login(self._data)
        announced = login.announcing(argv, raw=raw) if holds_login else argv
        wrapped = self._wrapper.wrap(announced, self._data, login.prompt, pty=pty is not None)
        if isinstance(self._inner, WrappedTransport):
            channel = self._inner._start(wrapped, deadline, pty, raw=False)
        else:
            channel = self._inner.open_channel(wrapped, pty=pty, timeout=deadline.left(LEAST_SECONDS))
        if not holds_login:
            return channel
        try:
            return login.hold(channel)
        except (AuthFailed, ElevationFailed) as error:
            if not self.alive:
                raise ShellLost("The link broke during the login; try again.") from error
            raise

    def close(self) -> None:
        """Do nothing: the chain closes the inner transport."""
