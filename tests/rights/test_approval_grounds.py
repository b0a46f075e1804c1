"""An approval holds on the ground that its person saw: the connection, the directory and the variables of the shell."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from connmgr.client.rights import described
from tests.api.wire import LOCAL, Answer, add
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually_equal
from tests.rights.wire import Holder, create

SCOPES = ("shell.any", "job", "terminal")
REMOVE = ["rm", "-v", "victim"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    made = Daemon(tmp_path_factory.mktemp("grounds"))
    yield made
    made.stop()


@pytest.fixture
def holder(daemon: Daemon) -> Holder:
    """A token whose texts and argvs need an approval."""
    return create(daemon, *SCOPES, rules=[{"effect": "ask", "text": "."}])


_NUMBERS = itertools.count(1)


def another_shell() -> str:
    """Return another path of bash, because connections with equal data would be the same."""
    return "/bin/" + "./" * next(_NUMBERS) + "bash"


@pytest.fixture
def here(daemon: Daemon, request: pytest.FixtureRequest) -> str:
    """A connection to this machine with a running shell of its own."""
    id = add(daemon.client, request.node.name[:60], type="local", shell=another_shell())
    daemon.client.shell.start(id)
    return id


def query(daemon: Daemon, approval: str) -> Any:
    """Return an approval that is pending or granted."""
    found = daemon.client.post("/approval/query", states=["pending", "granted"])["approvals"]
    [one] = [one for one in found if one["approval"] == approval]
    return one


def asked(daemon: Daemon, approval: str) -> Any:
    """Return what the person sees of an approval."""
    return query(daemon, approval)["asked"]


def pending(holder: Holder, path: str, /, **body: Any) -> str:
    """Send a request that must need an approval, and return the id of that."""
    answer = holder.send(path, **body)
    assert (answer.status, answer.code) == (403, "approval_required"), answer.json
    return str(answer.json["approval"])


def on(path: str, connection: str) -> dict[str, Any]:
    """Return the member by which a request to ``path`` names its connection."""
    return {"connections": [connection]} if path == "/shell/broadcast" else {"connection": connection}


def approve(daemon: Daemon, approval: str, decision: str = "grant") -> None:
    daemon.client.post("/approval/decide", approval=approval, decision=decision)


def test_an_approved_command_does_not_run_in_another_directory(
    daemon: Daemon, holder: Holder, here: str, tmp_path: Path
) -> None:
    for name in ("seen", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "victim").touch()
    daemon.client.shell.exec(here, f"cd {tmp_path}/seen")
    body: dict[str, Any] = {"connection": here, "argv": REMOVE}
    approve(daemon, id := pending(holder, "/shell/exec", **body))
    daemon.client.shell.exec(here, f"cd {tmp_path}/other")
    again = holder.send("/shell/exec", **body)
    assert (again.code, again.json["approval"] != id) == ("approval_required", True)
    assert asked(daemon, again.json["approval"])["moved"] == [f"the directory was {tmp_path}/seen, is {tmp_path}/other"]
    assert f"the directory was {tmp_path}/seen" in again.json["message"]
    assert (tmp_path / "other" / "victim").exists()
    daemon.client.shell.exec(here, f"cd {tmp_path}/seen")
    assert holder.ok("/shell/exec", **body)["exitCode"] == 0
    assert not (tmp_path / "seen" / "victim").exists()


@pytest.mark.parametrize("path", ["/shell/exec", "/job/start", "/terminal/open", "/shell/broadcast"])
@pytest.mark.parametrize("change", ["export PATH=/tmp:$PATH", "export LD_PRELOAD=", "unset PATH; export PATH", "cd /"])
def test_an_approval_ends_with_the_path_and_directory_of_the_shell(
    daemon: Daemon, holder: Holder, here: str, path: str, change: str
) -> None:
    session = {} if path != "/terminal/open" else {"session": "named"}
    daemon.client.post("/shell/start", connection=here, **session)
    body: dict[str, Any] = {**on(path, here), **session, "argv": ["true"]}
    approve(daemon, id := pending(holder, path, **body))
    assert pending_or_ok(holder, path, body) is None
    daemon.client.post("/shell/exec", connection=here, command=change, **session)
    assert pending(holder, path, **body) != id


def pending_or_ok(holder: Holder, path: str, body: dict[str, Any]) -> str | None:
    answer = holder.send(path, **body)
    assert answer.status in (200, 403), answer.json
    return str(answer.json["approval"]) if answer.status == 403 else None


@pytest.mark.parametrize(
    "what", [{"command": 'rm -r "$TARGET"'}, {"argv": ["sh", "-c", 'rm -r "$TARGET"']}, {"argv": ["true"]}]
)
def test_every_variable_of_the_shell_is_part_of_an_approved_text_or_argv(
    daemon: Daemon, holder: Holder, here: str, what: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"connection": here, **what}
    approve(daemon, pending(holder, "/shell/exec", **body))
    daemon.client.shell.exec(here, "export TARGET=a-secret")
    found = asked(daemon, pending(holder, "/shell/exec", **body))
    assert found["moved"] == ["the exported variable TARGET has changed"]
    assert found["on"][0]["otherVariables"] == ["TARGET"]
    assert "a-secret" not in json.dumps(found), "who decides learns the value of a variable of others"


def test_an_approved_argv_does_not_depend_on_the_shell_s_locale(daemon: Daemon, holder: Holder, here: str) -> None:
    body: dict[str, Any] = {"connection": here, "argv": ["true"]}
    approve(daemon, pending(holder, "/shell/exec", **body))
    daemon.client.shell.exec(here, "export LC_MESSAGES=C")
    assert holder.ok("/shell/exec", **body)["exitCode"] == 0


def test_an_absolute_directory_of_the_request_is_the_one_that_counts(
    daemon: Daemon, holder: Holder, here: str, tmp_path: Path
) -> None:
    body: dict[str, Any] = {"connection": here, "argv": ["pwd"], "cwd": str(tmp_path)}
    approve(daemon, pending(holder, "/shell/exec", **body))
    daemon.client.shell.exec(here, "cd /")
    assert holder.ok("/shell/exec", **body)["stdout"] == str(tmp_path)
    body["cwd"] = "."
    approve(daemon, pending(holder, "/shell/exec", **body))
    daemon.client.shell.exec(here, "cd /tmp")
    pending(holder, "/shell/exec", **body)


def sent_before_the_shell_moves(
    daemon: Daemon, holder: Holder, here: str, directory: Path, path: str, body: dict[str, Any]
) -> Answer:
    """Send a request that waits behind a command of the shell of ``here``, which then leaves it in ``directory``."""
    os.mkfifo(directory / "gate")
    with ThreadPoolExecutor(2) as pool:
        mover = {"connection": here, "command": f"read line < {directory}/gate; cd {directory}"}
        first = pool.submit(create(daemon, "shell.any").ok, "/shell/exec", **mover)
        wait_for(daemon, here, "state", "busy")
        second = pool.submit(holder.send, path, **body)
        wait_for(daemon, here, "waiting", 1)
        (directory / "gate").write_text("go on\n")
        first.result(30)
        return second.result(30)


def test_a_command_that_waited_behind_another_does_not_run_where_that_one_went(
    daemon: Daemon, holder: Holder, here: str, tmp_path: Path
) -> None:
    (tmp_path / "victim").touch()
    body: dict[str, Any] = {"connection": here, "argv": REMOVE}
    approve(daemon, pending(holder, "/shell/exec", **body))
    answer = sent_before_the_shell_moves(daemon, holder, here, tmp_path, "/shell/exec", body)
    assert (answer.status, answer.code) == (403, "approval_required")
    assert asked(daemon, answer.json["approval"])["on"][0]["directory"] == str(tmp_path)
    assert (tmp_path / "victim").exists()


def test_a_broadcast_does_not_run_on_the_connection_whose_shell_has_moved(
    daemon: Daemon, holder: Holder, here: str, tmp_path: Path
) -> None:
    (tmp_path / "victim").touch()
    daemon.client.shell.start(LOCAL)
    body: dict[str, Any] = {"connections": [here, LOCAL], "argv": ["rm", "-fv", "victim"]}
    approve(daemon, pending(holder, "/shell/broadcast", **body))
    answer = sent_before_the_shell_moves(daemon, holder, here, tmp_path, "/shell/broadcast", body)
    lines = {line.get("connection"): line for line in map(json.loads, answer.body.splitlines())}
    assert lines[here]["error"]["code"] == "approval_required"
    assert "the directory was" in lines[here]["error"]["message"]
    assert lines[LOCAL]["exitCode"] == 0
    assert (tmp_path / "victim").exists()
    # That connection is asked about again, by itself, and runs where its shell has gone once somebody has decided.
    again = {**body, "connections": [here]}
    approval = lines[here]["error"]["approval"]
    assert asked(daemon, approval)["connections"] == [here]
    assert asked(daemon, approval)["on"][0]["directory"] == str(tmp_path)
    assert pending(holder, "/shell/broadcast", **again) == approval
    approve(daemon, approval)
    [line, _] = map(json.loads, holder.send("/shell/broadcast", **again).body.splitlines())
    assert (line["exitCode"], (tmp_path / "victim").exists()) == (0, False)


def test_an_approved_command_that_runs_on_as_a_job_is_answered_although_its_shell_moves(
    daemon: Daemon, holder: Holder, here: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    body: dict[str, Any] = {"connection": here, "command": f"read line < {tmp_path}/gate; echo end", "detachAfter": 60}
    approval = pending(holder, "/shell/exec", **body)
    daemon.client.post("/approval/decide", approval=approval, decision="once")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(holder.send, "/shell/exec", **body)
        # The job opens the other end when it runs.
        with (tmp_path / "gate").open("w") as gate:
            daemon.client.shell.exec(here, "cd /")
            gate.write("go on\n")
        answer = running.result(30)
    assert (answer.status, answer.json.get("stdout")) == (200, "end"), answer.json
    assert pending(holder, "/shell/exec", **body) != approval


def wait_for(daemon: Daemon, connection: str, member: str, value: object) -> None:
    """Wait until the shell of a connection is described so."""
    eventually_equal(
        lambda: daemon.client.post("/shell/list", connection=connection)["shells"][0].get(member),
        value,
        f"the shell's {member} is another",
    )


def test_an_approval_that_was_asked_before_the_shell_started_holds_in_a_new_shell_alone(
    daemon: Daemon, holder: Holder
) -> None:
    id = add(daemon.client, "starts", type="local", shell=another_shell())
    body: dict[str, Any] = {"connection": id, "argv": ["pwd"], "start": True}
    asked_for = pending(holder, "/shell/exec", **body)
    assert asked(daemon, asked_for)["on"][0]["directory"] is None
    assert "directory where a new shell starts" in "\n".join(described(query(daemon, asked_for), ""))
    approve(daemon, asked_for)
    for _ in range(2):
        assert holder.ok("/shell/exec", **body)["exitCode"] == 0
    daemon.client.shell.exec(id, "cd /")
    pending(holder, "/shell/exec", **body)
    assert holder.refused("/shell/exec", **body, session="other") == "approval_required"


@pytest.mark.parametrize("path", ["/shell/exec", "/job/start", "/shell/broadcast", "/terminal/open"])
def test_an_approval_ends_with_the_data_of_its_connection(daemon: Daemon, holder: Holder, here: str, path: str) -> None:
    body: dict[str, Any] = {**on(path, here), "argv": ["true"]}
    approve(daemon, id := pending(holder, path, **body))
    daemon.client.post("/connection/update", connection=here, data={"type": "local", "shell": another_shell()})
    daemon.client.shell.start(here)
    assert pending(holder, path, **body) != id


def test_an_approval_ends_when_a_connection_below_leads_elsewhere(daemon: Daemon, holder: Holder) -> None:
    gateway = add(daemon.client, "gateway", type="ssh", host="first.invalid", user="me")
    target = add(daemon.client, "target", type="ssh", host="inner.invalid", user="you", port=2222, gateway=gateway)
    body: dict[str, Any] = {"connection": target, "argv": ["true"], "start": True}
    id = pending(holder, "/shell/exec", **body)
    assert asked(daemon, id)["on"] == [
        {
            "connection": target,
            "hosts": ["me@first.invalid:22", "you@inner.invalid:2222"],
            "user": "you",
            "directory": None,
        }
    ]
    approve(daemon, id)
    daemon.client.post(
        "/connection/update", connection=gateway, data={"type": "ssh", "host": "second.invalid", "user": "me"}
    )
    again = pending(holder, "/shell/exec", **body)
    assert asked(daemon, again)["moved"] == [
        "the connection led to me@first.invalid:22 and you@inner.invalid:2222, "
        "leads to me@second.invalid:22 and you@inner.invalid:2222"
    ]


def test_an_approval_of_an_elevated_command_shows_its_user(daemon: Daemon) -> None:
    holder = create(daemon, "shell.any", "elevate", rules=[{"effect": "ask", "text": "."}])
    body: dict[str, Any] = {"connection": LOCAL, "argv": ["true"], "start": True}
    as_root = pending(holder, "/shell/exec", **body, elevate={"user": "root"})
    assert asked(daemon, as_root)["on"][0]["user"] == "root"
    assert pending(holder, "/shell/exec", **body) != as_root
    assert pending(holder, "/shell/exec", **body, elevate={"user": "nobody"}) != as_root


def test_a_variable_that_a_client_sends_is_part_of_its_approval(daemon: Daemon, holder: Holder) -> None:
    body: dict[str, Any] = {"connection": LOCAL, "command": 'echo "$LC_WHAT"', "start": True}
    id = pending(holder, "/shell/exec", **body, sendEnv={"LC_WHAT": "shown", "LANG": "C"})
    assert asked(daemon, id)["sendEnv"] == {"LC_WHAT": "shown"}
    assert pending(holder, "/shell/exec", **body, sendEnv={"LC_WHAT": "other", "LANG": "C"}) != id
    assert pending(holder, "/shell/exec", **body, sendEnv={"LC_WHAT": "shown"}) == id


@pytest.mark.parametrize("path", ["/shell/exec", "/job/start", "/terminal/open", "/shell/broadcast"])
@pytest.mark.parametrize("command", ["true", "cd ."])
def test_an_approval_ends_when_the_shell_receives_a_variable_of_another_client(
    start_daemon: StartDaemon, path: str, command: str
) -> None:
    daemon = start_daemon("--send-env", "LANG,LC_*,GIT_*")
    session = {} if path != "/terminal/open" else {"session": "named"}
    daemon.client.post("/shell/start", connection=LOCAL, **session)
    holder = create(daemon, *SCOPES, rules=[{"effect": "ask", "text": "."}])
    body: dict[str, Any] = {**on(path, LOCAL), **session, "command": "git pull"}
    approve(daemon, id := pending(holder, path, **body))
    body_with_own = {**session, "argv": ["printenv", "GIT_PAGER"], "sendEnv": {"GIT_PAGER": "cat"}, "connection": LOCAL}
    own = pending(holder, "/shell/exec", **body_with_own)
    sent = {"GIT_SSH_COMMAND": "/tmp/theirs", "GIT_PAGER": "less", "LC_ALL": "C"}
    daemon.client.post("/shell/exec", connection=LOCAL, command=command, sendEnv=sent, **session)
    again = pending(holder, path, **body)
    assert again != id
    shown = asked(daemon, again)["on"][0]
    assert "/tmp/theirs" in shown["variables"]["GIT_SSH_COMMAND"]
    assert "LC_ALL" in shown["otherVariables"]
    assert "the exported variable GIT_SSH_COMMAND has changed" in asked(daemon, again)["moved"]
    # What the request sends takes the place of what others have sent, and nothing else of that.
    own_again = pending(holder, "/shell/exec", **body_with_own)
    assert (own_again != own, *asked(daemon, own_again)["on"][0]["variables"]) == (True, "GIT_SSH_COMMAND")
    approve(daemon, own_again)
    for _ in range(2):
        assert holder.ok("/shell/exec", **body_with_own)["stdout"] == "cat"


def test_an_approval_without_a_terminal_does_not_cover_a_terminal(daemon: Daemon, holder: Holder) -> None:
    found = []
    for pty in (False, True):
        code, approval = pipe_refusal(daemon, holder, argv=["tty"], pty=pty)
        assert code == "approval_required"
        assert asked(daemon, approval)["terminal"] is pty
        found.append(approval)
    assert found[0] != found[1]
    shown = "\n".join(described(query(daemon, found[1]), ""))
    assert "terminal yes" in shown
    assert "host the machine of the daemon" in shown


def pipe_refusal(daemon: Daemon, holder: Holder, **body: Any) -> tuple[str, str]:
    """Open a pipe that must be refused; return the error's code, and the approval."""
    client = Client(daemon.url, session_token=holder.secret)
    with client, client.shell.pipe(LOCAL, **body) as pipe, pytest.raises(ClientError) as error:
        list(pipe)
    return error.value.code, str(error.value.details["approval"])


def test_approvals_of_files_end_with_the_data_of_the_connection(daemon: Daemon, here: str, tmp_path: Path) -> None:
    reader = create(daemon, "fs.write", "shell.any", rules=[{"effect": "ask", "path": f"{tmp_path}/**"}])
    body: dict[str, Any] = {"connection": here, "path": f"{tmp_path}/made"}
    approve(daemon, id := pending(reader, "/fs/mkdir", **body))
    assert asked(daemon, id)["on"][0]["hosts"] == []
    daemon.client.post("/connection/update", connection=here, data={"type": "local", "shell": another_shell()})
    daemon.client.shell.start(here)
    assert pending(reader, "/fs/mkdir", **body) != id
    assert not (tmp_path / "made").exists()


def test_a_terminal_needs_its_scope_and_a_rule_that_says_so(daemon: Daemon) -> None:
    def code(with_pty: bool, *scopes: str, **rule: bool) -> str | None:
        rules = [{"effect": "allow", "argv": ["tty"], **rule}] if rule else []
        client = Client(daemon.url, session_token=create(daemon, *scopes, rules=rules).secret)
        with client, client.shell.pipe(LOCAL, argv=["tty"], pty=with_pty) as pipe:
            try:
                list(pipe)
            except ClientError as error:
                return error.code
        return None

    assert code(False, "shell.any") is None
    assert code(True, "shell.any") == "scope_denied"
    assert code(True, "shell.any", "terminal") is None
    assert code(False, "shell.argv", stdin=True) is None
    assert code(True, "shell.argv", "terminal", stdin=True) == "policy_denied"
    assert code(True, "shell.argv", stdin=True, pty=True) == "scope_denied"
    assert code(True, "shell.argv", "terminal", stdin=True, pty=True) is None
