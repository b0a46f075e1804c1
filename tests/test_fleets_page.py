"""docs/FLEETS.md but for its runs: its transcripts verbatim, against a real daemon."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.transcripts import DOCS, TRANSCRIPT, home_with_hosts, sit_down, typed

BEFORE, _, REST = (DOCS / "FLEETS.md").read_text().partition("\n## Runs\n")
TEXT = BEFORE + REST[REST.find("\n## ") :]

VARIABLE = {r"\d+ s ago": "0 s ago", r"in [\d.]+ s: ": "in … s: ", r"^-+$": "---"}
"""What differs from run to run."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home directory with an SSH configuration for the page's machines, which are all this one."""
    with home_with_hosts(tmp_path / "home") as home:
        yield home


def comparable(text: str) -> str:
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


@pytest.mark.needs("bash", "linux", "sshd")
def test_the_page_is_what_a_terminal_shows(
    home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=home, environment={"SHELL": "/bin/bash"})
    for name in ("web1", "web2", "db1"):
        daemon.client.connection.add(name, {"type": "ssh", "host": name})
    sit_down(daemon, monkeypatch)
    for text in TRANSCRIPT.findall(TEXT):
        assert comparable(typed(text, tmp_path)) == comparable(text)
