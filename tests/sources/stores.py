"""A store of the real pass, with gpg in a private home."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def run(*argv: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> None:
    """Run a program that must succeed."""
    done = subprocess.run(
        argv,
        input=stdin,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (argv, done.stderr)


@contextmanager
def pass_store() -> Iterator[dict[str, str]]:
    """Make an empty store whose key has no passphrase, and yield the variables by which pass and gpg find it."""
    # The directory's name is short, for the sockets of gpg-agent.
    home = Path(tempfile.mkdtemp(prefix="pass-"))
    environment = {"GNUPGHOME": str(home / "gnupg"), "PASSWORD_STORE_DIR": str(home / "store")}
    (home / "gnupg").mkdir(mode=0o700)
    key = ("--quick-generate-key", "tests@connmgr.invalid", "default", "default")
    run("gpg", "--batch", "--passphrase", "", *key, environment=environment)
    run("pass", "init", "tests@connmgr.invalid", environment=environment)
    yield environment
    run("gpgconf", "--kill", "all", environment=environment)
    shutil.rmtree(home)
