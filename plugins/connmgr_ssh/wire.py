"""The byte stream under an SSH connection: opened in bounded time, read in large pieces, watched for silence."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from connmgr.errors import ConnectTimeout, HostRefused, HostUnreachable, HostUnresolved, OperationError
from connmgr_ssh.deadline import Deadline

BLOCK = 128 * 1024
PREAMBLE = 2 * BLOCK
"""Bytes that a peer may send until it has said which SSH it speaks."""
LARGEST = 1024 * 1024
"""Bytes of one packet, of which OpenSSH allows a quarter; paramiko would make room for whatever a peer announces."""
SILENCES = 3
"""How many intervals in a row a peer may be silent before it counts as gone."""

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)


class SocketLike(Protocol):
    """What a stream must offer to carry SSH; sockets do."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def settimeout(self, timeout: float | None, /) -> None: ...
    def close(self) -> None: ...


class Wire:
    """A socket, or something like one, as paramiko's reader and writers use it.

    ``interval`` is how many seconds a read or write waits before it raises :class:`TimeoutError`; None waits for ever.
    paramiko asks for a packet in two pieces; reading ahead saves it one system call of the two, and larger ones many.
    """

    def __init__(self, stream: SocketLike, interval: float | None) -> None:
        self._stream = stream
        self._ahead = b""
        self._position = 0
        self._closed = False  # the name that paramiko looks for
        self.silences = 0
        self.allowance: int | None = PREAMBLE
        stream.settimeout(interval)
        self._socket = stream if isinstance(stream, socket.socket) else None
        # A server with Nagle's algorithm on, as sshd during the set-up, waits for our ACKs, which come late by default.
        self.hasty = _QUICKACK is not None

    def recv(self, size: int) -> bytes:
        """Return 1 to ``size`` bytes, or none at the end of the stream.

        :raises TimeoutError: none came within the interval.
        :raises OSError: the peer sends more than it may.
        """
        if size > LARGEST:
            raise OSError(errno.EMSGSIZE, "the peer announced too large a packet")
        if self._position < len(self._ahead):
            piece = self._ahead[self._position : self._position + size]
            self._position += len(piece)
            return piece
        try:
            if self.hasty and self._socket and _QUICKACK is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            self._ahead = self._stream.recv(BLOCK)
        except TimeoutError:
            self.silences += 1
            raise
        self.silences = 0
        if self.allowance is not None:
            self.allowance -= len(self._ahead)
            if self.allowance < 0:
                raise OSError(errno.EMSGSIZE, "the peer talks on without naming a protocol")
        self._position = min(size, len(self._ahead))
        return self._ahead[: self._position]

    def send(self, data: bytes) -> int:
        """Write some of ``data`` and return how many bytes that were.

        :raises OSError: the peer took nothing for ``SILENCES`` intervals, or is gone.
        """
        for _ in range(SILENCES):
            try:
                return self._stream.send(data)
            except TimeoutError:
                continue
        raise OSError(errno.ETIMEDOUT, "the peer takes no more data")

    def settimeout(self, timeout: float | None) -> None:
        """Do nothing: paramiko would set an interval of its own, and wake ten times a second."""

    def close(self) -> None:
        """End the stream, which wakes whoever reads from it or writes to it."""
        self._closed = True
        if self._socket:
            # The descriptor stays until release(): another thread may be about to use its number.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        else:
            self._stream.close()

    def release(self) -> None:
        """Give back the descriptor, once no thread uses it any more."""
        self.close()
        self._stream.close()


def dial(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Connect to the first address of ``host`` that answers, without Nagle's algorithm.

    :raises HostUnresolved: the name has no address.
    :raises HostRefused: nothing listens there.
    :raises ConnectTimeout: no answer came in time.
    :raises HostUnreachable: no route leads there.
    """
    addresses = _addresses(host, port, deadline)
    failures: list[OSError] = []
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        connection = socket.socket(family, kind, protocol)
        try:
            # A share of the time for each, so that an address that swallows packets leaves some for the next.
            connection.settimeout(max(0.001, deadline.left() / (len(addresses) - index)))
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connection.close()
            failures.append(error)
        else:
            return connection
    raise connect_error(f"{host}:{port}", failures, deadline) from failures[-1]


def connect_error(where: str, failures: Sequence[OSError], deadline: Deadline) -> OperationError:
    """Return the error that says most of why none of the addresses of ``where`` could be connected to."""
    if any(isinstance(failure, ConnectionError) for failure in failures):
        return HostRefused(f"{where} refused the connection: nothing listens there, or a firewall rejects it.")
    if any(isinstance(failure, TimeoutError) for failure in failures):
        return deadline.expired(where, "connecting")
    reason = failures[-1].strerror or str(failures[-1])
    return HostUnreachable(f"{where} cannot be reached: {reason}.")


def _addresses(host: str, port: int, deadline: Deadline) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return _look_up(host, port, deadline)
    except UnicodeError as error:
        raise HostUnresolved(f"{host} is not a valid host name.") from error


def _look_up(host: str, port: int, deadline: Deadline) -> list[Any]:
    """Ask the resolver, which knows no deadline, in a thread that ends when the resolver gives up."""
    found: list[Any] = []
    failed: list[Exception] = []

    def ask() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            failed.append(error)

    resolver = threading.Thread(target=ask, name=f"resolve {host}", daemon=True)
    resolver.start()
    resolver.join(deadline.left())
    if failed:
        reason = failed[0].strerror if isinstance(failed[0], OSError) else "it is not a valid name"
        raise HostUnresolved(f"{host} has no address: {reason}.") from failed[0]
    if not found:
        raise ConnectTimeout(f"The address of {host} was not found within {deadline.seconds:g} seconds.")
    return found
