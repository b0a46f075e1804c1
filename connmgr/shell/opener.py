"""Opens shells, and ends them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from connmgr.cancellation import Cancellation
from connmgr.engine.start import ShellInfo
from connmgr.errors import AuthFailed, ElevationFailed, Stopping
from connmgr.links.chain import Target
from connmgr.links.link import Lease, Outdated, open_link
from connmgr.links.table import LinkTable
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.shell.orphans import Orphans
from connmgr.shell.shell import STOP_SECONDS, Leasing, Shell, open_shell
from connmgr.shell.table import Entry
from connmgr.vault import Vault
from connmgr.vault.names import elevation_of

PROBE_SECONDS = 5.0
"""Longest wait for the answer of a shell that seems to run; then it is ended."""


class Opener:
    """Opens shells within ``timeout`` seconds, until it is closed; they keep ``max_output`` bytes of each stream.

    ``orphans`` is the file that names local shells. Shells that a killed daemon left behind are ended at once.
    """

    def __init__(
        self, vault: Vault, registry: Registry, links: LinkTable, *, timeout: float, max_output: int, orphans: Path
    ) -> None:
        self._vault = vault
        self._registry = registry
        self._links = links
        self._timeout = timeout
        self._max_output = max_output
        self._orphans = Orphans(orphans)
        self._orphans.reap()
        self._closed = threading.Event()

    def fill(self, entry: Entry, connection: str, access: Access, cancellation: Cancellation) -> Shell:
        """Return the shell of ``entry``, which the caller holds.

        If no shell on the connection's current data answers, one is opened over the connection's link.
        """
        shell = entry.shell
        if shell is not None:
            with contextlib.suppress(Outdated):
                shell.admission.check(access)
                shell.leave_silent(PROBE_SECONDS)
                if shell.session.probe(PROBE_SECONDS):
                    return shell
                entry.lost = True
            self.empty(entry)
        with self._explaining(connection):
            shell = entry.shell = self._open(
                lambda timeout, without: self._links.lease(connection, access, timeout, without, cancellation)
            )
        if shell.lease.link.transport.runs_locally:
            self._orphans.remember(shell.session.pid)
        return shell

    def empty(self, entry: Entry) -> None:
        """End the shell of ``entry``, which the caller holds."""
        shell, entry.shell = entry.shell, None
        if shell is not None:
            self.end(shell, STOP_SECONDS)

    def end(self, shell: Shell, timeout: float) -> None:
        """End a shell within about ``timeout`` seconds."""
        try:
            shell.stop(timeout)
        finally:
            self._orphans.forget(shell.session.pid)

    def probe(self, target: Target, access: Access) -> ShellInfo:
        """Open a shell on ``target`` over a new link, describe it, and close it again.

        :raises connmgr.errors.OperationError: it could not be opened.
        """

        def opened(timeout: float, _: object) -> Lease:
            return open_link(self._vault, self._registry, target, access, timeout).lease(opener=True)

        return self._described(opened)

    def probe_over(self, lease: Lease, access: Access) -> ShellInfo:
        """Describe a shell over the link of ``lease``, as :meth:`probe` does."""
        lease.link.admission.check(access)
        return self._described(lambda _timeout, _without: lease.link.lease(opener=True))

    def _described(self, leasing: Leasing) -> ShellInfo:
        shell = self._open(leasing)
        shell.stop(STOP_SECONDS)
        return shell.session.info

    def close(self) -> None:
        """Refuse to open any further shell."""
        self._closed.set()

    def _open(self, leasing: Leasing) -> Shell:
        self._refuse_when_closed()
        shell = open_shell(leasing, timeout=self._timeout, max_output=self._max_output)
        try:
            # The closing thread may have listed the shells before this one was added.
            self._refuse_when_closed()
        except Stopping:
            shell.stop(STOP_SECONDS)
            raise
        return shell

    @contextlib.contextmanager
    def _explaining(self, connection: str) -> Iterator[None]:
        """Name host and users in an error of sudo on an elevated connection, which nobody has stored."""
        elevation = elevation_of(connection)
        try:
            yield
        except (AuthFailed, ElevationFailed) as error:
            if elevation is None:
                raise
            base = self._vault.connections.get(elevation.base)
            login = base.data.get("user")
            whose = f" of {login}" if isinstance(login, str) else ""
            place = "/".join(base.path)
            if error.details.get("passwordRequired"):
                text = (
                    f"sudo wants the password{whose} to run as {elevation.user}, and none is stored for this "
                    "connection or a category above it."
                )
            else:
                text = f"sudo to {elevation.user}: {error.message}"
            about = {"connection": elevation.base, "name": place, "user": elevation.user}
            raise type(error)(f"{place}: {text}", **error.details, elevation=about) from error

    def _refuse_when_closed(self) -> None:
        if self._closed.is_set():
            raise Stopping("The daemon is shutting down.")
