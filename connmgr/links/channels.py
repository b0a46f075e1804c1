"""Channels over the link of a stored connection: a link that answers, a process started on it, a TCP stream;
and the systems inside the connection, such as containers: listed, started and stopped there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import islice

from connmgr.cancellation import NEVER, Cancellation
from connmgr.errors import NotToggleable, OperationError, ShellLost
from connmgr.links.chain import opened_data
from connmgr.links.link import Lease, Link
from connmgr.links.table import LinkTable
from connmgr.plugin import LEAST_SECONDS, ByteStream, Channel, Child, Deadline, Described, Toggled, Transport
from connmgr.registry import Registry
from connmgr.rights.ground import Ground
from connmgr.secrets.principals import Access
from connmgr.vault import Connection, Vault

PROBE_SECONDS = 5.0
"""Longest wait for an overdue sign of life; then the connection is opened again."""

RECEIVE_BYTES = 128 * 1024
LOOK_SECONDS = 1.0
"""Interval at which a waiting write checks its deadline."""

Open = Callable[[Link, float], Channel]
"""Opens a channel of a link within a number of seconds."""


def lease_live_link(
    links: LinkTable, connection: str, access: Access, deadline: Deadline, cancellation: Cancellation = NEVER
) -> Lease:
    """Lease a link whose remote host answers; retire links that give no sign of life.

    :raises connmgr.errors.ConnmgrError: the errors of leasing.
    """
    while True:
        lease = links.lease(connection, access, deadline.left(LEAST_SECONDS), (), cancellation)
        try:
            if lease.opener or lease.link.first.answers(deadline.within(PROBE_SECONDS).left()):
                return lease
            lease.link.retire()
        except BaseException:
            lease.release()
            raise
        lease.release()


def open_on_link(
    links: LinkTable,
    connection: str,
    access: Access,
    open: Open,
    timeout: float,
    cancellation: Cancellation,
    ground: Ground | None,
) -> tuple[Lease, Channel]:
    """Lease a link and call ``open`` within ``timeout`` seconds; return the lease and the channel.

    If the link turns out to be lost, another one is leased.
    :raises connmgr.errors.CommandCancelled: the request was cancelled before ``open`` was called.
    :raises connmgr.errors.ApprovalRequired: the link leads elsewhere than the approved ``ground``.
    :raises connmgr.errors.ConnmgrError: the errors of leasing and of ``open``.
    """
    deadline = Deadline(timeout)
    while True:
        lease = lease_live_link(links, connection, access, deadline, cancellation)
        try:
            cancellation.require()
            if ground is not None:
                ground.require(lease.link.target.digest)
            return lease, open(lease.link, deadline.left(LEAST_SECONDS))
        except ShellLost:
            lease.link.retire()
            lease.release()
            if lease.opener or deadline.passed:
                raise
        except BaseException:
            lease.release()
            raise


class TcpChannel(Channel):
    """A channel whose output is the data received by ``stream``; its exit status is 0 at the stream's end."""

    def __init__(self, stream: ByteStream) -> None:
        stream.settimeout(LOOK_SECONDS)
        self._stream = stream
        self._ended = threading.Event()

    def recv(self, timeout: float) -> tuple[bytes, bytes]:
        if self._ended.is_set():
            raise EOFError
        try:
            data = self._stream.recv(RECEIVE_BYTES)
        except TimeoutError:
            return b"", b""
        except OSError:
            data = b""
        if not data:
            self._ended.set()
            raise EOFError
        return data, b""

    def sendall(self, data: bytes, timeout: float) -> None:
        until = time.monotonic() + timeout
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._stream.send(rest) :]
            except TimeoutError:
                if time.monotonic() >= until:
                    raise

    def shutdown_write(self) -> None:
        self._stream.shutdown(socket.SHUT_WR)

    def exit_status(self, timeout: float) -> int:
        if not self._ended.wait(max(0.0, timeout)):
            raise TimeoutError("The stream is open.")
        return 0

    def close(self) -> None:
        # Closing a socket does not wake a thread in recv() on Linux; shutting it down does. The stream of an SSH link
        # cannot shut down its input (RFC 4254, section 5.3): its close() wakes the reader.
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._ended.set()


MAX_CHILDREN = 10_000
"""Most systems inside one connection."""


def holds_others(registry: Registry, name: str) -> bool:
    """Whether connections of this type may have systems inside."""
    return type(registry.get(name)).children is not Described.children


def children_of(
    vault: Vault, registry: Registry, links: LinkTable, record: Connection, access: Access, timeout: float
) -> list[Child]:
    """Return the systems inside ``record``, found within ``timeout`` seconds.

    :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that this needs.
    :raises connmgr.errors.ConnmgrError: they could not be listed.
    """
    deadline = Deadline(timeout)
    kind = registry.get(record.type)
    lease = links.lease(record.id, access, timeout)
    try:
        # The secrets of this data are used on the link that was opened to the same data.
        plain = opened_data(vault, registry, record.type, lease.link.target.data, access, deadline)
        listed = kind.children(lease.link.transport, plain, timeout=deadline.left(LEAST_SECONDS))
        children = list(islice(listed, MAX_CHILDREN + 1))
    finally:
        lease.release()
    if len(children) > MAX_CHILDREN:
        raise OperationError(
            f"There are more than {MAX_CHILDREN:,} systems inside: restrict the listing in the connection's data."
        )
    return children


def toggle(
    vault: Vault,
    registry: Registry,
    links: LinkTable,
    record: Connection,
    state: bool,
    access: Access,
    timeout: float,
) -> None:
    """Start or stop the system that ``record`` leads to, within ``timeout`` seconds.

    :raises NotToggleable: its type does not support this.
    :raises connmgr.errors.SecretLocked: ``access`` may not open a secret that this needs.
    :raises connmgr.errors.ConnmgrError: it failed.
    """
    kind = registry.get(record.type)
    if not isinstance(kind, Toggled):
        raise NotToggleable(f"Connections of type {record.type} cannot be started and stopped.")
    deadline = Deadline(timeout)
    via = record.data.get(kind.via) if kind.via else None
    # Checks that the secrets go where the authenticated row leads.
    vault.connections.carriers_of([via] if via else [], record.dependency_digest)
    plain = opened_data(vault, registry, record.type, record.data, access, deadline)
    with ExitStack() as cleanup:
        transport: Transport | None = None
        if via is not None:
            lease = links.lease(via, access, timeout)
            cleanup.callback(lease.release)
            transport = lease.link.transport
        kind.toggle(transport, plain, state, timeout=deadline.left(LEAST_SECONDS))
