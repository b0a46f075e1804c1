"""Five hosts, addresses of one sshd, for tools that reach them over SSH or over a daemon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from connmgr.client import ROOT_CATEGORY
from tests.daemon import Daemon
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd, privilege_separation
from tests.spawner import Spawner

PROGRAMS = Path(sys.executable).parent
HOSTS = ("web1", "web2", "web3", "web4", "web5")
RUN_SECONDS = 400.0
"""Longest run of a tool on a busy machine."""


class Fleet:
    """The hosts, and a daemon that has a connection to each by its name, in the category ``fleet``.

    The login is the user who runs the tests, with the home directory ``far``. Programs are forked from ``forks``, if
    that is set.
    """

    forks: Spawner | None = None

    def __init__(self, daemon: Daemon, server: Sshd, far: Path) -> None:
        self.daemon = daemon
        self.server = server
        self.far = far
        self.addresses = {name: f"127.0.0.{number}" for number, name in enumerate(HOSTS, 1)}
        self.known_hosts = daemon.home / "known_hosts"
        lines = [server.known_hosts(f"[{address}]:{server.port}") for address in self.addresses.values()]
        self.known_hosts.write_text("".join(lines))
        client = daemon.client
        self._category = client.category.add("fleet", ROOT_CATEGORY)
        self.connections = {name: self.add(name, host=address) for name, address in self.addresses.items()}

    def add(self, name: str, **fields: object) -> str:
        """Add a connection to the server, unless ``fields`` say otherwise, and return its uuid."""
        data = {"type": "ssh", **ssh_fields(self.server, self.server.user, **fields)}
        return self.daemon.client.connection.add(name, data, category=self._category)

    @property
    def ssh_options(self) -> str:
        """OpenSSH's options for logging in to the hosts."""
        return f"-F none -o UserKnownHostsFile={self.known_hosts}"

    def run(
        self, *argv: str | Path, code: int | None = 0, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as :func:`run_with` does."""
        return run_with(self.daemon, *argv, code=code, environment=environment, forks=self.forks)


def run_with(
    daemon: Daemon,
    *argv: str | Path,
    code: int | None = 0,
    environment: Mapping[str, str] | None = None,
    forks: Spawner | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program in the environment of ``daemon``'s user to its end; its exit code must be ``code``.

    It is forked from ``forks``, if that is given.
    """
    given = {
        **daemon.environment,
        "PATH": f"{PROGRAMS}{os.pathsep}{daemon.environment['PATH']}",
        "CONNMGR_PORT": daemon.url.rpartition(":")[2],
        "CONNMGR_AUTH_FILE": str(daemon.auth_file),
        **(environment or {}),
    }
    if forks is not None:
        program, *words = map(str, argv)
        ended = forks.run(words, given, daemon.home, b"", RUN_SECONDS, PROGRAMS / program)
    else:
        ended = subprocess.run(
            argv,
            cwd=daemon.home,
            env=given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    done = subprocess.CompletedProcess(argv, ended.returncode, ended.stdout.decode(), ended.stderr.decode())
    shown = f"{argv} exited with {done.returncode}\n{done.stdout[-20_000:]}\n{done.stderr[-20_000:]}"
    assert code in (None, done.returncode), shown
    return done


@contextmanager
def running_fleet(directory: Path, *options: str, program: Sequence[str] = ()) -> Iterator[Fleet]:
    """Run the hosts and a daemon with ``options``, started by ``program``, with all files below ``directory``."""
    far = directory / "far"
    far.mkdir()
    lines = {"Subsystem": "sftp internal-sftp", "SetEnv": f"LANG=C.UTF-8 HOME={far}"}
    with privilege_separation(), closing(Sshd(lines)) as server:
        server.stop()
        server.options["ListenAddress"] = "\nListenAddress ".join(f"127.0.0.{i}:{server.port}" for i in range(1, 6))
        server.start()
        daemon = Daemon(directory / "near", *options, program=program)
        try:
            yield Fleet(daemon, server, far)
        finally:
            daemon.stop()
            daemon.close()


def tree(directory: Path) -> dict[str, tuple[str, int, bytes]]:
    """Return kind, permissions, and content or target of each file below a directory, by path."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            entry = ("link", 0, os.fsencode(path.readlink()))
        elif path.is_dir():
            entry = ("directory", status.st_mode & 0o7777, b"")
        else:
            entry = ("file", status.st_mode & 0o7777, path.read_bytes())
        found[str(path.relative_to(directory))] = entry
    return found


def recap(output: str) -> dict[str, dict[str, int]]:
    """Return the numbers of Ansible's PLAY RECAP by host."""
    lines = re.findall(r"^(\S+) +: (ok=.*)$", output, re.MULTILINE)
    return {host: {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", counts)} for host, counts in lines}


def hosts_of(names: Sequence[str], **variables: object) -> str:
    """Return a group of an inventory for Ansible."""
    lines = ["[fleet]", *names, "[fleet:vars]", *(f"{name}={value}" for name, value in variables.items())]
    return "\n".join(lines) + "\n"
