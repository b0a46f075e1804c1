"""Maps the failures of SSH, paramiko and the system to connmgr's errors.

==============================  =====================
raised below                    becomes
==============================  =====================
socket.gaierror                 HostUnresolved
ConnectionRefusedError          HostRefused
TimeoutError                    ConnectTimeout
other OSError                   HostUnreachable
EOFError, other SSHException    HostRefused
IncompatiblePeer                TransportUnsupported
==============================  =====================

Logins, host keys and channels are connmgr's own (authentication.py, hostkeys.py, stream.py) and raise its errors.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from paramiko import ssh_exception

from connmgr.errors import (
    ConnectTimeout,
    ConnmgrError,
    HostRefused,
    HostUnreachable,
    HostUnresolved,
    OperationError,
    TransportUnsupported,
)
from connmgr.plugin import Deadline
from connmgr_ssh.stream import Refused

_FORBIDDEN = 1
_WORDS: tuple[tuple[str, type[OperationError]], ...] = (
    ("refused", HostRefused),
    ("timed out", ConnectTimeout),
    ("not known", HostUnresolved),
    ("resol", HostUnresolved),
    ("no address", HostUnresolved),
)
"""Words of strerror or gai_strerror, which a gateway's sshd gives as the reason for not opening a stream."""


def expired(deadline: Deadline, subject: str, doing: str) -> ConnectTimeout:
    """Return the error for a ``subject`` that did not answer by ``deadline``, while ``doing`` something."""
    return ConnectTimeout(f"{subject} did not answer within {deadline.seconds:g} seconds, while {doing}.")


@contextmanager
def mapped(subject: str, doing: str, deadline: Deadline) -> Iterator[None]:
    """Turn every failure of SSH within the block into an :class:`OperationError`.

    :param subject: the host, as the error names it.
    :param doing: what the block does, as "exchanging keys".
    """
    try:
        yield
    except ConnmgrError:
        raise
    except TimeoutError as error:
        raise expired(deadline, subject, doing) from error
    except (OSError, EOFError, ssh_exception.SSHException) as error:
        raise operation_error(error, subject, doing) from error


def operation_error(error: Exception, subject: str, doing: str) -> OperationError:
    """Return connmgr's error for ``error``."""
    for kind, becomes, text in _TABLE:
        if isinstance(error, kind):
            return becomes(text.format(subject=subject, doing=doing, error=_reason(error)))
    raise error


def _reason(error: Exception) -> str:
    return quoted(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def quoted(text: str) -> str:
    """Return a text of a peer or of the system, made fit for a message."""
    return "".join(character if character.isprintable() else " " for character in text)[:200].strip(" .")


_TABLE: tuple[tuple[type[Exception], type[OperationError], str], ...] = (
    (socket.gaierror, HostUnresolved, "{subject} has no address: {error}."),
    (ConnectionRefusedError, HostRefused, "{subject} refused the connection."),
    (
        ConnectionResetError,
        HostRefused,
        "{subject} reset the connection while {doing}: it may be overloaded (MaxStartups), or not admit this client.",
    ),
    (OSError, HostUnreachable, "The connection to {subject} broke while {doing}: {error}."),
    (
        EOFError,
        HostRefused,
        "{subject} closed the connection while {doing}: it may be overloaded (MaxStartups), or not admit this client.",
    ),
    (
        ssh_exception.IncompatiblePeer,
        TransportUnsupported,
        "{subject} and connmgr have no algorithm in common, or no version of the protocol: {error}.",
    ),
    (ssh_exception.SSHException, HostRefused, "{subject} broke the SSH protocol while {doing}: {error}."),
)
"""From the specific to the general: the first match decides."""


def refused_stream(refusal: Refused, subject: str, gateway: str) -> OperationError:
    """Return why ``gateway`` did not open a TCP stream to ``subject``."""
    if refusal.reason == _FORBIDDEN:
        return TransportUnsupported(
            f"{gateway} does not allow TCP forwarding to {subject}: see AllowTcpForwarding in its sshd_config."
        )
    words = refusal.text.lower()
    kind = next((kind for word, kind in _WORDS if word in words), HostUnreachable)
    return kind(f"{gateway} could not connect to {subject}: {quoted(refusal.text) or 'no reason given'}.")
