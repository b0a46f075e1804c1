"""What lasts has shares too: a token, with all that were made with it, leaves the owner some of everything."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from connmgr.api import auth
from connmgr.api.auth import Tickets, Tokens
from connmgr.client import Client
from connmgr.errors import TemporaryLimit
from connmgr.secrets.principals import Access
from connmgr.shell.shells import MAX_SHELLS
from connmgr.vault.unstored import TemporaryConnections
from tests.api.wire import LOCAL, send
from tests.conftest import StartDaemon
from tests.rights.wire import Holder, create

SCOPES = ("shell.any", "job", "terminal", "fs.write", "token.create")
SLEEP = {"connection": LOCAL, "command": "exec sleep 1000"}


class AnyCaller(auth.Caller):
    """A caller whose share is chosen."""

    chosen: str | None = None

    @property
    def holder(self) -> str | None:
        return self.chosen


def caller(holder: str | None) -> AnyCaller:
    made = AnyCaller("any", Access(), 0.0)
    made.chosen = holder
    return made


def taken(holder: Holder, path: str, **body: Any) -> int:
    """Send a request until it is refused for its limit; return how often it succeeded."""
    for number in range(100):
        answer = holder.send(
            path, **body, **({"session": f"s{holder.id[:8]}-{number}"} if path == "/shell/start" else {})
        )
        if answer.status != 200:
            assert answer.code in ("session_limit", "terminal_limit", "job_limit"), answer.json
            assert "of the" in answer.json.get("error", answer.json)["message"].lower()
            return number
    raise AssertionError("no limit")


@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        ("/shell/start", {"connection": LOCAL}, MAX_SHELLS),
        ("/terminal/open", SLEEP, 8),
        ("/job/start", SLEEP, 8),
    ],
)
def test_tokens_leave_the_owner_some_of_a_connection(
    start_daemon: StartDaemon, path: str, body: dict[str, Any], most: int
) -> None:
    daemon = start_daemon("--max-connection-jobs", "8", "--max-connection-terminals", "8")
    daemon.client.post("/shell/start", connection=LOCAL)
    one, together = most * 5 // 8, most * 3 // 4
    token, other = create(daemon, *SCOPES), create(daemon, *SCOPES)
    assert taken(token, path, **body) == one
    if path != "/job/start":
        assert taken(token.create(*SCOPES[:-1], expires=300), path, **body) == 0, "those made with it have its share"
    assert taken(other, path, **body) == together - one
    before = 1 if path == "/shell/start" else 0
    for number in range(most - together - before):
        extra = {"session": f"owner{number}"} if path == "/shell/start" else {}
        daemon.client.post(path, **body, **extra)


def test_jobs_that_a_token_starts_at_once_are_counted_together(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--max-connection-jobs", "8")
    daemon.client.post("/shell/start", connection=LOCAL)
    token = create(daemon, *SCOPES)
    with ThreadPoolExecutor(16) as pool:
        answers = [one.status for one in pool.map(lambda _: token.send("/job/start", **SLEEP), range(16))]
    assert answers.count(200) <= 5
    daemon.client.post("/job/start", **SLEEP)


def blob(url: str, secret: str, size: int) -> int:
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/octet-stream"}
    return send(url, "/fs/blob", b"x" * size, headers).status


def test_tokens_leave_the_owner_some_of_the_room_for_blobs(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--blob-quota", "800000")
    token = create(daemon, *SCOPES)
    assert [blob(daemon.url, token.secret, 100_000) for _ in range(6)] == [200] * 5 + [400]
    assert blob(daemon.url, token.create("fs.write", expires=300).secret, 100_000) == 400
    assert [blob(daemon.url, create(daemon, "fs.write").secret, 100_000) for _ in range(2)] == [200, 400]
    with Client(daemon.url, auth_file=daemon.auth_file) as owner:
        owner.post("/shell/start", connection=LOCAL)
        owner.fs.upload(LOCAL, b"x" * 200_000, str(daemon.home / "written"))


def test_temporary_connections_have_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connmgr.vault.unstored.MAX_TEMPORARY", 8)
    kept = TemporaryConnections()

    def add(share: str | None) -> None:
        kept.add("any", "test", {}, fingerprint=b"f", same=lambda _: False, share=share)

    for share, number in (("a", 5), ("b", 1)):
        for _ in range(number):
            add(share)
        with pytest.raises(TemporaryLimit, match="share"):
            add(share)
    for _ in range(2):
        add(None)
    with pytest.raises(TemporaryLimit, match="There are 8"):
        add(None)


def test_tickets_of_a_token_displace_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connmgr.api.auth.MAX_TICKETS", 3)
    tickets, owner = Tickets(), caller(None)
    ticket = tickets.issue("terminal", owner)
    for _ in range(5):
        tickets.issue("terminal", caller("token"))
    assert tickets.redeem(ticket, "terminal") is owner


def test_sessions_of_tokens_displace_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_CALLERS", 3)
    tokens = Tokens(ttl=0.0)
    token = tokens.issue("owner")
    owner = tokens.find(f"Bearer {token}")
    for number in range(5):
        tokens._keep(f"secret{number}", caller("token"))
    assert tokens.find(f"Bearer {token}") is owner
