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

VARIABLE = {r"AAAA[A-Za-z0-9+/]+=*": "KEY", r" +": " "}
"""What differs from run to run."""


def _comparable(text: str) -> list[str]:
    for pattern, replacement in VARIABLE.items():
        text = re.sub(pattern, replacement, text)
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


@pytest.mark.needs("bash", "linux", "sshd", "root")
def test_the_page_is_what_a_terminal_shows(
    web1: Sshd, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()
    data = {"type": "ssh", "host": "127.0.0.1", "port": web1.port, "user": web1.user, "hostKeyChecking": "acceptNew"}
    daemon.client.connection.add("web1", {**data, "identity": {"file": str(web1.client_key)}})
    sit_down(daemon, monkeypatch)
    for text in transcripts("IDENTITY.md"):
        assert _comparable(typed(text, tmp_path)) == _comparable(text)
