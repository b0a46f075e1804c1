"""docs/FILES.md, held against a real daemon to the letter."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.transcripts import home_with_hosts, typed

PAGE = Path(__file__).parent.parent / "docs" / "FILES.md"
TRANSCRIPT = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home directory whose SSH configuration names the machine of the page, which is this one."""
    with home_with_hosts(tmp_path / "home") as home:
        yield home


@pytest.mark.needs("bash", "linux", "sshd", "tar")
def test_the_page_is_what_a_terminal_shows(
    home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=home, environment={"SHELL": "/bin/bash"})
    daemon.client.connection.add("web1", {"type": "ssh", "host": "web1"})
    for variable, value in daemon.environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CONNMGR_PORT", daemon.url.rpartition(":")[2])
    monkeypatch.setenv("CONNMGR_AUTH_FILE", str(daemon.auth_file))
    directory = tmp_path / "work"
    directory.mkdir()
    blocks = TRANSCRIPT.findall(PAGE.read_text())
    assert blocks
    for text in blocks:
        assert _without_times(typed(text, directory)) == _without_times(text)


def _without_times(text: str) -> str:
    return re.sub(r"(in| ) *[\d.]+ s\b", r"\1 … s", text)
