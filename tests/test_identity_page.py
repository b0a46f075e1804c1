"""docs/IDENTITY.md, verbatim, against a real daemon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.transcripts import sit_down, transcripts, typed

VARIABLE = {
    r"\b(key|rotate) [0-9a-f]{4}\b": r"\1 ID",
    r"^[0-9a-f]{4}  ": "ID  ",
    r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}": "TIME",
    r"\d+(\.\d+)? (s|min|ms) ago": "AGO",
    r" +": " ",
}
"""What differs from run to run."""


def _comparable(text: str) -> list[str]:
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.needs("bash", "jq")
def test_the_page_is_what_a_terminal_shows(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=tmp_path / "home", environment={"SHELL": "/bin/bash"})
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "passphrase").write_text("four words or more\n")
    (desk / "new-passphrase").write_text("four other words or more\n")
    sit_down(daemon, monkeypatch)
    for text in transcripts("IDENTITY.md"):
        assert _comparable(typed(text, desk)) == _comparable(text)
