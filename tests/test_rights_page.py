"""docs/RIGHTS.md, held against a real daemon to the letter."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.rights.scopes import SCOPES
from tests.conftest import StartDaemon
from tests.transcripts import home_with_hosts, typed

PAGE = Path(__file__).parent.parent / "docs" / "RIGHTS.md"
TRANSCRIPT = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HOSTS = ("web1", "web2", "db")

VARIABLE = {
    r"\b[0-9a-f]{8}\b(-[0-9a-f-]{27})?": "ID",
    r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|\+\d{2}:\d{2})?": "TIME",
    r"\b\d+ entries, 1 to \d+": "N entries",
    r"\d+(\.\d+)? ?(s|m|ms) ago": "AGO",
    r" +": " ",
}
"""What differs from run to run."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home directory whose SSH configuration names the machines of the page, all of them this one."""
    with home_with_hosts(tmp_path / "home") as home:
        yield home


def _comparable(text: str) -> list[str]:
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text)
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.needs("bash", "linux", "sshd")
def test_the_page_is_what_a_terminal_shows(
    home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=home, environment={"SHELL": "/bin/bash"})
    for name in HOSTS:
        daemon.client.connection.add(name, {"type": "ssh", "host": name})
    for variable, value in daemon.environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CONNMGR_PORT", daemon.url.rpartition(":")[2])
    monkeypatch.setenv("CONNMGR_AUTH_FILE", str(daemon.auth_file))
    blocks = TRANSCRIPT.findall(PAGE.read_text())
    assert blocks
    for text in blocks:
        assert _comparable(typed(text, tmp_path)) == _comparable(text)


def test_the_page_tells_of_every_scope() -> None:
    page = PAGE.read_text()
    assert [scope for scope in SCOPES if f"| `{scope}` |" not in page] == []
