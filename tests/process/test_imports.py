"""A daemon loads only the modules that it needs to serve requests, so that it starts quickly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.daemon import READY, clean_environment

LATER = {
    *("alembic", "psutil", "prometheus_client", "rich", "paramiko", "cryptography", "connmgr.testing"),
    *("sqlalchemy.orm", "sqlalchemy.dialects.postgresql", "psycopg", "unittest", "keyring"),
}
"""Modules loaded on demand: for a new vault, a metric, an SSH connection, another database."""


def test_a_daemon_on_an_existing_vault_loads_no_needless_modules(tmp_path: Path) -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "connmgr", "serve", "--port", "0"]
    told = tmp_path / "imports"
    for _ in range(2):
        # A file, because a pipe that nobody reads would fill up.
        with (
            told.open("w") as stderr,
            subprocess.Popen(
                argv, env=clean_environment(tmp_path), stdout=subprocess.PIPE, stderr=stderr, text=True
            ) as process,
        ):
            assert process.stdout is not None
            ready = process.stdout.readline()
            process.terminate()
        assert ready.startswith(READY), told.read_text()
    loaded = set(re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", told.read_text(), re.MULTILINE))
    assert "connmgr.daemon" in loaded
    assert LATER & loaded == set()


def test_the_files_of_the_daemon_are_read_without_its_server(tmp_path: Path) -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "connmgr", "api-key"]
    made = subprocess.run(argv, env=clean_environment(tmp_path), capture_output=True, text=True, timeout=60, check=True)
    assert made.stdout.strip()
    loaded = set(re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", made.stderr, re.MULTILINE))
    assert "connmgr.daemon.files" in loaded
    assert {"connmgr.daemon.main", "flask", "waitress", "sqlalchemy"} & loaded == set()
