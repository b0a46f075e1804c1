"""The runs of docs/FLEETS.md, verbatim, against a real daemon."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.client import ROOT_CATEGORY
from tests.conftest import StartDaemon
from tests.transcripts import DOCS, TRANSCRIPT, home_with_hosts, sit_down, typed

HOSTS = ("web1", "web2", "web3", "db")
RUNS = (DOCS / "FLEETS.md").read_text().partition("\n## Runs\n")[2].partition("\n## ")[0]

VARIABLE = {
    r"in [\d.]+ s\b": "in … s",
    r"\d+ (s|min) ago": "… ago",
    r"[\d.]+ targets a second": "… targets a second",
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": "UUID",
    r"\S+:\d+ refused": "… refused",
}
"""What differs from run to run."""

PROGRESS = re.compile(r"[0-9a-f]{8} (pending|running|waiting|stopping), wave ")


def _comparable(text: str) -> list[str]:
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text)
    return [line for line in text.splitlines() if not PROGRESS.match(line)]


@pytest.fixture
def home(tmp_path: Path, closed_port: int) -> Iterator[Path]:
    """A home directory with an SSH configuration for the page's machines: all are this one, but ``db`` is down."""
    with home_with_hosts(tmp_path / "home", f"Host db\n  Port {closed_port}\n") as home:
        yield home


@pytest.mark.needs("bash", "linux", "sshd")
def test_the_runs_of_the_page_are_what_a_terminal_shows(
    home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=home, environment={"SHELL": "/bin/bash"})
    fleet = daemon.client.category.add("fleet", ROOT_CATEGORY)
    for name in HOSTS:
        daemon.client.connection.add(name, {"type": "ssh", "host": name}, category=fleet)
    sit_down(daemon, monkeypatch)
    blocks = TRANSCRIPT.findall(RUNS)
    assert len(blocks) == 2
    for text in blocks:
        assert _comparable(typed(text, tmp_path)) == _comparable(text)
