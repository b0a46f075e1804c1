"""Opens TCP connections in bounded time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

from connmgr.errors import ConnectTimeout, HostRefused, HostUnreachable, HostUnresolved, OperationError
from connmgr.plugin import Deadline
from connmgr_ssh.faults import expired


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
            # Each address gets a share of the time, so that an address that drops packets leaves time for the next.
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
    """Return the most informative error of the failed addresses of ``where``."""
    if any(isinstance(failure, ConnectionError) for failure in failures):
        return HostRefused(f"{where} refused the connection: nothing listens there, or a firewall rejects it.")
    if any(isinstance(failure, TimeoutError) for failure in failures):
        return expired(deadline, where, "connecting")
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
    """Call the resolver, which has no deadline, in a thread that ends when the resolver gives up."""
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
