"""docs/ANSIBLE.md, held against a real daemon, Ansible and pyinfra to the letter."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.pyinfra.ways import PYINFRA
from tests.transcripts import home_with_hosts, typed

PAGE = Path(__file__).parent.parent / "docs" / "ANSIBLE.md"
TRANSCRIPT = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home directory whose SSH configuration names the machines of the page, which are this one."""
    with home_with_hosts(tmp_path / "home") as home:
        yield home


@pytest.mark.slow
@pytest.mark.needs("bash", "linux", "sshd")
def test_the_page_is_what_a_terminal_shows(
    home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=home, environment={"SHELL": "/bin/bash"})
    for name in ("web1", "web2"):
        daemon.client.connection.add(name, {"type": "ssh", "host": name})
    for variable, value in daemon.environment.items():
        monkeypatch.setenv(variable, value)
    programs = (Path(sys.executable).parent, PYINFRA.parent, os.environ["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, programs)))
    monkeypatch.setenv("CONNMGR_PORT", daemon.url.rpartition(":")[2])
    monkeypatch.setenv("CONNMGR_AUTH_FILE", str(daemon.auth_file))
    directory = tmp_path / "work"
    directory.mkdir()
    blocks = TRANSCRIPT.findall(PAGE.read_text())
    assert len(blocks) == 2
    for text in blocks:
        assert typed(text, directory) == text
