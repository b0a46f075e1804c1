"""docs/IDENTITY.md, verbatim, against a real daemon."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.sources.stores import pass_store
from tests.transcripts import sit_down, transcripts, typed

VARIABLE = {
    r"\b(key|rotate) [0-9a-f]{4}\b": r"\1 ID",
    r"^[0-9a-f]{4}  ": "ID  ",
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": "UUID",
    r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}": "TIME",
    r"\d+(\.\d+)? (s|min|ms) ago": "AGO",
    r" +": " ",
}
"""What differs from run to run."""


def _comparable(text: str) -> list[str]:
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return [line.rstrip() for line in text.splitlines()]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    with pass_store() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield environment


@pytest.mark.needs("bash", "jq", "linux", "sshd", "pass", "gpg")
def test_the_page_is_what_a_terminal_shows(
    ssh_home: Path,
    store: dict[str, str],
    start_daemon: StartDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    # The key is in pass, and nowhere else.
    [key] = re.findall(r"IdentityFile (\S+)", (ssh_home / ".ssh" / "config").read_text())
    shutil.move(key, desk / "key")
    daemon = start_daemon(home=ssh_home, environment={"SHELL": "/bin/bash", **store})
    (desk / "passphrase").write_text("four words or more\n")
    (desk / "new-passphrase").write_text("four other words or more\n")
    sit_down(daemon, monkeypatch)
    for text in transcripts("IDENTITY.md"):
        assert _comparable(typed(text, desk)) == _comparable(text)
