"""Temporary users of this machine, for tests that run as root: unique names, homes in a temporary directory."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.components import program
from tests.deadlines import eventually

MARK = "connmgr test of process"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class User:
    """A user that exists until :func:`remove`."""

    name: str
    password: str
    home: Path


def create(shell: str = "/bin/bash", password: str = "correct horse battery") -> User:
    """Create a user with the given login shell and password, and a new home directory.

    Users that an earlier, killed test run has left behind are removed first.
    """
    _remove_orphans()
    name = f"cm{os.getpid()}x{next(_numbers)}"
    home = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    mark = f"{MARK} {os.getpid()}"
    _run("useradd", "--no-user-group", "--home-dir", str(home), "--shell", shell, "--comment", mark, name)
    _run("chpasswd", text=f"{name}:{password}\n")
    shutil.chown(home, name)
    return User(name, password, home)


def remove(user: User) -> None:
    """End the user's processes, and remove it and its home."""
    _remove(user.name, user.home)


def _remove(name: str, home: Path) -> None:
    uid = pwd.getpwnam(name).pw_uid
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == uid:
                os.kill(int(process.name), 9)
        except (FileNotFoundError, ProcessLookupError):
            continue
    _run("userdel", "--force", name)
    shutil.rmtree(home, ignore_errors=True)


def _remove_orphans() -> None:
    for entry in pwd.getpwall():
        if entry.pw_gecos.startswith(MARK) and not Path(f"/proc/{entry.pw_gecos.split()[-1]}").exists():
            _remove(entry.pw_name, Path(entry.pw_dir))


def _run(command: str, *arguments: str, text: str = "") -> None:
    path = program(command)
    assert path, f"{command} is not installed"
    outcome = eventually(
        lambda: subprocess.run([path, *arguments], input=text, capture_output=True, text=True, timeout=20, check=False),
        f"{command} finds the user database locked",
        # Only one process at a time may change the user database, and another test process may be doing so.
        holds=lambda outcome: outcome.returncode == 0 or "lock" not in outcome.stderr,
    )
    assert outcome.returncode == 0, f"{command} failed: {outcome.stderr}"
