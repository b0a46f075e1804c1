"""docs/MANY_MACHINES.md, verbatim, against a real daemon."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.client import ROOT_CATEGORY, Client
from tests.conftest import StartDaemon
from tests.transcripts import home_with_hosts, sit_down, transcripts, typed

PLACES = {"web1": "eu", "web2": "eu", "web3": "us", "db": "us"}

VARIABLE = {r" +[\d.]+ s  ": "  … s  ", r"in [\d.]+ s: ": "in … s: ", r"\S+:\d+ refused": "… refused"}
"""What differs from run to run."""

OUTCOME = re.compile(r"^(web\d|db) .* s  ")


@pytest.fixture
def home(tmp_path: Path, closed_port: int) -> Iterator[Path]:
    """A home directory with an SSH configuration for the page's machines: all are this one, but ``db`` is down."""
    with home_with_hosts(tmp_path / "home", f"Host db\n  Port {closed_port}\n") as home:
        yield home


def _store(client: Client) -> None:
    fleet = client.category.add("fleet", ROOT_CATEGORY)
    regions = {name: client.category.add(name, fleet) for name in set(PLACES.values())}
    for name, region in PLACES.items():
        client.connection.add(name, {"type": "ssh", "host": name}, category=regions[region])


def _comparable(text: str) -> list[str]:
    """Return the lines of a transcript without variable parts, the outcomes sorted by name."""
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text)
    lines, outcomes = list[str](), list[str]()
    for line in text.splitlines():
        if OUTCOME.match(line):
            outcomes.append(line)
            continue
        lines += [*sorted(outcomes), line]
        outcomes = []
    return [*lines, *sorted(outcomes)]


@pytest.mark.needs("bash", "linux", "sshd")
def test_the_page_is_what_a_terminal_shows(
    home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=home, environment={"SHELL": "/bin/bash"})
    _store(daemon.client)
    sit_down(daemon, monkeypatch)
    for text in transcripts("MANY_MACHINES.md"):
        assert _comparable(typed(text, tmp_path)) == _comparable(text)
