"""docs/IDENTITY.md, verbatim, against a real daemon and a real sshd."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.plugins import users
from tests.plugins.sshd import Sshd, privilege_separation
from tests.transcripts import sit_down, transcripts, typed

VARIABLE = {
    r"\b(key|rotate) [0-9a-f]{4}\b": r"\1 ID",
    r"^[0-9a-f]{4}  ": "ID  ",
    r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}": "TIME",
    r"\d+(\.\d+)? (s|min|ms) ago": "AGO",
    r"AAAA[A-Za-z0-9+/]+=*": "KEY",
    r" +": " ",
}
"""What differs from run to run."""


def _comparable(text: str) -> list[str]:
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return [line.rstrip() for line in text.splitlines()]


@pytest.fixture
def web1(tmp_path: Path) -> Iterator[Sshd]:
    """A host that reads authorized_keys of its users, too, as any sshd does."""
    user = users.create()
    with privilege_separation():
        server = Sshd(user=user.name)
        server.stop()
        server.options["AuthorizedKeysFile"] = f"{server.authorized_keys} .ssh/authorized_keys"
        server.start()
        yield server
        server.close()
    users.remove(user)


@pytest.mark.needs("bash", "jq", "linux", "sshd", "root")
def test_the_page_is_what_a_terminal_shows(
    web1: Sshd, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(home=tmp_path / "home", environment={"SHELL": "/bin/bash"})
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "passphrase").write_text("four words or more\n")
    (desk / "new-passphrase").write_text("four other words or more\n")
    data = {"type": "ssh", "host": "127.0.0.1", "port": web1.port, "user": web1.user, "hostKeyChecking": "acceptNew"}
    daemon.client.connection.add("web1", {**data, "identity": {"file": str(web1.client_key)}})
    sit_down(daemon, monkeypatch)
    for text in transcripts("IDENTITY.md"):
        assert _comparable(typed(text, desk)) == _comparable(text)
