"""docs/TOOLS.md, verbatim, against a real daemon and the programs that it names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.transcripts import home_with_hosts, sit_down, transcripts, typed


@pytest.fixture
def home() -> Iterator[Path]:
    """A home directory for whose SSH configuration every host is this machine."""
    # Not below tmp_path: the path of a control socket has 107 bytes at most.
    temporary = tempfile.TemporaryDirectory(prefix="cm-", ignore_cleanup_errors=True)
    with temporary as directory, home_with_hosts(Path(directory) / "home") as home:
        yield home


@pytest.mark.needs("bash", "linux", "sshd", "ssh", "tar", "rsync", "git")
def test_the_page_is_what_a_terminal_shows(
    home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=home, environment={"SHELL": "/bin/bash"})
    daemon.client.connection.add("web1", {"type": "ssh", "host": "web1"})
    sit_down(daemon, monkeypatch)
    for name in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.setenv(f"GIT_{name}", "me@here")
    directory = tmp_path / "work"
    directory.mkdir()
    text = "".join(transcripts("TOOLS.md"))
    assert text.count("\n$ ") > 10
    assert typed(text, directory) == text
