"""Opens a shell: its link, its supervisor, and the commands that it begins with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from connmgr.engine.frame import Command
from connmgr.engine.printable import printable
from connmgr.engine.session import Session
from connmgr.engine.start import start_supervisor
from connmgr.errors import CommandTimeout, ShellStartFailed
from connmgr.links.chain import Target
from connmgr.links.link import Lease, open_link
from connmgr.plugin import LEAST_SECONDS, Deadline
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.admission import Admission

STOP_SECONDS = 5.0
HELLO_SECONDS = 9.0
"""Time in which a shell must answer once its link is open; what takes longer is no shell."""


@dataclass
class Shell:
    """A session, and the lease of the link that carries it."""

    session: Session
    lease: Lease
    started: float = field(default_factory=time.monotonic)

    @property
    def admission(self) -> Admission:
        """Who is let in."""
        return self.lease.link.admission

    def stop(self, timeout: float) -> None:
        """End the session and release its link, whatever a plugin raises meanwhile."""
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self.lease.release)
            self.session.stop(timeout)


def open_shell(
    vault: Vault, registry: Registry, target: Target, access: Access, *, timeout: float, max_output: int
) -> Shell:
    """Open a shell on ``target`` within ``timeout`` seconds; ``max_output`` bytes of a stream of a command are kept.

    :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
    :raises connmgr.errors.OperationError: it could not be opened.
    """
    deadline = Deadline(timeout)
    with contextlib.ExitStack() as cleanup:
        link = open_link(vault, registry, target, access, timeout)
        lease = link.lease()
        cleanup.callback(lease.release)
        hello = min(HELLO_SECONDS, deadline.left(LEAST_SECONDS))
        supervisor = start_supervisor(link.first, target.data.get("shell"), hello)
        session = Session(supervisor, link.transport, max_output, link.helpers)
        cleanup.callback(session.stop, STOP_SECONDS)
        _run_first(session, target.data.get("commands") or (), deadline)
        shell = Shell(session, lease)
        cleanup.pop_all()
    return shell


def _run_first(session: Session, commands: Iterable[str], deadline: Deadline) -> None:
    for text in commands:
        try:
            result = session.exec(Command(text.encode()), deadline.left(LEAST_SECONDS))
        except CommandTimeout as error:
            raise ShellStartFailed(f"commands: {text!r} did not end in time and was killed.") from error
        if result.exit_code:
            printed = printable(bytes(result.stderr or result.stdout).decode(errors="replace"))[:200]
            raise ShellStartFailed(f"commands: {text!r} exited with {result.exit_code}. {printed}")
