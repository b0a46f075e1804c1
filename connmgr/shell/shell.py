"""Opens what one session is made of: its links, its supervisor, and what it begins with."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from connmgr.engine.frame import Command
from connmgr.engine.helper import Helpers
from connmgr.engine.printable import printable
from connmgr.engine.session import Session
from connmgr.engine.start import start_supervisor
from connmgr.errors import CommandTimeout, ShellStartFailed
from connmgr.links.chain import Chain, open_chain
from connmgr.links.spare import SpareTransport
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.admission import Admission

STOP_TIMEOUT = 5.0
HELLO_TIMEOUT = 9.0
"""Seconds within which a shell must answer once its link is open; what takes longer is no shell."""


@dataclass
class Shell:
    """A session, the chain of links that carries it, the spare one, and who is let in."""

    session: Session
    chain: Chain
    spare: SpareTransport
    admission: Admission
    started: float = field(default_factory=time.monotonic)

    def stop(self, timeout: float) -> None:
        """End the session and close what carried it, whatever a plugin raises meanwhile."""
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self.chain.close)
            cleanup.callback(self.spare.close)
            self.session.stop(timeout)


def open_shell(
    vault: Vault,
    registry: Registry,
    kind: str,
    data: Mapping[str, Any],
    way: str | None,
    access: Access,
    timeout: float,
    max_output: int,
    connection: str | None = None,
) -> Shell:
    """Open a shell as ``data`` of the connection type ``kind`` says, within ``timeout`` seconds.

    ``way`` is that of the stored ``connection``, both None for data that are not stored; ``max_output`` is how many
    bytes of each stream of a command are kept.
    :raises connmgr.errors.SecretLocked: ``access`` may not open a secret on the way.
    :raises connmgr.errors.OperationError: it could not be opened.
    """
    deadline = time.monotonic() + timeout
    with contextlib.ExitStack() as cleanup:
        chain = open_chain(vault, registry, kind, data, way, access, timeout)
        cleanup.callback(chain.close)
        supervisor = start_supervisor(chain.transport, data.get("shell"), min(HELLO_TIMEOUT, _left(deadline)))
        helpers = Helpers()
        spare = SpareTransport(
            chain.transport,
            lambda seconds: open_chain(vault, registry, kind, data, way, access, min(seconds, timeout)),
            helpers.dismiss,
        )
        cleanup.callback(spare.close)
        session = Session(supervisor, spare, max_output, helpers)
        cleanup.callback(session.stop, STOP_TIMEOUT)
        _run_first(session, data.get("commands") or (), deadline)
        admission = Admission(
            vault.principals,
            chain.sealed,
            lambda: connection is None or vault.connections.unchanged(connection, data, way),
        )
        shell = Shell(session, chain, spare, admission)
        cleanup.pop_all()
    return shell


def _run_first(session: Session, commands: Iterable[str], deadline: float) -> None:
    for text in commands:
        try:
            result = session.exec(Command(text.encode()), _left(deadline))
        except CommandTimeout as error:
            raise ShellStartFailed(f"commands: {text!r} did not end in time and was killed.") from error
        if result.exit_code:
            printed = printable(bytes(result.stderr or result.stdout).decode(errors="replace"))[:200]
            raise ShellStartFailed(f"commands: {text!r} exited with {result.exit_code}. {printed}")


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())
