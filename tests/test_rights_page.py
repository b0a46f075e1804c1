"""docs/RIGHTS.md, verbatim, against a real daemon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connmgr.rights.scopes import SCOPES
from tests.conftest import StartDaemon
from tests.transcripts import sit_down, transcripts, typed

PAGE = Path(__file__).parent.parent / "docs" / "RIGHTS.md"
HOSTS = ("web1", "web2", "db")

VARIABLE = {
    r'"sid-[^"]+"': "SID",
    r'\b(host|user|directory) "[^"]+"': r'\1 "…"',
    r"\b[0-9a-f]{8}\b(-[0-9a-f-]{27})?": "ID",
    r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|\+\d{2}:\d{2})?": "TIME",
    # Uses are stored in the vault every 30 seconds.
    r"\bTIME +(TIME|-) ": "TIME USED ",
    r"\nlast used +TIME(?=\n)": "",
    r"\b\d+ entries, 1 to \d+": "N entries",
    # The end of the log is anchored a second after an entry.
    r"\nThe vault was told of the log's end \d+ entries ago, as in the second after a request, or after a crash\.": "",
    r"\d+(\.\d+)? ?(s|m|ms) ago": "AGO",
    r" +": " ",
}
"""What differs from run to run."""


def _comparable(text: str) -> list[str]:
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text)
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.needs("bash", "linux", "sshd")
def test_the_page_is_what_a_terminal_shows(
    ssh_home: Path, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=ssh_home, environment={"SHELL": "/bin/bash"})
    for name in HOSTS:
        daemon.client.connection.add(name, {"type": "ssh", "host": name})
    sit_down(daemon, monkeypatch)
    for text in transcripts("RIGHTS.md"):
        assert _comparable(typed(text, tmp_path)) == _comparable(text)


def test_the_page_names_every_scope() -> None:
    page = PAGE.read_text()
    assert [scope for scope in SCOPES if f"| `{scope}` |" not in page] == []
