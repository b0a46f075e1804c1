"""docs/TOOLS.md, held against a real daemon and the programs that it names, to the letter."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.transcripts import home_with_hosts, typed

PAGE = Path(__file__).parent.parent / "docs" / "TOOLS.md"
TRANSCRIPT = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.needs("bash", "linux", "sshd", "ssh", "tar", "rsync", "git")
def test_the_page_is_what_a_terminal_shows(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with home_with_hosts(tmp_path / "home") as home:
        daemon = start_daemon(home=home, environment={"SHELL": "/bin/bash"})
        daemon.client.connection.add("web1", {"type": "ssh", "host": "web1"})
        author = {f"GIT_{who}_{what}": "me@here" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        for variable, value in {**daemon.environment, **author}.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("CONNMGR_PORT", daemon.url.rpartition(":")[2])
        directory = tmp_path / "work"
        directory.mkdir()
        text = "".join(TRANSCRIPT.findall(PAGE.read_text()))
        assert text.count("\n$ ") > 10
        assert typed(text, directory) == text
