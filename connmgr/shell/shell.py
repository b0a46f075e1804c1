"""Opens a shell: its link, its supervisor, and its first commands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone

from connmgr.engine.frame import Command
from connmgr.engine.helper import Helpers
from connmgr.engine.session import Session
from connmgr.engine.start import Supervisor, start_supervisor
from connmgr.errors import ChannelRefused, CommandTimeout, OperationError, ShellStartFailed, TransportUnsupported
from connmgr.links.link import Admission, Lease, Link
from connmgr.plugin import LEAST_SECONDS, Deadline
from connmgr.printable import in_one_line

STOP_SECONDS = 5.0
HELLO_SECONDS = 9.0
"""Longest wait for the answer of a shell on an open link; a program that takes longer is not a shell."""


@dataclass
class Shell:
    """A session, and the lease of its link; ``since`` is when it was started, aware."""

    session: Session
    lease: Lease
    started: float = field(default_factory=time.monotonic)
    since: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    @property
    def admission(self) -> Admission:
        """The checks whether a caller may use it."""
        return self.lease.link.admission

    def leave_silent(self, timeout: float) -> None:
        """Abandon an idle shell that gives no overdue sign of life in time."""
        link = self.lease.link
        if not link.first.answers(timeout):
            # Otherwise the next start of a shell would wait for it too.
            link.retire()
            self.session.lose()

    def stop(self, timeout: float) -> None:
        """End the session and release its link, even if a plugin raises an exception."""
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self.lease.release)
            self.session.stop(timeout)


Leasing = Callable[[float, Collection[Link]], Lease]
"""Leases, within the given seconds, a link other than the given ones."""


def open_shell(leasing: Leasing, *, timeout: float, max_output: int) -> Shell:
    """Open a shell on a link within ``timeout`` seconds; it keeps ``max_output`` bytes of each stream of a command.

    :raises connmgr.errors.OperationError: it could not be opened; also whatever ``leasing`` raises.
    """
    deadline = Deadline(timeout)
    with contextlib.ExitStack() as cleanup:
        lease, supervisor = _supervised(leasing, deadline)
        cleanup.callback(lease.release)
        link = lease.link
        session = Session(supervisor, link.transport, max_output, Helpers(link.helpers), link.target.digest)
        session.environment = link.environment
        cleanup.callback(session.stop, STOP_SECONDS)
        _run_first(session, link.target.data.get("commands") or (), deadline)
        session.has_started()
        shell = Shell(session, lease)
        cleanup.pop_all()
    return shell


def _supervised(leasing: Leasing, deadline: Deadline) -> tuple[Lease, Supervisor]:
    """Start a supervisor on the first link that accepts it; a full or broken link is replaced by another."""
    passed_over: list[Link] = []
    while True:
        lease = leasing(deadline.left(LEAST_SECONDS), passed_over)
        link = lease.link
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(lease.release)
            hello = min(HELLO_SECONDS, deadline.left(LEAST_SECONDS))
            try:
                supervisor = start_supervisor(link.first, link.target.data.get("shell"), hello)
            except OperationError as error:
                if isinstance(error, TransportUnsupported):
                    # The far side says no to all links.
                    raise
                full = isinstance(error, ChannelRefused)
                if not full:
                    link.retire()
                # Another lessee may have taken the only channel of a link that was opened for this one.
                if deadline.passed or (lease.opener and (link.lease_count == 1 or not full)):
                    raise
                passed_over.append(link)
                continue
            cleanup.pop_all()
            return lease, supervisor


def _run_first(session: Session, commands: Iterable[str], deadline: Deadline) -> None:
    for text in commands:
        try:
            result = session.exec(Command(text.encode()), deadline.left(LEAST_SECONDS))
        except CommandTimeout as error:
            raise ShellStartFailed(f"commands: {text!r} did not end in time and was killed.") from error
        if result.exit_code:
            printed = in_one_line(bytes(result.stderr or result.stdout).decode(errors="replace"))[:200]
            raise ShellStartFailed(f"commands: {text!r} exited with {result.exit_code}. {printed}")
