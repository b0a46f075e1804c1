"""The POSIX session that the command line runs in: a terminal, a cron job, a step of a CI job.

All commands of one session use one shell of a connection, and those of another session another. The shell's name says
whose it is, so that the daemon can end it after its session, and people can be told.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

PREFIX = "sid-"
_NAME = re.compile(PREFIX + r"([0-9]{1,10})-([0-9]{1,20})-([0-9a-f]{8})-([0-9]{1,10})-([A-Za-z0-9_.]{1,16})")
_NO_TERMINAL = "none"

# Fields of /proc/PID/stat (proc(5)) after the program's name, which may contain anything.
_TERMINAL, _START = 4, 19

# Documentation/admin-guide/devices.txt of Linux: terminals of programs, consoles, serial lines.
_PTS_MAJORS, _TTY_MAJOR, _CONSOLES = range(136, 144), 4, 64


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
        terminal = re.sub(r"[^A-Za-z0-9_]", ".", self.terminal)[:16] or _NO_TERMINAL
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


def current() -> PosixSession:
    """Return the session of this process."""
    pid = os.getsid(0)
    try:
        start, terminal = _facts(pid)
    except OSError:
        # The leader has ended, or is outside of this container.
        start, terminal = 0, ""
    return PosixSession(pid, start, _place(), os.getuid(), terminal)


def named(name: str | None) -> PosixSession | None:
    """Return the session that a shell's ``name`` stands for, None for any other name."""
    found = _NAME.fullmatch(name or "")
    if found is None:
        return None
    pid, start, place, uid, terminal = found.groups()
    # pts.3 is the name of /dev/pts/3.
    shown = "" if terminal == _NO_TERMINAL else terminal.replace(".", "/", 1)
    return PosixSession(int(pid), int(start), place, int(uid), shown)


def _facts(pid: int) -> tuple[int, str]:
    """Return when a process started, as a number that only this process has, and the name of its terminal.

    :raises OSError: there is no such process, or it cannot be seen.
    """
    if sys.platform != "linux":
        return _facts_by_ps(pid)
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
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
    return zlib.crc32(start.strip().encode()), "" if terminal.startswith("?") else terminal


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
    return f"{zlib.crc32(chr(0).join(facts).encode()):08x}"
