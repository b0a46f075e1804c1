"""The audit log of a daemon: names, tokens and refusals, queries and verification."""

from __future__ import annotations

import json
import resource
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from connmgr.api.app import GROUPS
from connmgr.client import ClientError
from tests.api.wire import LOCAL, bearer, send
from tests.cli.program import CommandLine, run
from tests.conftest import Recorded, StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually, eventually_equal
from tests.rights.wire import create
from tests.vault.conftest import daemons, postgres

__all__ = ["daemons", "postgres"]

INNER = {"type": "shellEnvironment", "host": LOCAL}

READING = {
    "audit.query",
    "audit.verify",
    "ca.query",
    "ca.trust",
    "category.info",
    "category.query",
    "connection.browse",
    "connection.environment",
    "connection.info",
    "connection.query",
    "connection.terminal",
    "connection.types",
    "daemon.status",
    "daemon.version",
    "fs.list",
    "fs.read",
    "fs.stat",
    "job.info",
    "job.output",
    "job.query",
    "job.wait",
    "metrics.read",
    "multiplex.query",
    "shell.list",
    "terminal.output",
    "terminal.query",
    "terminal.screen",
    "token.check",
    "token.info",
    "token.query",
    "tunnel.query",
    "approval.query",
    "command.query",
    "vault.status",
    "vault.recovery.query",
    "event.stream",
    "event.ticket",
    "fact.query",
    "audit.record",
    "inventory.query",
    "undo.query",
    "undo.read",
    "recording.query",
    "recording.read",
    "recording.search",
    "run.info",
    "run.output",
    "run.query",
    "run.targets",
    "run.wait",
    "schedule.next",
    "schedule.query",
}
"""Actions that change and run nothing."""


def _entries_of(daemon: Daemon) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (daemon.data_dir / "audit.log").read_text().splitlines()]


def _add(daemon: Daemon, name: str, **data: Any) -> str:
    added = daemon.client.post(
        "/connection/add", name=name, data={**INNER, "commands": [f"N='{name}'"], **data}, validate=False
    )
    return str(added["connection"])


def _verified(daemon: Daemon) -> tuple[int, list[str], dict[str, Any]]:
    """Return the exit code of ``connmgr audit verify``, the kinds of faults, and the whole output."""
    done = run("audit", "verify", "--json", environment=daemon.environment)
    assert done.errors == ""
    return done.code, [fault["kind"] for fault in done.json["faults"]], done.json


def test_connections_and_categories_are_named_as_they_were_called(clean_daemon: Daemon, recorded: Recorded) -> None:
    client = clean_daemon.client
    root = client.post("/category/query", filter="*")["found"][0]
    category = client.post("/category/add", name="Fleet", parent=root)["category"]
    one, other = _add(clean_daemon, "Web One"), _add(clean_daemon, "two")
    client.post("/shell/start", connection=one)
    client.post("/connection/update", connection=one, category=category, validate=False)
    list(client.shell.broadcast("true", [one, other, "00000000-0000-0000-0000-000000000000"]))
    over = _add(clean_daemon, "over", host=other)
    client.post("/connection/remove", connections=[other])
    client.post("/category/remove", categories=[category], removeChildrenCategories=False, removeContents=True)
    added, _, _, started, updated, spread, _, removed, along, gone, within, *_ = recorded()
    assert added["name"] == "Fleet"
    assert started["connectionName"] == "local machine/web one"
    assert updated["categoryName"] == "all connections/fleet"
    assert spread["connectionNames"] == ["local machine/web one", "local machine/two", None]
    assert removed["connectionNames"] == ["local machine/two"]
    assert (along["connection"], along["connectionName"]) == (over, "local machine/two/over")
    assert gone["categoryNames"] == ["all connections/fleet"]
    assert (within["connection"], within["connectionName"]) == (one, "local machine/web one")


def test_a_name_changed_by_another_program_is_used_within_a_second(own_daemon: Daemon) -> None:
    one = _add(own_daemon, "before")
    own_daemon.client.post("/shell/start", connection=one)
    path = "local machine/after\n\x1b]0;x\x07\u202e" + "z" * 1000
    with closing(sqlite3.connect(own_daemon.data_dir / "vault.db")) as vault, vault:
        vault.execute("UPDATE connection SET path = ? WHERE id = ?", (path, one))

    def recorded_name() -> str:
        with pytest.raises(ClientError):
            own_daemon.client.post("/shell/stop", connection=one, session="nobody")
        return str(_entries_of(own_daemon)[-1]["connectionName"])

    eventually_equal(recorded_name, path[:256], "an old name is kept")
    assert len((own_daemon.data_dir / "audit.log").read_bytes().splitlines()) == len(_entries_of(own_daemon))
    shown = run("audit", "-n", "1", environment=own_daemon.environment)
    assert (shown.code, shown.output.count("\n")) == (0, 1)
    assert shown.output.replace("\n", "").isprintable()


def test_a_job_s_requests_name_its_connection(clean_daemon: Daemon, recorded: Recorded) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    job = client.post("/job/start", connection=LOCAL, command="true")["job"]
    client.post("/job/wait", job=job, wait=20)
    with pytest.raises(ClientError):
        client.post("/job/info", job="00000000-0000-0000-0000-000000000000")
    _, started, waited, unknown = recorded()
    assert [one.get("connectionName") for one in (started, waited, unknown)] == ["local machine", "local machine", None]
    assert waited["connection"] == LOCAL


def test_requests_and_refusals_of_a_token_are_recorded_with_its_name(clean_daemon: Daemon, recorded: Recorded) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    rules = [{"name": "only true", "effect": "allow", "argv": ["/bin/true"]}]
    holder = create(clean_daemon, "shell.argv", rules=rules, quotaPerDay=4)
    assert holder.ok("/shell/exec", connection=LOCAL, argv=["/bin/true"])["exitCode"] == 0
    assert holder.refused("/shell/exec", connection=LOCAL, argv=["/bin/false"]) == "policy_denied"
    assert holder.refused("/connection/query") == "scope_denied"
    assert holder.refused("/daemon/status") == "scope_denied"
    assert holder.refused("/shell/exec", connection=LOCAL, argv=["/bin/true"]) == "quota_exceeded"
    client.post("/token/revoke", id=holder.id)
    assert holder.refused("/category/query") == "token_revoked"
    auth = {"type": "token", "token": holder.secret}
    shaking = {"auth": auth, "client": {"type": "api", "name": "its script"}}
    assert send(clean_daemon.url, "/handshake", shaking).code == "token_revoked"
    stranger = {"Authorization": "Bearer cmgr_" + "A" * 43}
    command = {"connection": LOCAL, "command": "true"}
    assert send(clean_daemon.url, "/shell/exec", command, stranger).code == "invalid_token"
    entries = recorded()
    assert [(one["path"], one["status"], one.get("code")) for one in entries if one.get("token") == holder.id] == [
        ("/shell/exec", 200, None),
        ("/shell/exec", 403, "policy_denied"),
        ("/connection/query", 403, "scope_denied"),
        ("/daemon/status", 403, "scope_denied"),
        ("/shell/exec", 429, "quota_exceeded"),
        ("/category/query", 403, "token_revoked"),
        ("/handshake", 403, "token_revoked"),
    ]
    named = [one for one in entries if "token" in one]
    assert {one["tokenName"] for one in named} == {named[0]["tokenName"]}
    assert named[0]["rule"] == "only true"
    assert not [one for one in entries if one.get("code") == "invalid_token"]
    assert [one["subject"] for one in entries if one["action"] == "token.revoke"] == [holder.id]


def test_the_owner_has_no_token_in_an_entry(clean_daemon: Daemon, recorded: Recorded) -> None:
    clean_daemon.client.secret.encrypt("x")
    (entry,) = recorded()
    assert not {"token", "tokenName", "rule", "approval", "begun", "phase"} & set(entry)
    assert entry["action"] == "secret.encrypt"


@pytest.mark.parametrize("path", ["/undo/query", "/audit/record"])
def test_a_request_about_a_token_is_not_recorded_as_one_of_that_token(
    clean_daemon: Daemon, recorded: Recorded, path: str
) -> None:
    reader = create(clean_daemon, "audit.read", "fs.write")
    send(clean_daemon.url, path, {"token": "another"}, bearer(clean_daemon))
    reader.send(path, token="another")
    own, theirs = (entry for entry in recorded() if entry["path"] == path)
    assert (own.get("token"), own["subject"]) == (None, "another")
    assert (theirs["token"], theirs["tokenName"], theirs["subject"]) == (reader.id, "test", "another")


def test_queries_and_the_entries_that_a_token_sees(own_daemon: Daemon) -> None:
    client = own_daemon.client
    seen, hidden = _add(own_daemon, "seen"), _add(own_daemon, "hidden")
    for one in (seen, hidden, seen):
        client.post("/shell/start", connection=one)
    holder = create(own_daemon, "audit.read", "shell.argv", connections=["**/seen"])
    holder.ok("/shell/list")
    whole = client.post("/audit/query", limit=1000)
    assert [one["seq"] for one in whole["entries"]] == list(range(len(whole["entries"]), 0, -1))
    assert whole["next"] is None
    assert client.post("/audit/query", limit=2)["next"] == len(whole["entries"]) - 1
    told = holder.ok("/audit/query")["entries"]
    assert [(one["action"], one.get("connection")) for one in told] == [
        ("shell.list", None),
        ("shell.start", seen),
        ("shell.start", seen),
        ("connection.add", seen),
    ]
    assert client.post("/audit/query", token=holder.id)["entries"] == [told[0]]
    assert client.post("/audit/query", until="2020-01-01T00:00:00+02:00") == {"entries": [], "next": None}
    for wrong in ({"since": "2026-01-01T00:00:00"}, {"since": "0001-01-01T00:00:00Z"}, {"limit": 1001}, {"before": 0}):
        with pytest.raises(ClientError) as error:
            client.post("/audit/query", **wrong)
        assert error.value.code == "invalid_request"


def test_the_command_line_shows_entries_and_verifies(own_daemon: Daemon) -> None:
    connmgr = CommandLine(own_daemon)
    one = _add(own_daemon, "web")
    own_daemon.client.post("/shell/start", connection=one)
    own_daemon.client.post("/shell/exec", connection=one, command="exit 3")
    shown = connmgr("audit", "--connection", "web", "--since", "2h")
    newest, *_ = lines = shown.output.splitlines()
    assert len(lines) == 3
    assert all(word in newest for word in ("shell.exec", "local machine/web", "exit 3"))
    (entry,) = connmgr("audit", "--action", "shell.exec", "--json").json
    assert entry["exitCode"] == 3
    assert connmgr("audit", "--until", "2020-01-01", "--json").json == []
    own_daemon.client.post("/connection/remove", connections=[one])
    assert len(connmgr("audit", "--connection", "local machine/web", "-n", "2").output.splitlines()) == 2
    connmgr("audit", "--since", "yesterday", code=2)
    assert (connmgr("audit", "verify").code, own_daemon.client.post("/audit/verify")["sound"]) == (0, True)


def test_a_log_is_verified_with_and_without_a_daemon_and_tampering_is_named(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    daemon = start_daemon(home=home)
    for _ in range(5):
        daemon.client.secret.encrypt("x")
    code, kinds, _ = _verified(daemon)
    assert (code, kinds) == (0, [])
    daemon.stop()
    code, kinds, found = _verified(daemon)
    assert (code, kinds, found["anchored"], found["last"]) == (0, [], 5, 5)
    log = daemon.data_dir / "audit.log"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], lines[2].replace(b'"status":200', b'"status":204'), *lines[3:4]]))
    code, kinds, found = _verified(daemon)
    assert (code, kinds) == (1, ["changed", "cut_off"])
    assert [(fault["seq"], fault["file"]) for fault in found["faults"]] == [(3, "audit.log"), (5, "audit.log")]
    told = run("audit", "verify", environment=daemon.environment)
    assert "Entry 3 is not as it was written (audit.log)." in told.output
    daemon = start_daemon(home=home)
    daemon.client.secret.encrypt("x")
    answer = daemon.client.post("/audit/verify")
    assert [fault["kind"] for fault in answer["faults"]] == ["changed", "missing"]
    assert not answer["sound"]


def test_a_killed_daemon_leaves_a_sound_entries_of(start_daemon: StartDaemon, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for number in range(3):
        daemon = start_daemon(home=home)
        for _ in range(20):
            daemon.client.secret.encrypt("x")
        daemon.kill()
        code, kinds, found = _verified(daemon)
        assert (code, kinds, found["entries"]) == (0, [], 20 * (number + 1))


def test_a_killed_daemon_s_older_vault_put_back_is_told(start_daemon: StartDaemon, tmp_path: Path) -> None:
    home = tmp_path / "home"
    daemon = start_daemon(home=home)
    daemon.client.secret.encrypt("x")
    daemon.stop()
    vault = daemon.data_dir / "vault.db"
    older = vault.read_bytes()
    daemon = start_daemon(home=home)
    daemon.client.secret.encrypt("x")
    eventually(lambda: daemon.client.post("/audit/verify")["anchored"] == 2, "the entry is not anchored")
    note = daemon.data_dir / "audit.anchored"
    eventually(lambda: note.read_text().endswith(" 2\n"), "what is anchored is not noted")
    daemon.kill()
    assert _verified(daemon)[2]["remarks"] == []
    for file in daemon.data_dir.glob("vault.db*"):
        file.unlink()
    vault.write_bytes(older)
    vault.chmod(0o600)
    code, kinds, found = _verified(daemon)
    assert (code, kinds, found["anchored"]) == (0, [], 1)
    (remark,) = found["remarks"]
    assert remark.startswith("The vault is older than the log: it had recorded entry 2, and knows only entry 1, ")
    daemon = start_daemon(home=home)
    assert _entries_of(daemon)[-1]["behind"]["seq"] == 1


def test_the_chain_continues_over_a_rotation_of_the_vault_s_key(start_daemon: StartDaemon, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for rotates in (True, True, False):
        daemon = start_daemon(home=home)
        daemon.client.secret.encrypt("x")
        daemon.stop()
        if rotates:
            assert run("vault", "rotate-key", environment=daemon.environment).code == 0
    code, kinds, found = _verified(daemon)
    assert (code, kinds, found["entries"], found["anchored"]) == (0, [], 3, 3)
    (daemon.data_dir / "vault.key").write_bytes(bytes(32))
    done = run("audit", "verify", environment=daemon.environment)
    assert done.code == 1
    assert "key" in done.errors


def test_an_edited_anchor_is_rejected(own_daemon: Daemon) -> None:
    own_daemon.client.secret.encrypt("x")
    own_daemon.stop()
    with closing(sqlite3.connect(own_daemon.data_dir / "vault.db")) as vault, vault:
        changed = vault.execute(
            "UPDATE meta SET value = CAST(replace(CAST(value AS TEXT), '\"seq\":1', '\"seq\":0') AS BLOB) "
            "WHERE name LIKE 'audit_trail:%'"
        )
        assert changed.rowcount == 1
    code, kinds, _ = _verified(own_daemon)
    assert (code, set(kinds)) == (1, {"unanchored"})


@pytest.mark.needs("postgres")
def test_each_daemon_of_a_vault_has_its_own_log(daemons: tuple[Daemon, Daemon]) -> None:
    one, other = daemons
    one.client.secret.encrypt("x")
    for _ in range(3):
        other.client.secret.encrypt("y")
    for daemon, entries in ((one, 1), (other, 3)):
        found = daemon.client.post("/audit/verify")
        assert (found["faults"], found["entries"], found["anchored"]) == ([], entries, entries)
        assert _verified(daemon)[:2] == (0, [])
    one.stop()
    (one.data_dir / "audit.log").write_bytes((other.data_dir / "audit.log").read_bytes())
    assert _verified(one)[:2] == (1, ["gone"])
    assert _verified(other)[:2] == (1, ["gone"]), "the log of the daemon beside it is gone too"


def test_only_listed_actions_are_read_only() -> None:
    reading = {endpoint.action.name for group in GROUPS for endpoint in group.endpoints if endpoint.reads}
    assert reading <= READING
    unrecorded = {one.action.name for group in GROUPS for one in group.endpoints if not one.audited and not one.public}
    assert unrecorded <= reading, "an endpoint that is not read-only has no entry"


@contextmanager
def _full(daemon: Daemon) -> Iterator[None]:
    """Limit the size of the daemon's files to that of its log, so that the log cannot grow."""
    size = (daemon.data_dir / "audit.log").stat().st_size
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (hard, hard))


def _code(daemon: Daemon, path: str, /, **fields: Any) -> str:
    with pytest.raises(ClientError) as error:
        daemon.client.post(path, **fields)
    return error.value.code


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
def test_nothing_runs_that_cannot_be_recorded_if_the_log_is_required(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--audit", "required")
    client, marker = daemon.client, tmp_path / "done"
    client.post("/shell/start", connection=LOCAL)
    blob = client.fs.blob(b"x")
    command = {"connection": LOCAL, "command": f"touch {marker}"}
    job = client.post("/job/start", connection=LOCAL, command="sleep 600")["job"]
    # That it runs is stored when it is first seen.
    client.post("/job/info", job=job)
    with _full(daemon):
        assert _code(daemon, "/shell/exec", **command) == "audit_unavailable"
        assert _code(daemon, "/shell/exec", **command, detachAfter=1) == "audit_unavailable"
        assert _code(daemon, "/job/start", **command) == "audit_unavailable"
        assert _code(daemon, "/job/kill", job=job, signal="KILL") == "audit_unavailable"
        assert _code(daemon, "/terminal/open", **command) == "audit_unavailable"
        assert _code(daemon, "/fs/write", connection=LOCAL, blob=blob, path=str(marker)) == "audit_unavailable"
        assert _code(daemon, "/category/add", name="x", parent=LOCAL) == "audit_unavailable"
        with pytest.raises(ClientError) as error:
            list(client.shell.broadcast(f"touch {marker}", [LOCAL]))
        assert error.value.code == "audit_unavailable"
        with pytest.raises(ClientError) as error, client.shell.pipe(LOCAL, f"touch {marker}") as pipe:
            list(pipe)
        assert error.value.code == "audit_unavailable"
        assert client.post("/job/info", job=job)["state"] == "running"
        assert client.fs.stat(LOCAL, str(tmp_path))
    assert not marker.exists()
    assert client.shell.exec(LOCAL, f"touch {marker}").exit_code == 0
    assert marker.exists()
    assert client.daemon.status() is not None
    assert client.post("/daemon/status")["auditLost"] > 9
    lost = client.post("/daemon/status")["auditLost"]
    assert f"audit log   entries that could not be written: {lost}\n" in CommandLine(daemon)("status").output
    client.post("/job/remove", job=job, force=True)
    assert {fault["kind"] for fault in client.post("/audit/verify")["faults"]} == {"lost"}


def test_the_begin_of_an_action_is_on_disk_when_the_daemon_is_killed(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--audit", "required")
    daemon.client.post("/shell/start", connection=LOCAL)
    begun = tmp_path / "begun"
    waiting = threading.Thread(target=_interrupted, args=(daemon, f"touch {begun}; sleep 600"))
    waiting.start()
    eventually(begun.exists, "the command does not begin")
    daemon.process.send_signal(signal.SIGKILL)
    waiting.join(20)
    daemon.kill()
    *_, started, last = _entries_of(daemon)
    assert (last["action"], last["phase"], last["commandBytes"]) == (
        "shell.exec",
        "begun",
        len(f"touch {begun}; sleep 600"),
    )
    assert started["begun"] == started["seq"] - 1
    assert _verified(daemon)[:2] == (0, [])


def _interrupted(daemon: Daemon, command: str) -> None:
    with pytest.raises(ClientError):
        daemon.client.clone().shell.exec(LOCAL, command)


def test_each_request_begins_once_and_its_end_names_that(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--audit", "required")
    client = daemon.client
    client.post("/shell/start", connection=LOCAL)
    assert client.post("/shell/exec", connection=LOCAL, command="sleep 0.3", detachAfter=20)["exitCode"] == 0
    list(client.shell.broadcast("true", [LOCAL]))
    client.post("/shell/list")
    added = client.post("/connection/apply", add=[{"name": "x", "data": INNER}])["added"]
    client.post("/connection/remove", connections=[added[0]["connection"]])
    entries = _entries_of(daemon)
    begun = {one["seq"]: one for one in entries if one.get("phase") == "begun"}
    ended = [one for one in entries if "begun" in one]
    assert [one["action"] for one in begun.values()] == [
        "shell.start",
        "shell.exec",
        "shell.broadcast",
        "connection.apply",
        "connection.remove",
    ]
    assert {one["begun"] for one in ended} == set(begun)
    assert all(begun[one["begun"]]["action"] == one["action"] for one in ended)
    assert [one["action"] for one in entries if "begun" not in one and "phase" not in one] == ["shell.list"]
    assert not {"status", "code", "ms"} & set(begun[1])
