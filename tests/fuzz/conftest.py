"""The length of a run, its time limit, and the count of examples at its end; what the fuzzers of SSH need."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from connmgr_ssh import Ssh
from connmgr_ssh import config as ssh_config
from tests.fuzz import rounds

SHRINKING_SECONDS = 600.0
"""How much longer than asked a fuzzer may take: the last round, and the search for a smaller failing example."""

TRIED = "examples tried"


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The exceptions that threads did not catch; without a home directory and an agent of the tester."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ssh_config, "SYSTEM", tmp_path / "etc")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    found: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", found.append)
    return found


@pytest.fixture
def ssh(tmp_path: Path) -> Ssh:
    """The connection type for SSH, with an empty data directory."""
    kind = Ssh()
    (tmp_path / "data").mkdir(mode=0o700)
    kind.prepare(tmp_path / "data")
    return kind


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rounds.seconds = config.getoption("--fuzz-seconds")
    for item in items:
        if rounds.seconds and item.nodeid.startswith("tests/fuzz/"):
            item.add_marker(pytest.mark.timeout(rounds.seconds + SHRINKING_SECONDS))


def pytest_runtest_teardown(item: pytest.Item) -> None:
    # A property of the report also reaches the summary from the workers of xdist.
    item.user_properties.append((TRIED, rounds.tried.pop("examples", 0)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("--fuzz-seconds"):
        return
    counts: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":
                counts[report.nodeid] += dict(report.user_properties).get(TRIED, 0)
    terminalreporter.section("examples")
    for name, count in counts.items():
        terminalreporter.line(f"{count:9} {name}")
