"""Tokens: created by the owner and by tokens, used, counted, revoked and renewed."""

from __future__ import annotations

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import ClientError
from connmgr.contract.token import TokenCreateRequest
from connmgr.errors import TokenExpired
from connmgr.rights.scopes import SCOPES
from connmgr.rights.tokens import Grants
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault.documents import Documents
from tests.api.wire import LOCAL, NOBODY, address, send
from tests.clock import Clock
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.rights.wire import Holder, create
from tests.streams.wire import Stream
from tests.vault.people import new_directory, opened

FAR = datetime(2200, 1, 1, tzinfo=timezone.utc).isoformat()


def handshake(holder: Holder) -> Any:
    auth = {"type": "token", "token": holder.secret}
    return send(holder.url, "/handshake", {"auth": auth, "client": {"type": "api", "name": "test"}})


def state(daemon: Daemon, holder: Holder) -> str:
    [found] = [one["state"] for one in daemon.client.post("/token/query")["tokens"] if one["id"] == holder.id]
    return str(found)


def test_a_token_s_text_is_shown_once_and_not_stored(daemon: Daemon) -> None:
    made = daemon.client.post("/token/create", name="ci", expires=60, scopes=["shell.argv"], connections=["web*"])
    assert made["token"].startswith("cmgr_")
    assert len(made["token"]) == 48
    listed = next(one for one in daemon.client.post("/token/query")["tokens"] if one["id"] == made["id"])
    assert listed == {name: value for name, value in made.items() if name != "token"}
    secret = made["token"].encode()
    kept = [path for path in daemon.data_dir.rglob("*") if path.is_file() and secret in path.read_bytes()]
    assert not kept, "the token is kept in plain"
    assert made["token"] not in daemon.stderr()


def test_a_token_works_as_bearer_and_in_the_handshake(clean_daemon: Daemon) -> None:
    holder = create(clean_daemon, "connection.read")
    assert holder.ok("/connection/query", categoryFilter="*", connectionFilter="*", typeFilter="*")["found"] == [LOCAL]
    session = {"Authorization": f"Bearer {handshake(holder).json['sessionToken']}"}
    body = {"connection": LOCAL, "command": "true"}
    assert send(clean_daemon.url, "/shell/exec", body, session).code == "scope_denied"
    clean_daemon.client.post("/token/revoke", id=holder.id)
    assert send(clean_daemon.url, "/connection/info", {"connections": [LOCAL]}, session).code == "token_revoked"
    assert handshake(holder).code == "token_revoked"


@pytest.mark.parametrize(
    ("members", "place"),
    [
        pytest.param({"expires": 0}, "expires", id="no time"),
        pytest.param({"expires": -5}, "expires", id="in the past"),
        pytest.param({"expires": 91 * 86400}, "expires", id="too long"),
        pytest.param({"expires": FAR}, "expires", id="a far time"),
        pytest.param({"expires": "tomorrow"}, "expires", id="no time's form"),
        pytest.param({"expires": "2026-12-01T00:00:00"}, "expires", id="no zone"),
        pytest.param({"expires": True}, "expires", id="a boolean"),
        pytest.param({"expires": 1e400}, "expires", id="infinity"),
        pytest.param({"expires": None}, "expires", id="null"),
        pytest.param({"scopes": ["shell"]}, "scopes[0]", id="unknown scope"),
        pytest.param({"scopes": "job"}, "scopes", id="no list"),
        pytest.param({"connections": ["web*", "[x"]}, "connections[1]", id="open bracket"),
        pytest.param({"categories": ["{a"]}, "categories[0]", id="open brace"),
        pytest.param({"from": ["10.0.0.0/8", "host"]}, "from[1]", id="no address"),
        pytest.param({"from": ["10.0.0.1/8"]}, "from[0]", id="bits of a host"),
        pytest.param({"rules": [{"effect": "allow"}]}, "rules[0]", id="a rule about nothing"),
        pytest.param({"rules": [{"effect": "allow", "argv": ["/x", {"re": "("}]}]}, "rules[0].argv[1]", id="no regex"),
        pytest.param({"rules": [{"effect": "allow", "text": "rm"}]}, "rules[0]", id="a text that allows"),
        pytest.param({"rules": "all"}, "rules", id="rules that are no list"),
        pytest.param({"quotaPerDay": 0}, "quotaPerDay", id="no quota"),
        pytest.param({"maxConcurrent": 0}, "maxConcurrent", id="none at once"),
        pytest.param({"owner": True}, "owner", id="unknown member"),
        pytest.param({"name": ""}, "name", id="no name"),
    ],
)
def test_a_malformed_token_request_is_refused_with_its_place(
    daemon: Daemon, members: dict[str, Any], place: str
) -> None:
    before = len(daemon.client.post("/token/query")["tokens"])
    body = {"name": "x", "scopes": ["job"], "expires": 60, **members}
    with pytest.raises(ClientError) as error:
        daemon.client.post("/token/create", **body)
    assert error.value.code == "invalid_request"
    assert place in error.value.message
    assert len(daemon.client.post("/token/query")["tokens"]) == before


def test_a_token_without_an_end_is_not_created(daemon: Daemon) -> None:
    with pytest.raises(ClientError, match="expires"):
        daemon.client.post("/token/create", name="x", scopes=["job"])


def test_an_expired_token_is_refused_in_every_use(daemon: Daemon) -> None:
    holder = create(daemon, "connection.read", expires=0.6)
    session = {"Authorization": f"Bearer {handshake(holder).json['sessionToken']}"}
    eventually(
        lambda: holder.send("/daemon/version").status, "the token does not expire", holds=lambda status: status != 200
    )
    assert holder.refused("/connection/info", connections=[LOCAL]) == "token_expired"
    assert send(daemon.url, "/daemon/version", {}, session).code == "token_expired"
    assert state(daemon, holder) == "expired"
    daemon.client.post("/token/renew", id=holder.id, expires=60)
    assert holder.ok("/connection/info", connections=[LOCAL])


def test_a_clock_that_is_set_back_makes_no_token_last_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wall, running = Clock(), Clock()

    def now() -> datetime:
        return datetime.fromtimestamp(wall.now, timezone.utc)

    wall.now = time.time()
    monkeypatch.setattr(Documents, "now", lambda _: now())
    monkeypatch.setattr("connmgr.vault.documents.boot_time", running)

    def passes(seconds: float) -> None:
        wall.now += seconds
        running.now += seconds

    def is_valid() -> bool:
        try:
            grants.in_use.begin(live, None)
        except TokenExpired:
            return False
        grants.in_use.end(live)
        return True

    with opened(new_directory(tmp_path)) as vault:
        key = VaultKey(bytes(32))
        grants = Grants(Documents(vault.database, key, "token"), bytes(32), lambda *_: None)
        try:
            request = TokenCreateRequest(name="t", scopes=["connection.read"], expires=now() + timedelta(seconds=60))
            _, document, _ = grants.create(request, None)
            live = grants.in_use.keep(document)
            assert is_valid()
            # The clock is ahead for a moment, and set right.
            wall.now += 3600
            assert not is_valid()
            wall.now -= 3600
            assert is_valid()
            passes(50)
            wall.now -= 18000
            assert is_valid()
            passes(10)
            assert not is_valid()
            grants.renew(document.id, now() + timedelta(seconds=60), None)
            grants.in_use.read_those_of(document.id)
            assert is_valid()
        finally:
            grants.in_use.close()


def test_a_renewed_token_lasts_as_long_as_the_first_time(daemon: Daemon) -> None:
    holder = create(daemon, "connection.read", expires=1000)
    daemon.client.post("/token/renew", id=holder.id, expires=5000)
    renewed = daemon.client.post("/token/renew", id=holder.id)
    left = datetime.fromisoformat(renewed["expires"].replace("Z", "+00:00")) - datetime.now(timezone.utc)
    assert 900 < left.total_seconds() < 1001


def test_an_unknown_token_is_not_valid(daemon: Daemon) -> None:
    for secret in ("cmgr_", "cmgr_" + "A" * 43, "cmgr_\u00fc", "cmgr_" + "A" * 5000):
        answer = send(
            daemon.url, "/daemon/version", {}, {"Authorization": f"Bearer {secret}".encode().decode("latin-1")}
        )
        assert (answer.status, answer.code) == (403, "invalid_token")
    assert daemon.running


def test_a_token_creates_only_narrower_ones(daemon: Daemon) -> None:
    parent = create(daemon, "token.create", "connection.read", "shell.argv", connections=["local*"], expires=600)
    expires = (datetime.now(timezone.utc) + timedelta(seconds=900)).isoformat()
    for wider in ({"scopes": ["shell.any"]}, {"scopes": ["connection.read", "job"]}, {"expires": expires}):
        members = {"name": "wider", "expires": 60, "scopes": ["connection.read"], **wider}
        assert parent.refused("/token/create", **members) == "scope_denied"
    # Wider filters do not widen the sight.
    child = parent.create("connection.read", connections=["*"])
    daemon.client.post("/connection/add", name="elsewhere", data={"type": "ssh", "host": "h"}, validate=False)
    everything = {"categoryFilter": "*", "connectionFilter": "*", "typeFilter": "*"}
    assert child.ok("/connection/query", **everything)["found"] == [LOCAL]
    assert [one["id"] for one in parent.ok("/token/query")["tokens"]] == [child.id]
    assert child.refused("/token/query") == "scope_denied"
    daemon.client.post("/token/revoke", id=parent.id)
    assert child.refused("/connection/query", **everything) == "token_revoked"
    assert state(daemon, child) == "revoked"


def test_a_token_revokes_only_tokens_below_it(daemon: Daemon) -> None:
    parent, other = create(daemon, "token.create", "job"), create(daemon, "token.create", "job")
    child = parent.create("job")
    for id in (parent.id, other.id, NOBODY):
        assert parent.refused("/token/revoke", id=id) == "unknown_token"
        assert parent.refused("/token/renew", id=id, expires=60) == "unknown_token"
    assert other.refused("/token/revoke", id=child.id) == "unknown_token"
    parent.ok("/token/renew", id=child.id, expires=60)
    parent.ok("/token/revoke", id=child.id)
    assert parent.refused("/token/renew", id=child.id, expires=60) == "token_revoked"


def test_a_quota_is_per_day_and_counts_for_the_tokens_above(daemon: Daemon) -> None:
    parent = create(daemon, "token.create", "connection.read", quotaPerDay=5)
    child = parent.create("connection.read")
    for _ in range(2):
        parent.ok("/daemon/version")
        child.ok("/daemon/version")
    answer = child.send("/daemon/version")
    assert (answer.status, answer.code) == (429, "quota_exceeded")
    assert parent.refused("/daemon/version") == "quota_exceeded"


def test_a_quota_survives_a_restart(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    holder = create(daemon, "connection.read", quotaPerDay=3)
    holder.ok("/daemon/version")
    holder.ok("/daemon/version")
    daemon.stop()
    again = start_daemon(home=daemon.home)
    holder = holder._replace(url=again.url)
    holder.ok("/daemon/version")
    assert holder.refused("/daemon/version") == "quota_exceeded"


def test_simultaneous_requests_are_limited(daemon: Daemon) -> None:
    holder = create(daemon, "shell.any", maxConcurrent=1)
    holder.ok("/shell/start", connection=LOCAL)
    begun, go_on = daemon.home / "begun", daemon.home / "go-on"
    command = f"touch {begun}; while [ ! -e {go_on} ]; do sleep 0.02; done"
    running = threading.Thread(
        target=holder.ok, args=("/shell/exec",), kwargs={"connection": LOCAL, "command": command}
    )
    running.start()
    try:
        eventually(begun.exists, "the command does not begin")
        answer = holder.send("/daemon/version")
        assert (answer.status, answer.code) == (429, "quota_exceeded")
    finally:
        go_on.touch()
        running.join(30)
    holder.ok("/daemon/version")


@pytest.mark.parametrize(("networks", "welcome"), [(["127.0.0.0/8"], True), (["10.0.0.0/8", "::1"], False)])
def test_a_token_is_accepted_only_from_its_networks(daemon: Daemon, networks: list[str], welcome: bool) -> None:
    holder = create(daemon, "connection.read", **{"from": networks})
    assert holder.send("/daemon/version").status == (200 if welcome else 403)
    assert handshake(holder).status == (200 if welcome else 403)


def test_a_revocation_ends_what_runs(clean_daemon: Daemon) -> None:
    holder = create(clean_daemon, "shell.any", "job", "terminal", "connection.read")
    holder.ok("/shell/start", connection=LOCAL)
    terminal = holder.ok("/terminal/open", connection=LOCAL, command="sleep 600")["terminal"]
    job = holder.ok("/job/start", connection=LOCAL, command="sleep 600")["job"]
    answers: list[Any] = []
    begun = clean_daemon.home / "begun"
    command = f"touch {begun}; sleep 600"
    thread = threading.Thread(
        target=lambda: answers.append(holder.send("/shell/exec", connection=LOCAL, command=command))
    )
    thread.start()
    eventually(begun.exists, "the command does not begin")
    clean_daemon.client.post("/token/revoke", id=holder.id)
    # Within a minute, where the command takes ten.
    thread.join(DEADLINE_SECONDS)
    assert [one.code for one in answers] == ["command_cancelled"]
    assert answers[0].json["error"]["message"] == "The token was revoked; the command was killed."
    client = clean_daemon.client
    eventually_equal(lambda: client.post("/job/info", job=job)["state"], "killed", "the job runs on")

    def terminals() -> list[str]:
        found = client.post("/terminal/query")["terminals"]
        return [one["terminal"] for one in found if one["state"] == "running"]

    eventually(terminals, "the terminal runs on", holds=lambda running: terminal not in running)


def test_a_token_that_was_changed_in_the_vault_is_refused(own_daemon: Daemon) -> None:
    import sqlite3

    holder = create(own_daemon, "connection.read")
    with sqlite3.connect(own_daemon.data_dir / "vault.db") as vault:
        [[body]] = vault.execute("SELECT body FROM document WHERE id = ?", (holder.id,)).fetchall()
        wider = json.dumps({**json.loads(body), "scopes": sorted(SCOPES)})
        vault.execute("UPDATE document SET body = ? WHERE id = ?", (wider, holder.id))
    assert holder.refused("/connection/info", connections=[LOCAL]) == "integrity"


def test_a_revocation_cuts_a_download(clean_daemon: Daemon) -> None:
    big = clean_daemon.home / "big"
    with big.open("wb") as file:
        file.truncate(200 << 20)
    holder = create(clean_daemon, "fs.read", "shell.any")
    holder.ok("/shell/start", connection=LOCAL)
    connection = http.client.HTTPConnection(*address(clean_daemon.url), timeout=30)
    headers = {"Authorization": f"Bearer {holder.secret}", "Content-Type": "application/json"}
    connection.request("POST", "/fs/read", json.dumps({"connection": LOCAL, "path": str(big)}), headers)
    answer = connection.getresponse()
    assert answer.status == 200
    # More than the buffers of sockets and daemon hold.
    assert len(answer.read(1 << 20)) == 1 << 20
    clean_daemon.client.post("/token/revoke", id=holder.id)
    with pytest.raises(http.client.IncompleteRead):
        answer.read()
    connection.close()


def test_the_text_of_a_token_with_only_shell_argv_runs_as_an_argv(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    client.post("/shell/exec", connection=LOCAL, command="true() { echo a function; }; alias false='echo an alias'")
    holder, rules = create(clean_daemon, "shell.argv"), [{"effect": "deny", "text": "nothing"}]
    for one in (holder, create(clean_daemon, "shell.argv", rules=rules)):
        assert one.ok("/shell/exec", connection=LOCAL, command="true")["stdout"] == ""
        assert one.ok("/shell/exec", connection=LOCAL, command="false")["exitCode"] == 1
        assert one.refused("/shell/exec", connection=LOCAL, command="true;") == "scope_denied"


def test_requests_of_a_child_count_for_its_parent(daemon: Daemon) -> None:
    parent = create(daemon, "token.create", "shell.any", maxConcurrent=1)
    child = parent.create("shell.any")
    child.ok("/shell/start", connection=LOCAL)
    begun, go_on = daemon.home / "begun-below", daemon.home / "go-on-below"
    command = f"touch {begun}; while [ ! -e {go_on} ]; do sleep 0.02; done"
    running = threading.Thread(target=lambda: child.ok("/shell/exec", connection=LOCAL, command=command))
    running.start()
    try:
        eventually(begun.exists, "the command does not begin")
        assert parent.refused("/daemon/version") == "quota_exceeded"
        assert child.refused("/daemon/version") == "quota_exceeded"
    finally:
        go_on.touch()
        running.join(30)


def test_unlocking_a_user_applies_to_one_session_of_the_token(own_daemon: Daemon) -> None:
    unlocking = {"user": "alice", "passphrase": "alice's long passphrase"}
    own_daemon.client.post("/vault/user/add", **unlocking)
    holder = create(own_daemon, "connection.read")
    assert holder.refused("/vault/unlock", **unlocking) == "invalid_request"
    session = {"Authorization": f"Bearer {handshake(holder).json['sessionToken']}"}
    assert send(own_daemon.url, "/vault/unlock", unlocking, session).status == 200
    assert send(own_daemon.url, "/vault/status", {}, session).json["user"] == "alice"
    assert holder.ok("/vault/status")["user"] is None


def test_a_stream_opened_after_the_revocation_starts_nothing(clean_daemon: Daemon) -> None:
    holder = create(clean_daemon, "shell.any")
    stream = Stream(clean_daemon.url, "/shell/pipe", holder.secret)
    clean_daemon.client.post("/token/revoke", id=holder.id)
    ended = stream.ask(connection=LOCAL, command="echo begun").finish()
    assert (ended.stdout, ended.error["code"]) == (b"", "token_revoked")


def test_commands_ended_by_a_token_s_expiry_say_so(clean_daemon: Daemon) -> None:
    holder = create(clean_daemon, "shell.any", expires=5)
    ended = Stream(clean_daemon.url, "/shell/pipe", holder.secret).ask(connection=LOCAL, command="sleep 600").finish()
    assert ended.error["code"] == "token_expired"


def test_the_revocation_of_a_renewed_token_ends_commands_of_every_session(clean_daemon: Daemon) -> None:
    holder = create(clean_daemon, "shell.any", expires=5)
    holder.ok("/shell/exec", connection=LOCAL, command="true", start=True)
    eventually_equal(lambda: state(clean_daemon, holder), "expired", "the token does not expire")
    # The daemon notices within this time.
    threading.Event().wait(1)
    clean_daemon.client.post("/token/renew", id=holder.id, expires=600)
    session = {"Authorization": f"Bearer {handshake(holder).json['sessionToken']}"}
    holder.ok("/shell/exec", connection=LOCAL, command="true")
    body = {"connection": LOCAL, "command": "sleep 600"}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(send, clean_daemon.url, "/shell/exec", body, session)
        eventually_equal(
            lambda: clean_daemon.client.post("/shell/list", connection=LOCAL)["shells"][0]["state"],
            "busy",
            "the command does not run",
        )
        clean_daemon.client.post("/token/revoke", id=holder.id)
        assert answer.result(DEADLINE_SECONDS).code == "command_cancelled"
