"""docs/IDENTITY.md, verbatim, against a real daemon, a real sshd and a real pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.plugins import users
from tests.plugins.sshd import Sshd, privilege_separation
from tests.sources.stores import pass_store
from tests.transcripts import sit_down, transcripts, typed

VARIABLE = {
    r"\b(key|rotate) [0-9a-f]{4}\b": r"\1 ID",
    r"^[0-9a-f]{4}  ": "ID  ",
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": "UUID",
    r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}": "TIME",
    r"\d+(\.\d+)? (s|min|ms) ago": "AGO",
    r"AAAA[A-Za-z0-9+/]+=*": "KEY",
    r" +": " ",
}
"""What differs from run to run."""

SECOND_PART = "## Secrets from elsewhere"


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


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    with pass_store() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield environment


@pytest.mark.needs("bash", "linux", "sshd", "root")
def test_certificates_are_what_a_terminal_shows(
    web1: Sshd, start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()
    data = {"type": "ssh", "host": "127.0.0.1", "port": web1.port, "user": web1.user, "hostKeyChecking": "acceptNew"}
    daemon.client.connection.add("web1", {**data, "identity": {"file": str(web1.client_key)}})
    sit_down(daemon, monkeypatch)
    for text in transcripts("IDENTITY.md", ends=SECOND_PART):
        assert _comparable(typed(text, tmp_path)) == _comparable(text)


@pytest.mark.needs("bash", "jq", "linux", "sshd", "root", "pass", "gpg")
def test_secrets_from_elsewhere_and_the_way_back_are_what_a_terminal_shows(
    web1: Sshd,
    store: dict[str, str],
    start_daemon: StartDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    # web2 is the same sshd, by a name that only the configuration of the daemon's user has.
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    (ssh / "known_hosts").write_text(web1.known_hosts())
    config = ssh / "config"
    config.write_text(f"Host web2\n  HostName 127.0.0.1\n  Port {web1.port}\n  User {web1.user}\n")
    config.chmod(0o600)
    daemon = start_daemon(home=tmp_path / "home", environment={"SHELL": "/bin/bash", **store})
    (desk / "key").write_text(web1.client_key.read_text())
    (desk / "passphrase").write_text("four words or more\n")
    (desk / "new-passphrase").write_text("four other words or more\n")
    sit_down(daemon, monkeypatch)
    for text in transcripts("IDENTITY.md", begins=SECOND_PART):
        assert _comparable(typed(text, desk)) == _comparable(text)
