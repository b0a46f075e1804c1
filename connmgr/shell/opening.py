"""Opens shells and ends them: the link, the supervisor, the first commands of the connection, and local orphans.

A daemon that is killed leaves its local shells behind: a file names them, and the next start ends them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from connmgr.cancellation import Cancellation
from connmgr.engine.envelope import Command
from connmgr.engine.rpc import Helpers
from connmgr.engine.session import Session
from connmgr.engine.start import SessionInfo, Supervisor, start_supervisor
from connmgr.errors import (
    AuthFailed,
    ChannelRefused,
    CommandTimeout,
    ElevationFailed,
    OperationError,
    ShellStartFailed,
    Stopping,
    TransportUnsupported,
)
from connmgr.links.chain import Target
from connmgr.links.link import Admission, Lease, Link
from connmgr.links.table import LinkTable
from connmgr.paths import write_file
from connmgr.plugin import LEAST_SECONDS, Deadline
from connmgr.printable import in_one_line
from connmgr.registry import Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.names import elevation_of

logger = logging.getLogger("connmgr.shell")

STOP_SECONDS = 5.0
HELLO_SECONDS = 9.0
"""Longest wait for the answer of a shell on an open link; a program that takes longer is not a shell."""

REAP_SECONDS = 3.0
START_TOLERANCE_SECONDS = 0.05
"""Seconds by which two readings of one process's start time may differ."""

PROBE_SECONDS = 5.0
"""Longest wait for the answer of a shell that seems to run; then it is ended."""


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
        """Abandon an idle shell whose link owes a sign of life and gives none within ``timeout`` seconds."""
        link = self.lease.link
        if not link.first.answers(timeout):
            # The table would lease this link to the next shell too, which would wait just as long.
            link.retire()
            self.session.lose()

    def stop(self, timeout: float) -> None:
        """End the session and release its link, even if a plugin raises an exception."""
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self.lease.release)
            self.session.stop(timeout)


Leasing = Callable[[float, Collection[Link]], Lease]
"""Leases a link within a number of seconds, but none of a collection of links."""


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
                    # The remote host would refuse this on any link.
                    raise
                full = isinstance(error, ChannelRefused)
                if not full:
                    link.retire()
                # Even of a link that was opened for us, another user may have taken the only channel: a server with
                # MaxSessions 1 then refuses ours, and a further link helps.
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


class ShellOpener:
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
        self._orphans = OrphanShells(orphans)
        self._orphans.reap()
        self._closed = threading.Event()

    def open(self, connection: str, access: Access, cancellation: Cancellation) -> Shell:
        """Open a shell over the connection's link."""
        with self._explaining(connection):
            shell = self._open(
                lambda timeout, without: self._links.lease(connection, access, timeout, without, cancellation)
            )
        if shell.lease.link.transport.runs_locally:
            self._orphans.remember(shell.session.pid)
        return shell

    def end(self, shell: Shell, timeout: float = STOP_SECONDS) -> None:
        """End a shell within about ``timeout`` seconds."""
        try:
            shell.stop(timeout)
        finally:
            self._orphans.forget(shell.session.pid)

    def probe(self, target: Target, access: Access) -> SessionInfo:
        """Open a shell on ``target`` over a new link, describe it, and close it again.

        :raises connmgr.errors.OperationError: it could not be opened.
        """

        def opened(timeout: float, _: object) -> Lease:
            return self._links.open_unshared(target, access, timeout).lease(opener=True)

        return self._described(opened)

    def probe_over(self, lease: Lease, access: Access) -> SessionInfo:
        """Describe a shell over the link of ``lease``, as :meth:`probe` does."""
        lease.link.admission.check(access)
        return self._described(lambda _timeout, _without: lease.link.lease(opener=True))

    def _described(self, leasing: Leasing) -> SessionInfo:
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
            # The daemon may have begun to close while the shell started. Its thread has listed the shells by then,
            # without this one, and would leave it running.
            self._refuse_when_closed()
        except Stopping:
            shell.stop(STOP_SECONDS)
            raise
        return shell

    @contextlib.contextmanager
    def _explaining(self, connection: str) -> Iterator[None]:
        """Name host and users in an error of sudo on an elevated connection, which nobody may have stored."""
        elevation = elevation_of(connection)
        try:
            yield
        except (AuthFailed, ElevationFailed) as error:
            if elevation is None:
                if not {"passwordRefused", "passwordRequired"} & error.details.keys():
                    raise
                path = "/".join(self._vault.connections.get(connection).path)
                what = "another" if error.details.get("passwordRefused") else "one"
                advice = f"`connmgr edit {shlex.quote(path)} --secret password` stores {what}."
                raise type(error)(f"{path}: {error.message} {advice}", **error.details) from error
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


if TYPE_CHECKING:
    import psutil


class OrphanShells:
    """A file that names each local shell by process id and start time, so that no other process is mistaken for one.

    If it cannot be written, for example on a full disk, this is logged; the next change writes the whole file again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._shells: dict[int, float] = {}

    def reap(self) -> int:
        """Kill the shells in the file, with their child processes, and return their number."""
        orphans = self._read()
        killed = [pid for pid, started in orphans.items() if _kill_left(pid, started)]
        self._write()
        return len(killed)

    def remember(self, pid: int) -> None:
        """Add a new shell to the file."""
        # Imported here, because the daemon works without this file.
        import psutil

        with self._lock, contextlib.suppress(psutil.Error):
            self._shells[pid] = psutil.Process(pid).create_time()
            self._write()

    def forget(self, pid: int) -> None:
        """Remove a shell that has ended from the file."""
        with self._lock:
            if self._shells.pop(pid, None) is not None:
                self._write()

    def _read(self) -> dict[int, float]:
        try:
            entries = json.loads(self._path.read_text())
            return {int(pid): float(started) for pid, started in entries.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError):
            return {}  # cut short by a crash: its content cannot be trusted

    def _write(self) -> None:
        try:
            write_file(self._path, json.dumps(self._shells).encode(), is_durable=False)
        except OSError as error:
            # The shells work without the file. An ended shell that is still named in it is distinguished from other
            # processes by its start time.
            logger.warning("Shells left by a killed daemon may not be found: %s: %s.", self._path.name, error.strerror)


def _kill_left(pid: int, started: float) -> bool:
    """Kill the shell with its child processes, if it still runs; return whether it did."""
    import psutil

    with contextlib.suppress(psutil.Error):
        shell = psutil.Process(pid)
        # Since the daemon died the system may have given the number to another process; only the start time tells.
        if abs(shell.create_time() - started) <= START_TOLERANCE_SECONDS:
            _kill_tree(shell)
            return True
    return False


def _kill_tree(shell: psutil.Process) -> None:
    import psutil

    tree = [shell, *shell.children(recursive=True)]
    # First stopped, so that none can fork between being listed and being killed.
    for process in tree:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    for process in {*tree, *shell.children(recursive=True)}:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(tree, REAP_SECONDS)
