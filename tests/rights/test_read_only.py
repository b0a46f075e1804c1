"""Tokens that may only look: what they run is in a sandbox, however it is run, and what changes anything is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from connmgr.client import Client
from connmgr.contract.token import SCOPES as SCOPES_OF_TOKENS
from connmgr.engine.sandbox import carry
from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.rights.wire import Holder, create

pytestmark = pytest.mark.needs("bwrap")

SCOPES = sorted(SCOPES_OF_TOKENS.keys() - {"ssh.agent", "ssh.certificate"})


@pytest.fixture
def looker(daemon: Daemon) -> Holder:
    holder = create(daemon, *SCOPES, name="looker", readOnly=True)
    holder.ok("/shell/start", connection=LOCAL)
    return holder


def ended(holder: Holder, job: str) -> dict[str, Any]:
    def look() -> Any:
        return holder.ok("/job/output", job=job)

    found: dict[str, Any] = eventually(look, "the job ends", holds=lambda one: one["state"] != "running")
    return found


def test_a_command_can_look_and_not_write(looker: Holder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("seen")
    ran = looker.ok("/shell/exec", connection=LOCAL, command=f"cd {tmp_path}; cat file; echo x >new", cwd=str(tmp_path))
    assert (ran["exitCode"] != 0, ran["stdout"]) == (True, "seen")
    by_argv = looker.ok("/shell/exec", connection=LOCAL, argv=["touch", "new"], cwd=str(tmp_path))
    assert by_argv["exitCode"] != 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_job_is_in_the_sandbox(looker: Holder, tmp_path: Path) -> None:
    for what in ({"command": "cat file; echo x >new"}, {"argv": ["touch", "new"]}):
        (tmp_path / "file").write_text("seen")
        job = looker.ok("/job/start", connection=LOCAL, cwd=str(tmp_path), **what)["job"]
        assert ended(looker, job)["exitCode"] != 0
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
    detached = looker.ok("/shell/exec", connection=LOCAL, command="echo x >new", cwd=str(tmp_path), detachAfter=30)
    assert detached["exitCode"] != 0
    assert not (tmp_path / "new").exists()


def test_a_broadcast_and_a_run_are_in_the_sandbox(looker: Holder, tmp_path: Path) -> None:
    command = f"touch {tmp_path}/new && echo written"
    looker.send("/shell/broadcast", connections=[LOCAL], command=command)
    for as_ in ("shell", "job"):
        run = looker.ok("/run/start", connections=[LOCAL], command=command, **{"as": as_})["run"]
        eventually(
            lambda run=run: looker.ok("/run/info", run=run)["state"], "the run ends", holds=lambda one: one != "running"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", [{"command": "touch {}/new"}, {"argv": ["touch", "{}/new"]}])
def test_a_pipe_is_in_the_sandbox(daemon: Daemon, looker: Holder, tmp_path: Path, what: dict[str, Any]) -> None:
    asked = json.loads(json.dumps(what).replace("{}", str(tmp_path)))
    with Client(daemon.url, token=looker.secret) as client, client.shell.pipe(LOCAL, **asked) as opened:
        assert list(opened) == [] or opened.exit_status
        assert opened.exit_status not in (0, None)
    assert list(tmp_path.iterdir()) == []


def test_variables_apply_inside_alone(looker: Holder) -> None:
    ran = looker.ok("/shell/exec", connection=LOCAL, command="echo $GIVEN", env={"GIVEN": "x", "LD_PRELOAD": "/no.so"})
    # The programs that make the sandbox would complain, too.
    assert ran["stdout"] == "x"
    assert looker.ok("/shell/exec", connection=LOCAL, command="echo $GIVEN")["stdout"] == ""


@pytest.mark.parametrize("path", ["/shell/exec", "/job/start"])
def test_values_of_variables_are_carried_whole(looker: Holder, path: str) -> None:
    value = 'it\'s a "value" of $HOME\nin lines'
    answer = looker.ok(path, connection=LOCAL, command='printf %s "$GIVEN"', env={"GIVEN": value})
    if path == "/job/start":
        looker.ok("/job/wait", job=answer["job"], wait=20)
        answer = {"stdout": looker.ok("/job/output", job=answer["job"])["stdout"]["data"]}
    assert answer["stdout"] == value


def test_values_of_variables_are_in_no_argv() -> None:
    carried, words = carry((b"true",), {"GIVEN": "seen by nobody"})
    assert list(carried.values()) == ["seen by nobody"]
    assert b"seen by nobody" not in b" ".join(words)


def test_a_command_that_takes_too_long_is_killed_with_all_it_started(looker: Holder) -> None:
    seconds = "98765"
    command = f"(trap '' HUP TERM; sleep {seconds}) & sleep {seconds}"
    assert looker.refused("/shell/exec", connection=LOCAL, command=command, timeout=1) == "command_timeout"

    def left() -> list[int]:
        return [one.pid for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", seconds]]

    eventually(left, "nothing of it is left", holds=lambda found: not found)


def test_no_command_changes_the_shell_that_others_share(daemon: Daemon, looker: Holder) -> None:
    shared = {"connection": LOCAL, "session": "shared"}
    daemon.client.post("/shell/exec", **shared, command="cd /usr; export KEPT=kept", start=True)
    looker.ok("/shell/exec", **shared, command="cd /; export KEPT=changed; alias ls=rm; trap 'id' EXIT")
    assert daemon.client.post("/shell/exec", **shared, command="pwd; echo $KEPT")["stdout"] == "/usr\nkept"


def test_it_stops_the_shells_that_it_has_started(daemon: Daemon, looker: Holder) -> None:
    daemon.client.post("/shell/start", connection=LOCAL, session="others")
    assert looker.refused("/shell/stop", connection=LOCAL, session="others") == "scope_denied"
    looker.ok("/shell/start", connection=LOCAL, session="own")
    looker.ok("/shell/stop", connection=LOCAL, session="own")
    left = {one.get("session") for one in daemon.client.post("/shell/list", connection=LOCAL)["shells"]}
    assert left & {None, "others", "own"} == {None, "others"}
    daemon.client.post("/shell/stop", connection=LOCAL, session="others")


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/fs/mkdir", {"connection": LOCAL, "path": "/tmp/x"}),
    ("/fs/remove", {"connection": LOCAL, "path": "/tmp/x"}),
    ("/fs/move", {"connection": LOCAL, "source": "/tmp/x", "target": "/tmp/y"}),
    ("/fs/attributes", {"connection": LOCAL, "path": "/tmp/x", "mode": "0600"}),
    ("/undo/restore", {"connection": LOCAL, "changes": ["5b1f4f0c-52c7-4f0e-9a53-0d6f5a1be5a4"]}),
    ("/shell/stop", {"connection": LOCAL}),
    ("/terminal/open", {"connection": LOCAL, "columns": 80, "rows": 24}),
    ("/connection/toggle", {"connection": LOCAL, "state": True}),
    ("/connection/add", {"name": "new", "data": {"type": "ssh", "host": "h", "user": "u"}}),
    ("/multiplex/open", {"connections": [LOCAL]}),
    ("/schedule/add", {"name": "x", "cron": "* * * * *", "request": {"connections": [LOCAL], "command": "id"}}),
    ("/approval/decide", {"approval": "5b1f4f0c-52c7-4f0e-9a53-0d6f5a1be5a4", "decision": "once"}),
    ("/daemon/stop", {}),
]


@pytest.mark.parametrize(("path", "body"), REFUSED, ids=[path for path, _ in REFUSED])
def test_what_changes_anything_is_refused(looker: Holder, path: str, body: dict[str, Any]) -> None:
    assert looker.refused(path, **body) == "scope_denied"


def test_the_work_of_others_takes_no_input_from_it(daemon: Daemon, looker: Holder) -> None:
    job = daemon.client.post("/job/start", connection=LOCAL, command="cat | sh", stdin="open")["job"]
    assert looker.refused("/job/input", job=job, data="touch /tmp/x\n") == "unknown_job"
    daemon.client.post("/job/kill", job=job)


def test_tokens_below_it_only_look_too(looker: Holder, tmp_path: Path) -> None:
    below = looker.create("shell.any", "fs.write", readOnly=False)
    assert below.ok("/token/info")["readOnly"] is True
    assert "fs.write" not in below.ok("/token/info")["actions"]
    below.ok("/shell/exec", connection=LOCAL, command=f"touch {tmp_path}/new")
    assert list(tmp_path.iterdir()) == []


def test_rules_judge_the_words_that_were_asked_for(daemon: Daemon) -> None:
    bound = create(daemon, "shell.argv", readOnly=True, rules=[{"effect": "allow", "argv": ["/bin/echo", "hi"]}])
    assert bound.ok("/shell/exec", connection=LOCAL, argv=["/bin/echo", "hi"], start=True)["stdout"] == "hi"
    assert bound.refused("/shell/exec", connection=LOCAL, argv=["/bin/sh", "-c", "id"]) == "policy_denied"
