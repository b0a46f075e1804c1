"""Rules at a daemon: only allowed commands are executed, word by word, whatever is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from connmgr.client.jobs import Job
from tests.api.wire import LOCAL, NOBODY
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.rights.test_rule_bypasses import TEXTS
from tests.rights.wire import Holder, create

SCOPES = ("shell.any", "job", "terminal")
REFUSED = {"policy_denied", "invalid_request"}

_PROGRAM = """#!/bin/sh
printf '%s\\n' "{name}" "$@" '' >> "{log}"
echo "{name} $*"
"""


@dataclass(frozen=True)
class Site:
    """A daemon, programs that record their words, and a token with rules about these programs."""

    daemon: Daemon
    directory: Path
    holder: Holder

    def executed(self) -> list[list[str]]:
        """Return the words of each execution since the last call."""
        log = self.directory / "log"
        entries = log.read_text().removesuffix("\n\n").split("\n\n") if log.exists() else []
        log.unlink(missing_ok=True)
        return [entry.split("\n") for entry in entries]

    def program(self, *names: str) -> str:
        return str(self.directory.joinpath(*names))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    for name in ("tool", "other", "uname", "evil/tool", "evil/uname"):
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(_PROGRAM.format(name=name, log=directory / "log"))
        path.chmod(0o755)
    (directory / "link").symlink_to(directory / "evil")
    (directory / "startup").write_text(f"{directory}/other started\n")
    # A lookup in the PATH of the daemon or of a session finds the wrong programs first.
    path = f"{directory}/evil:/usr/local/bin:/usr/bin:/bin"
    daemon = Daemon(tmp_path_factory.mktemp("home"), environment={"PATH": path})
    daemon.client.shell.start(LOCAL)
    daemon.client.shell.exec(LOCAL, f"export PATH={path}; cd {directory}/evil")
    rules = [
        {"effect": "allow", "argv": [f"{directory}/tool", "restart", {"in": ["nginx", "a b"]}], "pty": True},
        {"effect": "allow", "argv": ["uname", {"re": "-[a-z]"}], "pty": True},
        {"effect": "allow", "argv": [f"{directory}/other"], "env": {"APP": {"re": "[a-z]+"}}, "cwd": f"{directory}/**"},
        {"effect": "deny", "argv": ["tool", "restart", "a b"], "connections": ["elsewhere"]},
    ]
    yield Site(daemon, directory, create(daemon, *SCOPES, rules=rules))
    daemon.stop()


def attempts(site: Site, **what: Any) -> Iterator[str]:
    """Try every way to run a program, and yield the error codes."""
    yield site.holder.refused("/shell/exec", connection=LOCAL, **what)
    yield site.holder.refused("/shell/exec", connection=LOCAL, detachAfter=0, **what)
    yield site.holder.refused("/shell/exec", connection=LOCAL, fresh=True, start=True, **what)
    yield site.holder.refused("/shell/broadcast", connections=[LOCAL], **what)
    yield site.holder.refused("/job/start", connection=LOCAL, **what)
    if not what.keys() - {"command", "argv"}:
        yield site.holder.refused("/terminal/open", connection=LOCAL, **what)
        yield _refused_pipe(site, **what)


def _refused_pipe(site: Site, **what: Any) -> str:
    with client_of(site) as client, client.shell.pipe(LOCAL, **what) as pipe, pytest.raises(ClientError) as error:
        list(pipe)
    return error.value.code


def printed_on(site: Site, terminal: str) -> str:
    """Wait for the end of a terminal's program, and return its output."""
    offset, printed = 0, ""
    while True:
        piece = site.holder.ok("/terminal/output", terminal=terminal, offset=offset, wait=20)
        offset, printed = piece["next"], printed + piece["data"]
        if piece["eof"]:
            return printed.strip()


def client_of(site: Site) -> Client:
    return Client(site.daemon.url, session_token=site.holder.secret)


def test_every_way_runs_only_what_a_rule_allows(site: Site) -> None:
    tool, wanted = site.program("tool"), ["tool", "restart", "a b"]
    site.executed()
    for what in ({"argv": [tool, "restart", "a b"]}, {"argv": ["tool", "restart", "a b"]}):
        site.holder.ok("/shell/exec", connection=LOCAL, **what)
        site.holder.send("/shell/broadcast", connections=[LOCAL], **what)
        job = site.holder.ok("/job/start", connection=LOCAL, **what)["job"]
        assert site.holder.ok("/job/wait", job=job)["exitCode"] == 0
        with client_of(site) as client, client.shell.pipe(LOCAL, **what) as pipe:
            assert b"".join(stdout for stdout, _ in pipe) == b"tool restart a b\n"
        terminal = site.holder.ok("/terminal/open", connection=LOCAL, **what)["terminal"]
        assert printed_on(site, terminal) == "tool restart a b"
        assert site.executed() == [wanted] * 5


def test_neither_session_nor_variables_change_where_a_bare_name_is_looked_up(site: Site) -> None:
    what = {"argv": ["uname", "-s"]}
    site.executed()
    assert site.holder.ok("/shell/exec", connection=LOCAL, **what)["stdout"] == "Linux"
    assert site.holder.ok("/shell/exec", connection=LOCAL, command="uname -s")["stdout"] == "Linux"
    lines = site.holder.send("/shell/broadcast", connections=[LOCAL], **what).body.splitlines()
    assert json.loads(lines[0])["stdout"] == "Linux"
    job = site.holder.ok("/job/start", connection=LOCAL, **what)["job"]
    site.holder.ok("/job/wait", job=job)
    assert site.holder.ok("/job/output", job=job)["stdout"]["data"] == "Linux\n"
    with client_of(site) as client, client.shell.pipe(LOCAL, **what) as pipe:
        assert b"".join(stdout for stdout, _ in pipe) == b"Linux\n"
    for session in ({}, {"session": "named"}):
        if session:
            site.daemon.client.shell.start(LOCAL, session="named")
        terminal = site.holder.ok("/terminal/open", connection=LOCAL, **what, **session)["terminal"]
        assert printed_on(site, terminal) == "Linux"
    assert site.executed() == []


@pytest.mark.parametrize("text", TEXTS)
def test_hostile_texts_execute_nothing(site: Site, text: str) -> None:
    text = re.sub(r"\bid\b", site.program("other"), text.replace("systemctl", site.program("tool")))
    site.executed()
    assert site.holder.refused("/shell/exec", connection=LOCAL, command=text) in REFUSED
    assert site.holder.refused("/job/start", connection=LOCAL, command=text) in REFUSED
    assert site.executed() == []


@pytest.mark.parametrize(
    "words",
    [
        ["{d}/evil/tool", "restart", "nginx"],
        ["{d}/link/tool", "restart", "nginx"],
        ["{d}/evil/../tool", "restart", "nginx"],
        ["{d}//tool", "restart", "nginx"],
        ["./tool", "restart", "nginx"],
        ["../tool", "restart", "nginx"],
        ["{d}/tool", "restart", "nginx", "more"],
        ["{d}/tool", "restart", "nginx\n"],
        ["{d}/tool", "restart", "nginx", ""],
        ["{d}/tool", "restart", ""],
        ["{d}/tool restart nginx"],
        ["", "{d}/tool", "restart", "nginx"],
        ["env", "{d}/tool", "restart", "nginx"],
        ["/usr/bin/env", "{d}/other"],
        ["sh", "-c", "{d}/other"],
        ["xargs", "{d}/other"],
        ["{d}/evil/uname", "-s"],
        ["./uname", "-s"],
        ["uname", "-s", "-a"],
        ["uname", "--help"],
        ["uname", "-s\n"],
        ["Uname", "-s"],
        ["{d}/uname", "-s"],
        ["{d}/other", "x"],
        ["{d}/OTHER"],
    ],
    ids=lambda words: ascii(words)[:60],
)
def test_hostile_argvs_execute_nothing(site: Site, words: list[str]) -> None:
    site.executed()
    argv = [word.replace("{d}", str(site.directory)) for word in words]
    assert set(attempts(site, argv=argv)) <= REFUSED
    assert site.executed() == []


@pytest.mark.parametrize(
    "more",
    [
        {"env": {"PATH": "{d}/evil"}},
        {"env": {"LD_PRELOAD": "{d}/x.so"}},
        {"env": {"BASH_ENV": "{d}/startup"}},
        {"env": {"ENV": "{d}/startup"}},
        {"env": {"APP": "x"}},
        {"cwd": "{d}"},
        {"cwd": "/"},
    ],
    ids=str,
)
def test_variables_and_directories_that_no_rule_names_are_refused(site: Site, more: dict[str, Any]) -> None:
    site.executed()
    given = json.loads(json.dumps(more).replace("{d}", str(site.directory)))
    assert set(attempts(site, argv=[site.program("tool"), "restart", "nginx"], **given)) == {"policy_denied"}
    assert site.executed() == []


def test_variables_and_directories_that_a_rule_names_are_passed(site: Site) -> None:
    site.executed()
    argv = [site.program("other")]
    given = {"env": {"APP": "x"}, "cwd": str(site.directory)}
    assert site.holder.ok("/shell/exec", connection=LOCAL, argv=argv, **given)["exitCode"] == 0
    for other in ({}, {"env": {"APP": "X"}}, {"env": {"APP": "x", "B": "y"}}, {"cwd": f"{site.directory}/../.."}):
        assert site.holder.refused("/shell/exec", connection=LOCAL, argv=argv, **other) == "policy_denied"
    assert site.executed() == [["other"]]


def test_rules_hold_for_pipes_terminals_scripts_and_foreign_jobs(site: Site) -> None:
    assert _refused_pipe(site) == "policy_denied"
    assert _refused_pipe(site, pty=True) == "policy_denied"
    assert site.holder.refused("/terminal/open", connection=LOCAL) == "policy_denied"
    assert site.holder.refused("/fs/script", connection=LOCAL, blob=LOCAL) in {"scope_denied", "policy_denied"}
    terminal = site.daemon.client.post("/terminal/open", connection=LOCAL)["terminal"]
    assert site.holder.refused("/terminal/input", terminal=terminal, data="id\n") == "unknown_terminal"
    job = site.daemon.client.jobs.start(LOCAL, "cat", stdin="open")
    assert isinstance(job, Job)
    assert site.holder.refused("/job/input", job=job.id, data="x") == "unknown_job"
    job.kill("KILL")


def test_a_program_that_runs_others_gets_no_input_unless_the_rule_allows_it(daemon: Daemon) -> None:
    closed = create(daemon, "shell.argv", "terminal", rules=[{"effect": "allow", "argv": ["/bin/sh"]}])
    assert closed.refused("/shell/exec", connection=LOCAL, argv=["/bin/sh"], stdin="id") == "policy_denied"
    assert closed.refused("/terminal/open", connection=LOCAL, argv=["/bin/sh"]) == "policy_denied"
    with Client(daemon.url, session_token=closed.secret) as client:
        with client.shell.pipe(LOCAL, argv=["/bin/sh"]) as pipe, pytest.raises(ClientError) as error:
            list(pipe)
        assert error.value.code == "policy_denied"
    open_ = create(daemon, "shell.argv", rules=[{"effect": "allow", "argv": ["/bin/sh"], "stdin": True}])
    with Client(daemon.url, session_token=open_.secret) as client, client.shell.pipe(LOCAL, argv=["/bin/sh"]) as pipe:
        pipe.send(b"echo read\n")
        pipe.end_input()
        assert b"".join(stdout for stdout, _ in pipe) == b"read\n"


def test_the_check_of_a_file_request_agrees_with_its_refusal(daemon: Daemon) -> None:
    daemon.client.shell.start(LOCAL)
    bound = create(daemon, "fs.read", "fs.write", rules=[{"effect": "allow", "path": "/srv/**"}])
    for path, body in {
        "/fs/list": {"path": "/etc"},
        "/fs/stat": {"path": "/etc/hostname"},
        "/fs/mkdir": {"path": "/etc/none"},
        "/fs/move": {"source": "/etc/none", "target": "/srv/none"},
        "/fs/remove": {"path": "/etc/none"},
    }.items():
        body["connection"] = LOCAL
        assert bound.ok("/token/check", path=path, request=body)["effect"] == "deny", path
        assert bound.refused(path, **body) == "policy_denied", path


def test_the_check_of_an_upload_says_deny_where_a_rule_asks(daemon: Daemon) -> None:
    bound = create(daemon, "fs.write", rules=[{"effect": "ask", "path": "/srv/**"}])
    for path, effect in {"/fs/mkdir": "ask", "/fs/upload": "deny"}.items():
        told = bound.ok("/token/check", path=path, request={"connection": LOCAL, "path": "/srv/new"})
        assert told["effect"] == effect, path


@pytest.mark.parametrize(
    ("path", "body", "effect", "code"),
    [
        ("/fs/glob", {"pattern": "/etc/*"}, "allow", "ok"),
        ("/fs/glob", {"pattern": "/etc/*/../*"}, "deny", "policy_denied"),
        ("/fs/script", {"blob": NOBODY}, "deny", "policy_denied"),
        ("/fs/list", {"path": "{d}/open"}, "allow", "ok"),
        ("/fs/list", {"path": "relative"}, "unknown", "policy_denied"),
        ("/fs/move", {"source": "{d}/write/a", "target": "{d}/open/a"}, "deny", "policy_denied"),
        ("/fs/checksum", {"path": "{d}/open"}, "allow", "ok"),
        ("/fs/checksum", {"path": "{d}/mixed"}, "unknown", "policy_denied"),
        ("/fs/remove", {"path": "{d}/mixed", "recursive": True}, "unknown", "policy_denied"),
        ("/fs/remove", {"path": "{d}/open/empty", "recursive": False}, "allow", "ok"),
        ("/fs/mkdir", {"path": "{d}/asked/new"}, "ask", "approval_required"),
    ],
)
def test_the_check_of_trees_patterns_and_scripts_agrees_with_the_answer(
    daemon: Daemon, tmp_path: Path, path: str, body: dict[str, Any], effect: str, code: str
) -> None:
    daemon.client.shell.start(LOCAL)
    for name in ("open/empty", "mixed/closed", "asked", "write/a"):
        (tmp_path / name).mkdir(parents=True)
    rules = [
        {"effect": "allow", "path": f"{tmp_path}/open/**"},
        {"effect": "allow", "path": f"{tmp_path}/mixed"},
        {"effect": "allow", "path": f"{tmp_path}/write/**", "action": "fs.write"},
        {"effect": "ask", "path": f"{tmp_path}/asked/**"},
    ]
    bound = create(daemon, "fs.read", "fs.write", rules=rules)
    given = {"connection": LOCAL, **json.loads(json.dumps(body).replace("{d}", str(tmp_path)))}
    assert bound.ok("/token/check", path=path, request=given)["effect"] == effect
    answer = bound.send(path, **given)
    assert ("ok" if answer.status == 200 else answer.code) == code


def test_a_locale_of_a_bound_token_names_no_file(daemon: Daemon) -> None:
    request = {"connection": LOCAL, "argv": ["/usr/bin/env"], "start": True}
    bound = create(daemon, "shell.argv", rules=[{"effect": "allow", "argv": ["/usr/bin/env"]}])
    for value in ("/tmp/mine", "../mine", "%s"):
        assert bound.refused("/shell/exec", **request, sendEnv={"LC_ALL": value}) == "policy_denied"
    printed = bound.ok("/shell/exec", **request, sendEnv={"LC_ALL": "C.UTF-8"})["stdout"].splitlines()
    assert "LC_ALL=C.UTF-8" in printed


def test_a_rule_names_the_variables_that_a_bound_token_may_send(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--send-env", "LC_*,GIT_*,COLOR")
    request = {"connection": LOCAL, "argv": ["/usr/bin/env"], "start": True}
    bound = create(daemon, "shell.argv", rules=[{"effect": "allow", "argv": ["/usr/bin/env"]}])
    for sent in ({"GIT_SSH_COMMAND": "sh"}, {"COLOR": "no"}, {"LC_ALL": "C", "GIT_PAGER": "sh"}):
        assert bound.refused("/shell/exec", **request, sendEnv=sent) == "policy_denied"
    rules = [{"effect": "allow", "argv": ["/usr/bin/env"], "env": {"COLOR": {"in": ["no", "yes"]}}}]
    printed = create(daemon, "shell.argv", rules=rules).ok("/shell/exec", **request, sendEnv={"COLOR": "no"})["stdout"]
    assert "COLOR=no" in printed.splitlines()


def test_a_variable_that_a_rule_names_for_one_program_is_not_in_the_shell_afterwards(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--send-env", "LC_*,GIT_*,COLOR")
    request = {"connection": LOCAL, "start": True}
    rules = [
        {"effect": "allow", "argv": ["/usr/bin/printenv", "COLOR"], "env": {"COLOR": {"re": ".*"}}},
        {"effect": "allow", "argv": ["/usr/bin/env"]},
    ]
    bound = create(daemon, "shell.argv", rules=rules)
    for _ in range(2):
        mine = bound.ok("/shell/exec", **request, argv=["/usr/bin/printenv", "COLOR"], sendEnv={"COLOR": "mine"})
        assert mine["stdout"] == "mine"
        assert "COLOR" not in bound.ok("/shell/exec", **request, argv=["/usr/bin/env"])["stdout"]
        assert "COLOR" not in daemon.client.shell.exec(LOCAL, "env").stdout
    # What a command of the shell itself has brought stays, and is no program's own.
    daemon.client.post("/shell/exec", **request, command="cd .", sendEnv={"COLOR": "theirs"})
    mine = bound.ok("/shell/exec", **request, argv=["/usr/bin/printenv", "COLOR"], sendEnv={"COLOR": "mine"})
    assert mine["stdout"] == "mine"
    assert "COLOR=theirs" in daemon.client.shell.exec(LOCAL, "env").stdout
