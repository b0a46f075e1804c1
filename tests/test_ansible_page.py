"""docs/ANSIBLE.md, verbatim, against a real daemon, Ansible and pyinfra."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.pyinfra.ways import PYINFRA
from tests.transcripts import sit_down, transcripts, typed


@pytest.mark.slow
@pytest.mark.needs("bash", "linux", "sshd")
def test_the_page_is_what_a_terminal_shows(
    ssh_home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=ssh_home, environment={"SHELL": "/bin/bash"})
    for name in ("web1", "web2"):
        daemon.client.connection.add(name, {"type": "ssh", "host": name})
    sit_down(daemon, monkeypatch)
    monkeypatch.setenv("PATH", str(PYINFRA.parent), prepend=os.pathsep)
    directory = tmp_path / "work"
    directory.mkdir()
    blocks = transcripts("ANSIBLE.md")
    assert len(blocks) == 2
    for text in blocks:
        assert typed(text, directory) == text
