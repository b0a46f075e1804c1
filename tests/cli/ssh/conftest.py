"""Fixtures of the tests of ``connmgr ssh``: a daemon with a connection to an SSH server, and programs over it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import CommandLine
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.machine_fixtures import home_of_the_daemon, places, running_machine  # noqa: F401 - fixtures
from tests.plugins.oneself import ssh_server
from tests.plugins.sshd import Sshd

SSH = Path(sys.executable).with_name("connmgr-ssh")


class Far:
    """The command line of a user whose daemon has the connection ``web`` to ``server``, as the same user."""

    def __init__(self, connmgr: CommandLine, server: Sshd) -> None:
        self.connmgr = connmgr
        self.server = server
        self.home = connmgr.daemon.home
        self.environment = connmgr.environment

    def run(
        self, *argv: str, code: int = 0, stdin: bytes | None = b"", **more: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program to its end; its exit code must be ``code``."""
        more = {"env": self.environment, "cwd": self.home, "capture_output": True, "timeout": DEADLINE_SECONDS, **more}
        if stdin is not None:
            more["input"] = stdin
        # Without a terminal, even if the tests have one.
        done = subprocess.run(argv, check=False, start_new_session=True, **more)
        assert done.returncode == code, f"{argv} exited with {done.returncode}\n{done.stdout!r}\n{done.stderr!r}"
        return done

    def ssh(self, *words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        """Run ``connmgr-ssh`` to its end."""
        return self.run(str(SSH), *words, **more)

    def popen(self, *words: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start ``connmgr-ssh``."""
        pipe = subprocess.PIPE
        more = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "env": self.environment, "cwd": self.home, **more}
        return subprocess.Popen([SSH, *words], start_new_session=True, **more)


@pytest.fixture(scope="module")
def far(connmgr: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    """A connection that the tests of a module share."""
    with ssh_server(tmp_path_factory.mktemp("far")) as server:
        connmgr.add_ssh("web", server)
        # Its shell keeps the link open.
        connmgr("exec", "web", "--", "true")
        yield Far(connmgr, server)
