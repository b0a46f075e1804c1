"""Users and processes of this machine: who is trusted, who is at a socket's other end, when a process started.

The POSIX session in which the command line runs is a terminal, a cron job, or a step of a CI job. All commands of one
session use one shell of a connection, and those of another session another. The shell's name says whose it is, so that
the daemon can end it after its session, and people can be told.
"""

from __future__ import annotations

import binascii
import errno
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

TcpAddress = tuple[bytes, int]

SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_MAPPED = bytes(10) + b"\xff\xff"
_CREDENTIALS = struct.Struct("iII")
_WHOLE_MAP = ["0", "0", str(2**32 - 1)]
_PR_SET_DUMPABLE = 4

PREFIX = "sid-"
_NAME = PREFIX + r"([0-9]{1,10})-([0-9]{1,20})-([0-9a-f]{8})-([0-9]{1,10})-([A-Za-z0-9_.]{1,16})"
_NO_TERMINAL = "none"

# Fields of /proc/PID/stat (proc(5)) after the program's name.
_STATE, _TERMINAL, _START = 0, 4, 19

# Documentation/admin-guide/devices.txt of Linux: terminals of programs, consoles, serial lines.
_PTS_MAJORS, _TTY_MAJOR, _CONSOLES = range(136, 144), 4, 64


def environment_of_programs() -> dict[str, str]:
    """Return the environment of a program that the owner has the daemon run: without the daemon's own settings."""
    # The address of its database, with a password, may be among them.
    return {name: value for name, value in os.environ.items() if not name.startswith("CONNMGR_")}


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


def connect_unix(path: str, timeout: float) -> socket.socket:
    """Return a connection to the Unix socket ``path``, whose reads and writes take ``timeout`` seconds at most, too.

    :raises OSError: nothing listens there, or not within ``timeout`` seconds.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout)
        connected.connect(path)
    except BaseException:
        connected.close()
        raise
    return connected


def connected_to_own(path: str, timeout: float) -> socket.socket:
    """Return a connection as :func:`connect_unix` does, to a program of this process's user.

    :raises OSError: none listens there, or another user's.
    """
    connected = connect_unix(path, timeout)
    try:
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


def sockets_at(table: Path, port: int) -> Iterator[tuple[TcpAddress, TcpAddress, str, int]]:
    """Yield local address, remote address, state and owner of the sockets in ``table`` at a local ``port``."""
    mark = f":{port:04X} "
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        # Parsing every one of thousands of lines would be slow.
        if mark not in line:
            continue
        _, local, remote, state, _, _, _, uid, *_ = line.split()
        if local.endswith(mark[:-1]):
            yield _parsed_address(local), _parsed_address(remote), state, int(uid)


def _parsed_address(text: str) -> TcpAddress:
    """Parse ``0100007F:54D9``: 32-bit words in the machine's byte order, and the port."""
    words, _, port = text.partition(":")
    address = b"".join(
        int(words[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(words), 8)
    )
    return address.removeprefix(_MAPPED), int(port, 16)


def tcp_address(family: int, name: tuple[str, int]) -> TcpAddress:
    """Return the host and port of a socket's name, an address of IPv4 inside IPv6 as one of IPv4."""
    return socket.inet_pton(family, name[0].partition("%")[0]).removeprefix(_MAPPED), name[1]


def tcp_peer_uid(environ: Mapping[str, Any]) -> int | None:
    """Return the user id of the program of this machine that sent an HTTP request over TCP, given by WSGI.

    None if it is unknown: on another machine, in another network namespace, or without ``/proc/net/tcp``.
    """
    try:
        family = socket.AF_INET6 if ":" in environ["REMOTE_ADDR"] else socket.AF_INET
        sender = tcp_address(family, (environ["REMOTE_ADDR"], int(environ["REMOTE_PORT"])))
        port = int(environ["SERVER_PORT"])
    except (KeyError, ValueError, OSError):
        return None
    for table in SOCKET_TABLES:
        for local, remote, _, uid in sockets_at(table, sender[1]):
            if local == sender and remote[1] == port:
                return uid
    return None


def start_of(pid: int) -> int | None:
    """Return the clock ticks from boot to the start of a process, or None without ``/proc``.

    :raises ProcessLookupError: no such process runs.
    """
    try:
        fields = _stat(pid)
    except (OSError, ValueError):
        os.kill(pid, 0)
        return None
    if fields[_STATE] in b"ZX":
        raise ProcessLookupError(errno.ESRCH, "it has ended")
    return int(fields[_START])


class PosixSession(NamedTuple):
    """A POSIX session by its leader: the process ``pid`` of the user ``uid`` that started at ``start``.

    ``place`` stands for the boot and, in containers, the PID namespace in which the numbers count. ``terminal`` is such
    as ``pts/3``, or empty.
    """

    pid: int
    start: int
    place: str
    uid: int
    terminal: str

    @property
    def name(self) -> str:
        """The name of its shells."""
        shown = (
            character if (character.isascii() and character.isalnum()) or character == "_" else "."
            for character in self.terminal
        )
        terminal = "".join(shown)[:16] or _NO_TERMINAL
        return f"{PREFIX}{self.pid}-{self.start}-{self.place}-{self.uid}-{terminal}"

    @property
    def is_over(self) -> bool | None:
        """Whether its leader has ended; None if that cannot be seen from here."""
        if self.place != _place() or not self.start:
            return None
        try:
            return _facts(self.pid)[0] != self.start
        except OSError:
            return not _exists(self.pid)

    def __str__(self) -> str:
        user = self._user()
        return f"terminal {self.terminal} of {user}" if self.terminal else f"process {self.pid} of {user}"

    def _user(self) -> str:
        if self.place == _place():
            import pwd

            try:
                return pwd.getpwuid(self.uid).pw_name
            except KeyError:
                pass
        return f"user {self.uid}"


def current_session() -> PosixSession:
    """Return the session of this process."""
    pid = os.getsid(0)
    try:
        start, terminal = _facts(pid)
    except OSError:
        # The leader has ended, or is outside of this container.
        start, terminal = 0, ""
    return PosixSession(pid, start, _place(), os.getuid(), terminal)


def posix_session_of(name: str | None) -> PosixSession | None:
    """Return the session that a shell's ``name`` stands for, None for any other name."""
    parts = re.fullmatch(_NAME, name or "")
    if parts is None:
        return None
    pid, start, place, uid, terminal = parts.groups()
    # pts.3 is the name of /dev/pts/3.
    shown = "" if terminal == _NO_TERMINAL else terminal.replace(".", "/", 1)
    return PosixSession(int(pid), int(start), place, int(uid), shown)


def _stat(pid: int) -> list[bytes]:
    # The program's name, the second field, may contain blanks and parentheses.
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _facts(pid: int) -> tuple[int, str]:
    """Return when a process started, as a number that only this process has, and the name of its terminal.

    :raises OSError: there is no such process, or it cannot be seen.
    """
    if sys.platform != "linux":
        return _facts_by_ps(pid)
    fields = _stat(pid)
    return int(fields[_START]), _terminal(int(fields[_TERMINAL]))


def _facts_by_ps(pid: int) -> tuple[int, str]:
    import subprocess

    printed = subprocess.run(  # noqa: S603 - a number is all that varies
        ["/bin/ps", "-o", "tty=,lstart=", "-p", str(pid)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    terminal, _, start = printed.stdout.decode(errors="replace").strip().partition(" ")
    if not start:
        raise ProcessLookupError(pid)
    return binascii.crc32(start.strip().encode()), "" if terminal.startswith("?") else terminal


def _terminal(device: int) -> str:
    major, minor = os.major(device), os.minor(device)
    if major in _PTS_MAJORS:
        return f"pts/{(major - _PTS_MAJORS.start) * 256 + minor}"
    if major == _TTY_MAJOR:
        return f"tty{minor}" if minor < _CONSOLES else f"ttyS{minor - _CONSOLES}"
    return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Another user's, and /proc is mounted with hidepid.
        return True
    return True


@cache
def _place() -> str:
    """Return what tells apart process numbers of this boot and PID namespace from all others."""
    facts = [os.uname().nodename]
    if sys.platform == "linux":
        with suppress(OSError):
            facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        with suppress(OSError):
            facts.append(str(Path("/proc/self/ns/pid").readlink()))
    return f"{binascii.crc32(chr(0).join(facts).encode()):08x}"


def most_open_files() -> int:
    """Return how many files this process may have open; ``sys.maxsize`` if there is no limit."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def harden() -> None:
    """Switch core dumps off, and on Linux hide this process's memory from the user's other processes.

    Without the dumpable flag, files under ``/proc/<pid>`` belong to root and the user's debuggers cannot attach.
    Programs started from here have the flag again, and may raise the limit of core dumps.
    :raises OSError: the kernel refused.
    """
    import ctypes
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
