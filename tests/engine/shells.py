"""The shells and places of the engine's cases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

from connmgr.engine.envelope import Command
from connmgr.engine.running import Result
from connmgr.engine.session import Session
from connmgr.engine.start import start_supervisor
from connmgr.plugin import Transport
from connmgr_local.transport import LocalTransport

MAX_OUTPUT = 16 << 20

POSIX = [
    pytest.param("sh", id="sh"),
    pytest.param("bash", id="bash", marks=pytest.mark.needs("bash")),
    pytest.param("dash", id="dash", marks=pytest.mark.needs("dash")),
    pytest.param("zsh", id="zsh", marks=pytest.mark.needs("zsh")),
    pytest.param("ksh93", id="ksh93", marks=pytest.mark.needs("ksh93")),
    pytest.param("mksh", id="mksh", marks=pytest.mark.needs("mksh")),
    pytest.param("busybox ash", id="ash", marks=pytest.mark.needs("busybox")),
]
OTHER = [
    pytest.param("fish", id="fish", marks=pytest.mark.needs("fish")),
    pytest.param("tcsh", id="tcsh", marks=pytest.mark.needs("tcsh")),
]
ALL = POSIX + OTHER


def only(*names: str) -> list[Any]:
    """Return the parameters of the named shells."""
    return [param for param in ALL if param.id in names]


SESSIONS = {
    "posix": POSIX,
    "any_shell": ALL,
    "interpreted": OTHER,
    "fish": only("fish"),
    "tcsh": only("tcsh"),
    "bash": only("bash"),
}
"""The shells of each fixture that opens a session."""


@contextlib.contextmanager
def local_session(shell: str, max_output: int = MAX_OUTPUT, transport: Transport | None = None) -> Iterator[Session]:
    transport = transport or LocalTransport()
    session = Session(start_supervisor(transport, shell, 60), transport, max_output)
    try:
        yield session
    finally:
        session.stop(5)
        transport.close()


class Reused:
    """Sessions opened at their first use, and lent to test after test until a test fails or ends them."""

    def __init__(self, tests: pytest.Session) -> None:
        self._tests = tests
        self._opened: dict[Hashable, tuple[Session, ExitStack]] = {}

    @contextlib.contextmanager
    def get(self, key: Hashable, opening: Callable[[], AbstractContextManager[Session]]) -> Iterator[Session]:
        """Lend the session of ``key``, which ``opening`` opens; it is reset for the next test."""
        if key not in self._opened:
            stack = ExitStack()
            self._opened[key] = stack.enter_context(opening()), stack
        session, stack = self._opened[key]
        failed = self._tests.testsfailed
        try:
            yield session
        finally:
            if session.alive and self._tests.testsfailed == failed:
                begin_anew(session)
            else:
                del self._opened[key]
                stack.close()

    def close(self) -> None:
        """Stop all sessions."""
        with ExitStack() as all_of_them:
            for _, stack in self._opened.values():
                all_of_them.push(stack)


def begin_anew(session: Session) -> None:
    """Reset ``session``, so that its next command begins with the directory and variables of its shell's start.

    The engine restores them as after a command that changed them, so no program is started.
    """
    shell = session._supervisor
    changes = session._state.update(shell.directory, shell.variables, from_env=False)
    # OLDPWD is not among the variables of the start, but lasts as long as it is marked as exported.
    session._restore += changes + b"export OLDPWD;"


def run(session: Session, text: str | bytes, timeout: float = 60, **options: object) -> Result:
    command = Command(text.encode() if isinstance(text, str) else text, **options)  # type: ignore[arg-type]
    return session.exec(command, timeout)


def out(session: Session, text: str | bytes, **options: object) -> str:
    return bytes(run(session, text, **options).stdout).decode()


def assert_usable(session: Session) -> None:
    """Check that the session answers a new command with exactly its output and status."""
    result = run(session, "echo still here")
    assert (result.exit_code, bytes(result.stdout), bytes(result.stderr)) == (0, b"still here\n", b"")
