"""docs/INSTALL.md, verbatim, against the program, with a systemctl that always succeeds."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.operation.test_service import SYSTEMCTL
from tests.transcripts import typed

PAGE = Path(__file__).parent.parent / "docs" / "INSTALL.md"
TRANSCRIPT = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.needs("bash", "linux")
def test_the_page_is_what_a_terminal_shows(start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = start_daemon(environment={"SHELL": "/bin/bash"})
    programs = daemon.home / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(SYSTEMCTL)
    (programs / "systemctl").chmod(0o700)
    for variable, value in daemon.environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]))
    running, service = TRANSCRIPT.findall(PAGE.read_text())
    assert typed(running, daemon.home) == running
    daemon.stop()
    shown = typed(service, daemon.home).replace(daemon.environment["XDG_CONFIG_HOME"], "~/.config")
    assert shown == service
