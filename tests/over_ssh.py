"""What programs that start an ssh must achieve, whichever it is: ``connmgr ssh``, or ssh at a control socket."""

from __future__ import annotations

import filecmp
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.fs.trees import facts

FILES = 1000
"""Files whose content exceeds a channel's window."""

MODES = (0o644, 0o600, 0o755, 0o4711)
LARGE = 8_000_000
"""Several windows."""


class Caller(Protocol):
    """Who runs programs that must end well."""

    environment: Mapping[str, str]

    def run(self, *argv: str, stdin: bytes | None = ..., **more: Any) -> subprocess.CompletedProcess[bytes]: ...


def plant(tree: Path) -> Path:
    """Create files with modes and times, and a link, and return their directory."""
    for number in range(FILES):
        path = tree / f"{number // 100:03}" / f"file {number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(number % 2100))
        path.chmod(MODES[number % len(MODES)])
        os.utime(path, (1_000_000_000 + number,) * 2)
    (tree / "link").symlink_to("000/file 00000")
    return tree


def check_rsync(caller: Caller, ssh: str, host: str, directory: Path) -> None:
    """Copy a tree to ``host``, which is this machine, and back; a second time nothing is copied."""
    tree = plant(directory / "tree")
    rsync = ["rsync", "-e", ssh, "-a", "--stats"]
    caller.run(*rsync, f"{tree}/", f"{host}:{directory}/there")
    caller.run(*rsync, f"{host}:{directory}/there/", f"{directory}/back")
    assert facts(directory / "there") == facts(directory / "back") == facts(tree)
    again = caller.run(*rsync, f"{tree}/", f"{host}:{directory}/there").stdout.decode()
    assert "Number of regular files transferred: 0" in again


def check_git(caller: Caller, ssh: str, host: str, clone: str, directory: Path) -> None:
    """Push to a repository of ``host``, which is this machine, and clone it by ``clone`` and the path."""
    who = {f"GIT_{who}_{what}": "a@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    # Compressing random bytes would only take time.
    quick = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.compression", "GIT_CONFIG_VALUE_0": "0"}
    environment = {**caller.environment, **who, **quick, "GIT_SSH_COMMAND": ssh, "GIT_CONFIG_GLOBAL": os.devnull}
    work = directory / "work"

    def git(*words: str, at: Path = work) -> None:
        caller.run("git", "-C", str(at), *words, env=environment)

    git("init", "-q", "--bare", "bare", at=directory)
    git("init", "-q", "-b", "main", "work", at=directory)
    (work / "large").write_bytes(os.urandom(LARGE))
    git("add", "large")
    git("commit", "-qm", "large")
    git("push", "-q", f"{host}:{directory}/bare", "main")
    git("clone", "-q", "-b", "main", f"{clone}{directory}/bare", "clone", at=directory)
    assert filecmp.cmp(work / "large", directory / "clone" / "large", shallow=False)
    git("fetch", "-q", "origin", at=directory / "clone")


def check_scp(caller: Caller, options: Sequence[str], host: str, again: str, directory: Path) -> None:
    """Copy a file to ``host``, which is this machine, and back by its other name ``again``, over both protocols."""
    (directory / "here").write_bytes(os.urandom(LARGE))
    for more in ([], ["-O"]):
        caller.run("scp", "-q", *options, *more, f"{directory}/here", f"{host}:{directory}/there")
        caller.run("scp", "-q", *options, *more, f"{again}:{directory}/there", f"{directory}/back")
        assert filecmp.cmp(directory / "here", directory / "back", shallow=False)
        (directory / "there").unlink()
        (directory / "back").unlink()


def check_sftp(caller: Caller, options: Sequence[str], host: str, directory: Path) -> None:
    """Copy a file to ``host``, which is this machine, and back."""
    (directory / "here").write_bytes(os.urandom(LARGE))
    batch = f"put {directory}/here {directory}/there\nget {directory}/there {directory}/back\n"
    caller.run("sftp", "-q", "-b", "-", *options, host, stdin=batch.encode())
    assert filecmp.cmp(directory / "here", directory / "back", shallow=False)
