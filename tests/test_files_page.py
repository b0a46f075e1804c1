"""docs/FILES.md, verbatim, against a real daemon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.transcripts import sit_down, transcripts, typed


@pytest.mark.needs("bash", "linux", "sshd", "tar")
def test_the_page_is_what_a_terminal_shows(
    ssh_home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=ssh_home, environment={"SHELL": "/bin/bash"})
    daemon.client.connection.add("web1", {"type": "ssh", "host": "web1"})
    sit_down(daemon, monkeypatch)
    directory = tmp_path / "work"
    directory.mkdir()
    for text in transcripts("FILES.md"):
        shown = re.sub(r"web1:/\S+/nowhere:", "web1:/home/ada/nowhere:", typed(text, directory))
        assert _without_times(shown) == _without_times(text)


def _without_times(text: str) -> str:
    return re.sub(r"(in| ) *[\d.]+ s\b", r"\1 … s", text)
