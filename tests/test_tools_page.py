"""docs/TOOLS.md, verbatim, against a real daemon and the programs that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.transcripts import sit_down, transcripts, typed


@pytest.mark.needs("bash", "linux", "sshd", "ssh", "tar", "rsync", "git")
def test_the_page_is_what_a_terminal_shows(
    ssh_home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=ssh_home, environment={"SHELL": "/bin/bash"})
    daemon.client.connection.add("web1", {"type": "ssh", "host": "web1"})
    sit_down(daemon, monkeypatch)
    for name in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.setenv(f"GIT_{name}", "me@here")
    directory = tmp_path / "work"
    directory.mkdir()
    text = "".join(transcripts("TOOLS.md"))
    assert text.count("\n$ ") > 10
    assert typed(text, directory) == text
