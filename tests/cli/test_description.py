"""The description of the commands is the one that the commands give, and the program starts quickly."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

STRANGERS = {
    *("flask", "marshmallow", "waitress", "sqlalchemy", "alembic", "nacl", "paramiko", "pluggy"),
    *("http", "email", "ssl", "psutil", "pexpect", "rich", "platformdirs", "cryptography", "readline", "tomllib"),
}
"""What no command loads that only talks to the daemon."""


def test_the_documents_are_as_the_commands_are() -> None:
    argv = [sys.executable, ROOT / "scripts/describe_cli.py", "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man: the program man is not installed")
def test_the_man_page_is_well_formed() -> None:
    argv = ["man", "--warnings=w", "--encoding=UTF-8", "--local-file", str(ROOT / "docs/connmgr.1")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env={"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "connmgr exec [OPTIONS] CONNECTION" in done.stdout
    assert "EXIT STATUS" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "exec",
        "cp",
        "shell",
        "disconnect",
        "job",
        "status",
        "info",
        "add",
        "edit",
        "rm",
        "mv",
        "category",
        "encrypt",
        "completion",
    ],
)
def test_a_command_loads_nothing_that_it_does_not_need(command: str) -> None:
    program = (
        "import sys; from connmgr.cli import main\n"
        f"try: main(['{command}', '--help'])\n"
        "except SystemExit: sys.stderr.write(' '.join({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: ")
    assert STRANGERS & set(done.stderr.split()) == set()
