"""Whether a user of this machine is trusted, and which user is at the other end of a Unix socket."""

from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("iII")
_WHOLE_MAP = ["0", "0", str(2**32 - 1)]


def is_trusted(uid: int) -> bool:
    """Whether the user ``uid`` is this process's, or root, which can read everything anyway."""
    return uid in (0, os.geteuid())


def peer_uid(connected: socket.socket) -> int:
    """Return the user id of the other end of a Unix socket at the time when it listened or connected.

    :raises OSError: the system does not tell.
    """
    if hasattr(socket, "SO_PEERCRED"):
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(credentials)[1])
    return _effective_peer_uid(connected.fileno())


def connected_to_own(path: str, timeout: float) -> socket.socket:
    """Return a connection to the Unix socket ``path``, at which a program of this process's user listens.

    :raises OSError: none listens there, or another user's.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout)
        connected.connect(path)
        _require_own(connected)
    except BaseException:
        connected.close()
        raise
    return connected


def _require_own(connected: socket.socket) -> None:
    if peer_uid(connected) != os.geteuid():
        raise PermissionError(errno.EPERM, "a program of another user listens there")


def _effective_peer_uid(descriptor: int) -> int:
    """Ask the C library of macOS and the BSDs."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = ctypes.c_uint(), ctypes.c_uint()
    if libc.getpeereid(descriptor, ctypes.byref(uid), ctypes.byref(gid)) != 0:
        raise OSError(ctypes.get_errno(), "the system does not tell whose program that is")
    return uid.value


def is_unmapped(uid: int) -> bool:
    """Whether ``uid`` stands for any user outside of this process's user namespace (a container's)."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        return uid == overflow and Path("/proc/self/uid_map").read_text().split() != _WHOLE_MAP
    except (OSError, ValueError):
        return False
