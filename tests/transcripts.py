"""Types the commands of the pages' transcripts into a real terminal."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.program import CommandLine
from tests.daemon import Daemon
from tests.plugins import users
from tests.plugins.sshd import Sshd, privilege_separation

DOCS = Path(__file__).parent.parent / "docs"
TRANSCRIPT = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def transcripts(page: str, *, begins: str = "", ends: str | None = None) -> list[str]:
    """Return the transcripts of the documentation's ``page``, or of a part of it, at least one."""
    text = (DOCS / page).read_text()
    blocks = TRANSCRIPT.findall(text[text.index(begins) : None if ends is None else text.index(ends)])
    assert blocks, page
    return blocks


def sit_down(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let :func:`typed` type as the user of ``daemon``."""
    for name, value in CommandLine(daemon).environment.items():
        monkeypatch.setenv(name, value)
    # All that is typed is one POSIX session's.
    monkeypatch.delenv("CONNMGR_SESSION")


def typed(text: str, directory: Path) -> str:
    """Type the commands of ``text`` into bash one after the other, and return what the terminal shows."""
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    script = "".join(f"echo {shlex.quote(chr(36) + chr(32) + command)}\n{command}\n" for command in commands)
    finished = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    return finished.stdout


@contextmanager
def home_with_hosts(home: Path, config: str = "", hosts: str = "*") -> Iterator[Path]:
    """Create a home directory in which ``hosts`` are this machine, unless the SSH ``config`` says otherwise."""
    user = users.create() if os.geteuid() == 0 else None
    (home / ".ssh").mkdir(mode=0o700, parents=True)
    with privilege_separation():
        server = Sshd(user=user.name if user else getpass.getuser())
        (home / ".ssh" / "known_hosts").write_text(server.known_hosts())
        file = home / ".ssh" / "config"
        file.write_text(
            f"{config}Host {hosts}\n  HostName 127.0.0.1\n  Port {server.port}\n"
            f"  User {server.user}\n  IdentityFile {server.client_key}\n"
        )
        file.chmod(0o600)
        yield home
        server.close()
    if user:
        users.remove(user)
