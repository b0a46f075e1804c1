"""Requests that need an approval, at a daemon: refused, waiting, approved or denied, and who may decide."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.api.wire import LOCAL, NOBODY, Answer, add
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually, eventually_equal
from tests.plugins.strangers import install
from tests.rights.wire import Holder, create

ASKS = [{"effect": "ask", "text": "."}]
SCOPES = ("shell.any", "job")

PLUGIN = """
import json, os
from connmgr.errors import PolicyDenied
from connmgr.plugin import hookimpl

@hookimpl
def connmgr_authorise(action):
    if os.path.exists(os.environ["HOME"] + "/refuses") and action == "shell.exec":
        raise PolicyDenied("Not today.")

@hookimpl
def connmgr_approval_requested(approval):
    with open(os.environ["HOME"] + "/requested", "a") as file:
        print(json.dumps(approval), file=file)
    raise OSError("the pager is away")
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a plugin that records each approval request and then fails."""
    site, home = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("asked")
    install(site, PLUGIN, "connmgr-pager")
    (home / "requested").touch()
    daemon = Daemon(home, environment={"PYTHONPATH": str(site)})
    daemon.client.shell.start(LOCAL)
    yield daemon
    daemon.stop()


@pytest.fixture
def holder(asked: Daemon) -> Holder:
    return create(asked, *SCOPES, rules=ASKS)


def requested(daemon: Daemon, count: int) -> list[Any]:
    """Wait until the plugin has recorded ``count`` approval requests, and return them."""
    lines = eventually(
        lambda: (daemon.home / "requested").read_text().splitlines(),
        f"{count} approvals were not asked for",
        holds=lambda lines: len(lines) >= count,
    )
    return list(map(json.loads, lines))


def pending(holder: Holder, command: str, **more: Any) -> str:
    """Send a request that needs an approval, and return the pending approval's id."""
    answer = holder.send("/shell/exec", connection=LOCAL, command=command, **more)
    assert (answer.status, answer.code) == (403, "approval_required")
    return str(answer.json["approval"])


def waiting(pool: ThreadPoolExecutor, daemon: Daemon, send: Callable[[], Answer]) -> tuple[Future[Answer], Any]:
    """Send a request that waits for its approval; return its future answer and the pending approval."""
    before = len(requested(daemon, 0))
    future = pool.submit(send)
    return future, requested(daemon, before + 1)[-1]


def decide(daemon: Daemon, approval: str, decision: str, **more: Any) -> Any:
    return daemon.client.post("/approval/decide", approval=approval, decision=decision, **more)


def test_a_command_runs_only_after_its_approval_and_unchanged(asked: Daemon, holder: Holder, tmp_path: Path) -> None:
    command = f"echo run >> {tmp_path}/marks"
    options = {"cwd": "/", "env": {"A": "b"}, "stdin": "x"}
    id = pending(holder, command, **options)
    assert pending(holder, command, **options) == id
    assert not (tmp_path / "marks").exists()
    [shown] = [one for one in asked.client.post("/approval/query")["approvals"] if one["approval"] == id]
    assert (shown["token"], shown["tokenName"]) == (holder.id, "test")
    assert shown["asked"] == {
        "action": "shell.exec",
        "connections": [LOCAL],
        "names": ["local machine"],
        "command": command,
        "encoding": "utf-8",
        "terminal": False,
        "on": [{"connection": LOCAL, "hosts": [], "user": None}],
        **options,
    }
    assert requested(asked, 1)[-1] == shown
    assert decide(asked, id, "once")["state"] == "once"
    for other in ({"stdin": "y"}, {"env": {"A": "c"}}, {"cwd": "/tmp"}, {"stdin": "eA==", "encoding": "base64"}):
        assert pending(holder, command, **{**options, **other}) != id
    assert create(asked, *SCOPES, rules=ASKS).refused("/shell/exec", connection=LOCAL, command=command, **options) == (
        "approval_required"
    )
    assert holder.ok("/shell/exec", connection=LOCAL, command=command, **options)["exitCode"] == 0
    assert pending(holder, command, **options) != id
    assert (tmp_path / "marks").read_text() == "run\n"


@pytest.mark.parametrize(("decision", "more"), [("once", {}), ("grant", {"seconds": 60}), ("deny", {})])
def test_a_request_waits_for_the_decision(asked: Daemon, holder: Holder, decision: str, more: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        body = {"connection": LOCAL, "command": f"echo {decision}", "wait": 60}
        future, shown = waiting(pool, asked, lambda: holder.send("/shell/exec", **body))
        decide(asked, shown["approval"], decision, **more)
        answer = future.result(30)
    if decision == "deny":
        assert (answer.status, answer.code, answer.json["approval"]) == (403, "approval_denied", shown["approval"])
        assert holder.refused("/shell/exec", **body) == "approval_denied"
    else:
        assert answer.json["stdout"] == decision
    if decision == "grant":
        assert holder.ok("/shell/exec", **body)["stdout"] == "grant"


def test_more_requests_wait_than_the_daemon_has_threads(asked: Daemon, holder: Holder) -> None:
    with ThreadPoolExecutor(40) as pool:
        body = {"connection": LOCAL, "command": "echo many", "wait": 60}
        first, shown = waiting(pool, asked, lambda: holder.send("/shell/exec", **body))
        others = [pool.submit(holder.send, "/shell/exec", **body) for _ in range(39)]
        decide(asked, shown["approval"], "grant", seconds=60)
        assert [one.result(60).json["stdout"] for one in (first, *others)] == ["many"] * 40


def test_a_command_that_becomes_a_job_needs_one_approval(asked: Daemon, holder: Holder, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        body = {"connection": LOCAL, "command": f"echo x >> {tmp_path}/marks; sleep 0.5; echo end", "detachAfter": 30}
        future, shown = waiting(pool, asked, lambda: holder.send("/shell/exec", **body, wait=60))
        decide(asked, shown["approval"], "once")
        assert future.result(30).json["stdout"] == "end"
    assert (tmp_path / "marks").read_text() == "x\n"


def test_a_request_refused_by_a_plugin_does_not_use_up_its_approval(asked: Daemon, holder: Holder) -> None:
    body = {"connection": LOCAL, "command": "echo approved"}
    decide(asked, pending(holder, body["command"]), "once")
    refuses = asked.home / "refuses"
    refuses.touch()
    try:
        assert holder.refused("/shell/exec", **body) == "policy_denied"
    finally:
        refuses.unlink()
    assert holder.ok("/shell/exec", **body)["stdout"] == "approved"
    assert holder.refused("/shell/exec", **body) == "approval_required"


def test_a_request_refused_as_busy_does_not_use_up_its_approval(start_daemon: StartDaemon, tmp_path: Path) -> None:
    full = start_daemon("--threads", "1")
    full.client.shell.start(LOCAL)
    holder = create(full, *SCOPES, rules=ASKS)
    body = {"connection": LOCAL, "command": "echo approved"}
    decide(full, pending(holder, body["command"]), "once")
    os.mkfifo(tmp_path / "gate")
    with ThreadPoolExecutor(1) as pool:
        blocked = {"connection": LOCAL, "command": f"read line < {tmp_path}/gate"}
        running = pool.submit(create(full, *SCOPES).ok, "/shell/exec", **blocked)
        eventually_equal(
            lambda: full.client.post("/shell/list", connection=LOCAL)["shells"][0]["state"],
            "busy",
            "the command does not run",
        )
        assert holder.refused("/shell/exec", **body) == "busy"
        (tmp_path / "gate").write_text("go on\n")
        running.result(30)
    assert holder.ok("/shell/exec", **body)["stdout"] == "approved"


def test_approvals_of_broadcasts_and_jobs_name_all_their_connections(asked: Daemon, holder: Holder) -> None:
    second = add(asked.client, "second", type="ssh", host="127.0.0.1", port=1, user="nobody")
    with ThreadPoolExecutor(1) as pool:
        body: dict[str, Any] = {"connections": [LOCAL, second], "command": "echo all", "wait": 60}
        future, shown = waiting(pool, asked, lambda: holder.send("/shell/broadcast", **body))
        assert shown["asked"]["connections"] == [LOCAL, second]
        decide(asked, shown["approval"], "once")
        lines = list(map(json.loads, future.result(30).body.splitlines()))
        assert sorted(line["connection"] for line in lines[:-1]) == sorted([LOCAL, second])
        assert [line["stdout"] for line in lines if line.get("connection") == LOCAL] == ["all"]
        assert holder.refused("/shell/broadcast", **{**body, "connections": [LOCAL], "wait": 0}) == "approval_required"
        future, shown = waiting(
            pool, asked, lambda: holder.send("/job/start", connection=LOCAL, argv=["true"], wait=60)
        )
        assert shown["asked"]["argv"] == ["true"]
        decide(asked, shown["approval"], "once")
        assert future.result(30).json["job"]


def test_approvals_of_files_name_their_real_paths(asked: Daemon, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    rules = [{"effect": "ask", "path": f"{tmp_path}/real/**"}]
    holder = create(asked, "fs.write", "fs.read", rules=rules)
    body = {"connection": LOCAL, "path": f"{tmp_path}/link/made"}
    assert holder.refused("/fs/mkdir", **body) == "approval_required"
    assert list((tmp_path / "real").iterdir()) == []
    with ThreadPoolExecutor(1) as pool:
        body["path"] = f"{tmp_path}/link/other"
        future, shown = waiting(pool, asked, lambda: holder.send("/fs/mkdir", **body, wait=60))
        assert f"{tmp_path}/real/other" in json.dumps(shown["asked"])
        decide(asked, shown["approval"], "once")
        assert future.result(30).status == 200
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["other"]
    assert holder.refused("/fs/mkdir", connection=LOCAL, path=f"{tmp_path}/beside") == "policy_denied"


def test_a_token_decides_about_approvals_on_connections_that_it_sees(asked: Daemon, holder: Holder) -> None:
    decider = create(asked, "approval.decide")
    id = pending(holder, "echo decided")
    assert id in [one["approval"] for one in decider.ok("/approval/query")["approvals"]]
    assert decider.ok("/approval/decide", approval=id, decision="once")["decidedBy"] == decider.id
    assert holder.ok("/shell/exec", connection=LOCAL, command="echo decided")["stdout"] == "decided"
    blind = create(asked, "approval.decide", connections=["elsewhere/*"])
    id = pending(holder, "echo unseen")
    assert blind.ok("/approval/query")["approvals"] == []
    assert blind.refused("/approval/decide", approval=id, decision="once") == "unknown_approval"
    assert holder.refused("/approval/query") == "scope_denied"
    assert holder.refused("/approval/decide", approval=id, decision="once") == "scope_denied"


def test_no_token_decides_about_its_own_requests_or_those_of_its_parents(asked: Daemon) -> None:
    asking = create(asked, *SCOPES, "approval.decide", "token.create", rules=ASKS)
    child = asking.create("approval.decide")
    grandchild = asking.create("approval.decide", "token.create").create("approval.decide")
    id = pending(asking, "echo myself")
    for one in (asking, child, grandchild):
        for decision in ({"decision": "once"}, {"decision": "deny"}, {"decision": "grant", "seconds": 60}):
            assert one.refused("/approval/decide", approval=id, **decision) == "policy_denied"
    assert pending(asking, "echo myself") == id


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"approval": NOBODY, "decision": "once"}, "unknown_approval"),
        ({"approval": NOBODY, "decision": "always"}, "invalid_request"),
        ({"approval": NOBODY, "decision": "grant", "seconds": 86401}, "invalid_request"),
        ({"approval": NOBODY, "decision": "once", "seconds": 1}, "invalid_request"),
        ({"decision": "once"}, "invalid_request"),
    ],
)
def test_an_invalid_decision_is_refused(asked: Daemon, body: dict[str, Any], code: str) -> None:
    assert create(asked, "approval.decide").refused("/approval/decide", **body) == code


def test_pending_approvals_survive_a_restart(asked: Daemon, holder: Holder, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = Daemon(home)
    token = create(first, *SCOPES, rules=ASKS)
    id = pending(token, "echo later")
    first.client.post("/approval/decide", approval=id, decision="grant", seconds=600)
    first.stop()
    again = Daemon(home)
    try:
        holder = Holder(again.url, token.id, token.secret)
        assert holder.ok("/shell/exec", connection=LOCAL, command="echo later", start=True)["stdout"] == "later"
    finally:
        again.stop()


def test_the_audit_log_names_rule_and_approval(asked: Daemon, holder: Holder) -> None:
    id = pending(holder, "echo audited")
    decide(asked, id, "once")
    holder.ok("/shell/exec", connection=LOCAL, command="echo audited")
    entries = [json.loads(line) for line in (asked.data_dir / "audit.log").read_text().splitlines()]
    decided = [one for one in entries if one.get("path") == "/approval/decide" and one.get("approval") == id]
    assert [(one["decision"], one["ofToken"]) for one in decided] == [("once", holder.id)]


def test_a_token_whose_rule_asks_cannot_decide_through_tokens_below_it(asked: Daemon) -> None:
    asking = create(asked, *SCOPES, "approval.decide", "token.create", rules=ASKS)
    child, sibling = asking.create(*SCOPES, expires=500), asking.create("approval.decide", expires=500)
    id = pending(child, "echo by way of a child")
    for one in (asking, sibling):
        assert one.refused("/approval/decide", approval=id, decision="once") == "policy_denied"
    leading = create(asked, *SCOPES, "approval.decide", "token.create")
    id = pending(leading.create(*SCOPES, rules=ASKS, expires=500), "echo led")
    assert leading.ok("/approval/decide", approval=id, decision="once")["state"] == "once"


def test_a_token_whose_path_rule_asks_cannot_decide_for_tokens_below_it(asked: Daemon, tmp_path: Path) -> None:
    rules = [{"effect": "ask", "path": f"{tmp_path}/**"}]
    asking = create(asked, "fs.read", "approval.decide", "token.create", rules=rules)
    (tmp_path / "file").write_text("content")
    answer = asking.create("fs.read", expires=500).send("/fs/read", connection=LOCAL, path=str(tmp_path / "file"))
    body = {"approval": answer.json["approval"], "decision": "once"}
    assert asking.refused("/approval/decide", **body) == "policy_denied"


def test_an_approval_of_one_path_does_not_cover_another_that_looks_alike(asked: Daemon, tmp_path: Path) -> None:
    shown, other = os.fsencode(tmp_path) + rb"/a\xff", os.fsencode(tmp_path) + b"/a\xff"
    for path in (shown, other):
        Path(os.fsdecode(path)).write_text("content")
    reader = create(asked, "fs.read", rules=[{"effect": "ask", "path": f"{tmp_path}/**"}])
    answer = reader.send("/fs/read", connection=LOCAL, path=shown.decode())
    decide(asked, answer.json["approval"], "once")
    path = {"base64": base64.b64encode(other).decode()}
    assert reader.refused("/fs/read", connection=LOCAL, path=path) == "approval_required"
    assert reader.send("/fs/read", connection=LOCAL, path=shown.decode()).body == b"content"


def test_the_audit_log_has_the_rule_by_which_a_file_was_read(asked: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    reader = create(asked, "fs.read", rules=[{"effect": "allow", "path": f"{tmp_path}/**", "name": "here"}])
    assert reader.send("/fs/read", connection=LOCAL, path=str(tmp_path / "file")).body == b"content"
    # The entry is written after the whole answer is sent.
    [entry] = eventually(
        lambda: asked.client.post("/audit/query", token=reader.id)["entries"], "the request is not recorded"
    )
    assert (entry["action"], entry.get("rule"), entry.get("code")) == ("fs.read", "here", None)
