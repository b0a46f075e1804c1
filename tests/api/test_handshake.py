"""The handshake, and the validity of session tokens."""

from __future__ import annotations

import base64
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from connmgr.api.auth import MAX_CALLERS, Tickets, Tokens
from connmgr.client import Client
from connmgr.errors import InvalidToken
from connmgr.secrets.loans import TIME_OVER, Loan
from connmgr.secrets.principals import new_principal
from tests.api.wire import send, token_of
from tests.cli.program import run
from tests.clock import Clock
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually_equal

CLIENT = {"type": "api", "name": "test"}


def handshake(daemon: Daemon, auth: Any, client: Any = CLIENT) -> Any:
    return send(daemon.url, "/handshake", {"auth": auth, "client": client})


@pytest.mark.parametrize("kind", ["local", "Local", "LOCAL"])
@pytest.mark.parametrize("around", ["{}", "  {}\n", "\t{}\r\n"])
def test_the_auth_file_lets_in(daemon: Daemon, kind: str, around: str) -> None:
    content = around.format(daemon.auth_file.read_text().strip())
    answer = handshake(daemon, {"type": kind, "authFileContent": content}, {"type": "Api", "name": "peer"})
    assert answer.status == 200
    assert set(answer.json) == {"sessionToken"}
    assert len(base64.urlsafe_b64decode(answer.json["sessionToken"] + "=")) == 32


def test_tokens_differ(daemon: Daemon) -> None:
    assert len({token_of(daemon) for _ in range(5)}) == 5


def api_key(daemon: Daemon, *options: str) -> str:
    done = run("api-key", *options, environment=daemon.environment)
    assert done.code == 0, done.errors
    return done.output.strip()


def test_the_api_key_lets_in_and_a_rotated_one_at_once(own_daemon: Daemon) -> None:
    assert handshake(own_daemon, {"type": "apiKey", "key": "None"}).status == 400
    first = api_key(own_daemon)
    assert api_key(own_daemon) == first
    assert handshake(own_daemon, {"type": "ApiKey", "key": f" {first}\n"}).status == 200
    second = api_key(own_daemon, "--rotate")
    assert second != first
    assert handshake(own_daemon, {"type": "apikey", "key": second}).status == 200
    assert handshake(own_daemon, {"type": "apikey", "key": first}).code == "invalid_credential"


def test_an_api_key_that_others_can_read_is_not_accepted(own_daemon: Daemon) -> None:
    key = api_key(own_daemon)
    (own_daemon.data_dir / "api.key").chmod(0o644)
    answer = handshake(own_daemon, {"type": "apiKey", "key": key})
    assert answer.code == "invalid_credential"
    assert "api.key" not in answer.message
    assert "chmod 600" in own_daemon.stderr()


@pytest.mark.parametrize("credential", ["", " ", "wrong", "\u00e4", "\ud800", "connmgr-"])
def test_a_wrong_credential_is_refused(daemon: Daemon, credential: str) -> None:
    answer = handshake(daemon, {"type": "local", "authFileContent": credential})
    assert answer.status == 400
    assert answer.code in {"invalid_credential", "invalid_request"}


@pytest.mark.parametrize("blank", ["", " ", "\n", "\t\n"])
def test_a_blank_key_or_token_lets_nobody_in(own_daemon: Daemon, blank: str) -> None:
    api_key(own_daemon)
    (own_daemon.data_dir / "api.key").write_text(blank)
    for auth in (
        {"type": "apiKey", "key": blank},
        {"type": "apiKey", "key": "None"},
        {"type": "token", "token": blank},
        {"type": "local", "authFileContent": blank},
    ):
        assert handshake(own_daemon, auth).code in {"invalid_credential", "invalid_token", "invalid_request"}
    header = {"Authorization": f"Bearer {blank.strip()}"}
    assert send(own_daemon.url, "/daemon/version", {}, header).code == "not_authenticated"
    assert send(own_daemon.url, "/metrics", None, header, "GET").code == "not_authenticated"


def test_a_refusal_names_what_was_sent(daemon: Daemon) -> None:
    token = "cmgr_" + "x" * 43
    unknown = handshake(daemon, {"type": "token", "token": token})
    assert (unknown.code, unknown.message.partition(":")[0]) == ("invalid_token", "Unknown token")
    sent_as_key = handshake(daemon, {"type": "apiKey", "key": token})
    assert (sent_as_key.code, "This is a token" in sent_as_key.message) == ("invalid_credential", True)
    bearer = send(daemon.url, "/daemon/version", {}, {"Authorization": f"Bearer {token}"})
    assert (bearer.code, bearer.message.partition(":")[0]) == ("invalid_token", "Unknown token")
    session = send(daemon.url, "/daemon/version", {}, {"Authorization": "Bearer x"})
    assert (session.code, "session token" in session.message) == ("invalid_token", True)


@pytest.mark.parametrize(
    ("auth", "client", "named"),
    [
        ({}, CLIENT, "auth.type"),
        ({"type": "other"}, CLIENT, "auth.type"),
        ({"type": "local"}, CLIENT, "auth.authFileContent"),
        ({"type": "local", "authFileContent": 1}, CLIENT, "auth.authFileContent"),
        ({"type": "apiKey"}, CLIENT, "auth.key"),
        ({"type": "apiKey", "key": "k", "authFileContent": "x"}, CLIENT, "auth.authFileContent"),
        ({"type": "apiKey", "key": "k", "more": "x"}, CLIENT, "auth.more"),
        ({"type": "apiKey", "key": "k"}, {}, "client.name"),
        ({"type": "apiKey", "key": "k"}, {"type": "web", "name": "n"}, "client.type"),
        ({"type": "apiKey", "key": "k"}, "api", "client"),
        ([], CLIENT, "auth"),
    ],
)
def test_a_field_that_is_wrong_is_named(daemon: Daemon, auth: Any, client: Any, named: str) -> None:
    answer = handshake(daemon, auth, client)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert f"{named}:" in answer.message


def test_without_a_token_401_and_with_a_wrong_one_403(daemon: Daemon) -> None:
    missing = send(daemon.url, "/daemon/version", {})
    assert (missing.status, missing.code) == (401, "not_authenticated")
    assert missing.headers["Www-Authenticate"] == "Bearer"
    for header in ("Basic YTpi", "Bearer", "Bearer "):
        assert send(daemon.url, "/daemon/version", {}, {"Authorization": header}).status == 401
    for header in ("Bearer wrong", f"Bearer {token_of(daemon)}x", f"Bearer {token_of(daemon)}, Bearer x"):
        wrong = send(daemon.url, "/daemon/version", {}, {"Authorization": header})
        assert (wrong.status, wrong.code) == (403, "invalid_token")


def test_every_endpoint_but_the_handshake_and_the_login_of_pages_needs_a_token(daemon: Daemon) -> None:
    paths = send(daemon.url, "/openapi.json", method="GET").json["paths"]
    assert len(paths) > 15
    for path in {path for path, methods in paths.items() if "post" in methods} - {"/handshake", "/web/login"}:
        assert (path, send(daemon.url, path, {}).status) == (path, 401)


@pytest.fixture
def clock(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr("connmgr.api.auth.boot_time", clock)
    return clock


def test_a_token_expires_when_it_is_idle_and_not_while_it_is_used(clock: Clock) -> None:
    tokens = Tokens(ttl=60)
    idle, used = tokens.issue("idle"), tokens.issue("used")
    for _ in range(3):
        clock.now += 50
        assert tokens.find(f"Bearer {used}").name == "used"
    with pytest.raises(InvalidToken):
        tokens.find(f"Bearer {idle}")
    clock.now += 61
    assert not tokens.sender_of(f"Bearer {used}")
    with pytest.raises(InvalidToken):
        tokens.find(f"Bearer {used}")


def test_what_an_idle_session_unlocked_is_locked_and_not_while_a_request_runs(clock: Clock) -> None:
    tokens = Tokens(ttl=0, unlock_ttl=60)
    token = tokens.issue("n")
    caller = tokens.find(f"Bearer {token}")
    caller.access.grant(*new_principal("alice", bytes(32)))
    tokens.begin(caller)
    clock.now += 3600
    assert tokens.find(f"Bearer {token}").access.principal, "a request that runs for long loses the user that it needs"
    tokens.end(caller)
    clock.now += 59
    assert tokens.find(f"Bearer {token}").access.principal
    clock.now += 61
    assert tokens.find(f"Bearer {token}").access.principal is None, "an idle session keeps its vault user unlocked"


@pytest.mark.needs("linux")
def test_the_hours_in_which_the_machine_sleeps_are_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    read, slept = time.clock_gettime, 0.0
    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: read(clock) + (slept if clock == time.CLOCK_BOOTTIME else 0)
    )
    tokens, tickets = Tokens(ttl=86400, unlock_ttl=3600, page_ttl=3600), Tickets()
    token, page = tokens.issue("n"), tokens.issue("page", is_page=True)
    caller = tokens.find(f"Bearer {token}")
    alice, private = new_principal("alice", bytes(32))
    caller.access.grant(alice, private)
    ticket = tickets.issue("terminal", caller)
    began = datetime.now(timezone.utc)
    loan = Loan("t", "ci", ["t"], caller.access, "s", alice, began + timedelta(hours=2), began)
    assert (loan.over, loan.seconds > 7000) == (None, True)
    slept = 8 * 3600.0
    assert loan.over == TIME_OVER
    assert tokens.find(f"Bearer {token}").access.principal is None, "a night's sleep left the vault user unlocked"
    with pytest.raises(InvalidToken):
        tokens.find(f"Bearer {page}")
    with pytest.raises(InvalidToken):
        tickets.redeem(ticket, "terminal")


def test_a_session_that_was_left_ends_by_itself_and_its_client_begins_another(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--session-ttl", "1", "--unlock-ttl", "1")
    passphrase = "alice's long passphrase"
    with (
        Client(daemon.url, auth_file=daemon.auth_file) as left,
        Client(daemon.url, auth_file=daemon.auth_file) as other,
    ):
        left.post("/vault/user/add", user="alice", passphrase=passphrase)
        left.post("/vault/unlock", user="alice", passphrase=passphrase)
        eventually_equal(
            lambda: other.post("/daemon/status")["clients"], 1, "the token of a session that was left stays valid"
        )
        status = left.post("/vault/status")
        assert (status["hasUsers"], status["user"]) == (True, None)


def test_without_a_limit_a_token_lives_as_long_as_the_daemon(clock: Clock) -> None:
    tokens = Tokens(ttl=0)
    token = tokens.issue("n")
    clock.now += 10**9
    assert tokens.find(f"Bearer {token}")
    tokens.close()
    with pytest.raises(InvalidToken):
        tokens.find(f"Bearer {token}")


def test_beyond_the_limit_the_least_recently_used_token_is_dropped(clock: Clock) -> None:
    tokens = Tokens(ttl=0)
    first, second = tokens.issue("first"), tokens.issue("second")
    tokens.find(f"Bearer {first}")
    for _ in range(MAX_CALLERS - 1):
        tokens.issue("more")
    assert tokens.find(f"Bearer {first}")
    with pytest.raises(InvalidToken):
        tokens.find(f"Bearer {second}")


def test_guessing_is_slowed_down_and_the_right_credential_still_passes(own_daemon: Daemon) -> None:
    statuses = [handshake(own_daemon, {"type": "local", "authFileContent": f"guess {n}"}).status for n in range(65)]
    assert statuses[:60] == [400] * 60
    assert statuses[60:] == [503] * 5
    assert token_of(own_daemon)
    assert own_daemon.stderr().count("failed handshakes") == 1


def test_without_authentication_a_token_is_not_needed_and_browsers_stay_out(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--no-auth")
    assert send(daemon.url, "/daemon/version", {}).status == 200
    assert send(daemon.url, "/daemon/version", {}, {"Authorization": "Bearer wrong"}).status == 403
    for header in ({"Origin": daemon.url}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        answer = send(daemon.url, "/daemon/version", {}, header)
        assert (answer.status, answer.code) == (403, "forbidden_origin")
    assert send(daemon.url, "/", method="GET", headers={"Sec-Fetch-Site": "none"}).status == 200
    assert "Authentication is switched off" in daemon.stderr()
