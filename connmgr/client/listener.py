"""Tells whose the program is that a client has connected to, before it is told a secret."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

LISTENING = "0A"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_IPV4_BYTES = 4
_MAPPED = bytes(10) + b"\xff\xff"

Address = tuple[bytes, int]


def stranger(connected: socket.socket, users: Collection[int]) -> int | None:
    """Return the user id of whoever listens where ``connected`` leads, if it is none of ``users``.

    None where it is one of them, or cannot be told: on another machine or in another network namespace, or where the
    system has no ``/proc/net/tcp``.
    """
    here, there = connected.getsockname(), connected.getpeername()
    if here[0] != there[0] and not there[0].startswith(("127.", "::ffff:127.")):
        return None
    own, far = (_address(connected.family, one) for one in (here, there))
    for uid in _owners(own, far):
        if uid not in users and not _is_unmapped(uid):
            return uid
    return None


def _owners(own: Address, far: Address) -> Iterator[int]:
    """Yield the user ids of the connection's other end, once it was accepted, and of the listening socket."""
    # Reading a table takes milliseconds; the one for IPv6 has sockets that take IPv4 too.
    for table in _TABLES if len(far[0]) == _IPV4_BYTES else _TABLES[1:]:
        listeners: dict[bytes, int] = {}
        for local, remote, state, uid in _sockets(table, far[1]):
            if local == far and remote == own:
                # Who listens now need not be who did when the connection was made.
                yield uid
            elif state == LISTENING:
                listeners.setdefault(local[0], uid)
        for address in (far[0], bytes(_IPV4_BYTES), bytes(16)):
            if address in listeners:
                yield listeners[address]
                return


def _sockets(table: Path, port: int) -> Iterator[tuple[Address, Address, str, int]]:
    """Yield the local address, the remote one, the state and the owner of the sockets at a local ``port``."""
    mark = f":{port:04X} "
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        # There may be thousands, and few are looked for.
        if mark not in line:
            continue
        _, local, remote, state, _, _, _, uid, *_ = line.split()
        if local.endswith(mark[:-1]):
            yield _parsed(local), _parsed(remote), state, int(uid)


def _parsed(text: str) -> Address:
    """Read ``0100007F:54D9``: words of 32 bits as the machine has them, and the port."""
    words, _, port = text.partition(":")
    address = b"".join(
        int(words[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(words), 8)
    )
    return address.removeprefix(_MAPPED), int(port, 16)


def _address(family: int, name: tuple[str, int]) -> Address:
    return socket.inet_pton(family, name[0].partition("%")[0]).removeprefix(_MAPPED), name[1]


def _is_unmapped(uid: int) -> bool:
    """Whether ``uid`` stands for any user that this process' user namespace, a container's, does not know."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        return uid == overflow and Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]
    except (OSError, ValueError):
        return False


def owners_of_daemon(auth_file: Path) -> set[int]:
    """Return the users whose daemon may be told what ``auth_file`` holds: its owner, this process' user, and root."""
    try:
        return {0, os.geteuid(), auth_file.stat().st_uid}
    except OSError:
        return {0, os.geteuid()}
