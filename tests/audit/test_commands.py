"""What the audit log has of commands: the text of tokens' without known secrets, and how each command ended."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from connmgr.audit.entry import CUT_OUT, MAX_TEXT, CommandText
from tests.api.wire import LOCAL, add
from tests.cli.program import CommandLine
from tests.conftest import Recorded, StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually, eventually_equal
from tests.rights.wire import Holder, create

PASSWORD = "correct horse's battery"


def _log(daemon: Daemon) -> str:
    return (daemon.data_dir / "audit.log").read_text()


def _send(holder: Holder, **body: Any) -> None:
    holder.ok("/shell/exec", connection=LOCAL, start=True, **body)


def test_commands_of_tokens_are_recorded_and_the_owner_s_are_not(clean_daemon: Daemon, recorded: Recorded) -> None:
    holder = create(clean_daemon, "shell.any", "job", "terminal")
    clean_daemon.client.post("/shell/start", connection=LOCAL)
    clean_daemon.client.post("/shell/exec", connection=LOCAL, command="echo owner's")
    _send(holder, command="printf 'ä\n'; exit 3", stdin="canary", env={"CANARY": "canary"})
    _send(holder, argv=["echo", "two words"])
    assert holder.send("/shell/broadcast", connections=[LOCAL], command="echo broadcast").status == 200
    holder.ok("/job/start", connection=LOCAL, command="echo job")
    holder.ok("/terminal/open", connection=LOCAL, command="echo terminal")
    entries = [one for one in recorded() if one.get("commandMac") and "event" not in one]
    assert [one.get("command") for one in entries] == [
        None,
        "printf 'ä\n'; exit 3",
        "echo 'two words'",
        "echo broadcast",
        "echo job",
        "echo terminal",
    ]
    assert "canary" not in json.dumps(recorded())
    shown = CommandLine(clean_daemon)("audit", "--action", "shell.exec", "-n", "2").output
    assert "echo 'two words'" in shown


@pytest.mark.parametrize("wrapped", ["{}", "sudo -S <<< {}", "--password={}", "{}{}"])
def test_secrets_that_the_vault_knows_are_cut_out(clean_daemon: Daemon, recorded: Recorded, wrapped: str) -> None:
    client = clean_daemon.client
    gateway = add(client, "gateway", type="ssh", host="127.0.0.1", port=1, user="u", password=PASSWORD)
    target = add(client, "target", type="ssh", host="127.0.0.1", port=1, user="u", password="abc", gateway=gateway)
    holder = create(clean_daemon, "shell.any")
    text, word = wrapped.replace("{}", shlex.quote(PASSWORD)), wrapped.replace("{}", PASSWORD)
    for body in ({"command": text}, {"command": word}, {"argv": ["x", word]}):
        holder.refused("/shell/exec", connection=target, start=True, **body)
    assert holder.send("/shell/broadcast", connections=[target, LOCAL], command=f"true {text}").status == 200
    entries = [one for one in recorded() if one.get("commandMac")]
    assert len(entries) == 4
    for one in entries:
        assert CUT_OUT in one["command"]
        assert one["commandSecrets"] == wrapped.count("{}")
        assert "battery" not in one["command"]
    holder.refused("/shell/exec", connection=target, start=True, command="echo abc")
    assert recorded()[-1]["command"] == "echo abc", "a secret of three characters occurs everywhere"


def test_sealed_secrets_are_cut_out_of_a_text(clean_daemon: Daemon, recorded: Recorded) -> None:
    sealed = clean_daemon.client.secret.encrypt("canary")
    holder = create(clean_daemon, "shell.any")
    _send(holder, command=f"cat <<'EOF'\n{json.dumps(sealed)}\nEOF")
    (entry,) = [one for one in recorded() if one.get("command")]
    assert sealed["secret"]["encryptedValue"] not in entry["command"]
    assert sealed["encryptedToken"]["token"] not in entry["command"]
    assert entry["commandSecrets"] == 2


def test_arguments_of_secret_parameters_are_not_recorded(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--audit-commands")
    client = daemon.client
    parameters = {"user": {"re": "[a-z]+"}, "password": {"re": ".*", "secret": True}}
    argv = ["echo", {"parameter": "user"}, {"text": "--password={password}"}]
    client.post("/command/save", name="login", argv=argv, parameters=parameters)
    assert client.post("/command/query")["commands"][0]["parameters"]["password"]["secret"] is True
    holder = create(daemon, "shell.argv")
    saved = {"name": "login", "arguments": {"user": "alice", "password": "a canary"}}
    answer = holder.ok("/shell/exec", connection=LOCAL, start=True, saved=saved)
    assert answer["stdout"] == "alice --password=a canary"
    client.post("/shell/exec", connection=LOCAL, saved=saved)
    entries = [json.loads(line) for line in _log(daemon).splitlines() if '"commandMac"' in line]
    assert [(one["command"], one["saved"]) for one in entries] == [("echo alice '--password=[secret]'", "login")] * 2
    assert entries[0]["commandMac"] == entries[1]["commandMac"]
    assert "canary" not in _log(daemon)


def test_a_long_command_is_cut_and_the_rest_counted(clean_daemon: Daemon, recorded: Recorded) -> None:
    text = "true " + "x" * (MAX_TEXT + 1000)
    _send(create(clean_daemon, "shell.any"), command=text)
    (entry,) = [one for one in recorded() if one.get("command")]
    assert (entry["command"], entry["commandLeftOut"]) == (text[:MAX_TEXT], len(text) - MAX_TEXT)
    assert entry["commandBytes"] == len(text)


def test_a_token_reads_its_own_commands_and_not_those_of_others(clean_daemon: Daemon) -> None:
    one, other = (create(clean_daemon, "shell.any", "audit.read") for _ in range(2))
    for holder, text in ((one, "echo one"), (other, "echo other")):
        _send(holder, command=text)
    seen = one.ok("/audit/query", action="shell.exec", limit=2)["entries"]
    assert [(entry["token"], entry.get("command")) for entry in seen] == [(other.id, None), (one.id, "echo one")]
    assert all(entry["commandBytes"] for entry in seen)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {"holder"}),
        (["--audit-token-commands", "hash"], set()),
        (["--audit-commands"], {"holder", "owner"}),
        (["--audit-commands", "--audit-token-commands", "hash"], {"holder", "owner"}),
    ],
)
def test_settings_say_whose_commands_are_recorded(
    start_daemon: StartDaemon, options: list[str], expected: set[str]
) -> None:
    daemon = start_daemon(*options)
    long = "x" * MAX_TEXT
    daemon.client.post("/shell/exec", connection=LOCAL, start=True, command=f"true owner {long}")
    _send(create(daemon, "shell.any"), command=f"true holder {long}")
    entries = [json.loads(line) for line in _log(daemon).splitlines() if '"commandMac"' in line]
    assert {one["command"].split()[1] for one in entries if "command" in one} == expected
    assert all("commandLeftOut" not in one for one in entries) or not options


def test_secrets_are_asked_for_only_where_a_text_is_recorded() -> None:
    asked: list[object] = []
    text = CommandText(secrets=lambda connections: asked.append(connections) or [PASSWORD])
    assert text.of({"command": "x"}, {"connection": "a"}) == {}
    assert asked == []
    found = text.of({"command": f"x {PASSWORD}"}, {"connection": "a", "connections": ["b"], "token": "t"})
    assert (found["command"], asked) == (f"x {CUT_OUT}", [{"a", "b"}])


def test_each_way_of_running_a_command_records_its_exit_code(clean_daemon: Daemon, recorded: Recorded) -> None:
    client = clean_daemon.client
    client.post("/shell/start", connection=LOCAL)
    client.post("/shell/exec", connection=LOCAL, command="exit 3")
    list(client.shell.stream(LOCAL, "exit 4"))
    client.post("/shell/exec", connection=LOCAL, command="exit 5", detachAfter=20)
    job = client.post("/job/start", connection=LOCAL, command="exit 6")["job"]
    client.post("/job/wait", job=job, wait=20)
    client.post("/job/output", job=job, stdout=0, stderr=0)
    client.post("/job/info", job=job)
    list(client.shell.broadcast("exit 7", [LOCAL, "00000000-0000-0000-0000-000000000000"]))
    with client.shell.pipe(LOCAL, "exit 8") as pipe:
        list(pipe)
    terminal = client.post("/terminal/open", connection=LOCAL, command="exit 9")["terminal"]

    def ended() -> list[dict[str, Any]]:
        return [one for one in recorded() if one.get("event") == "ended"]

    eventually_equal(lambda: len(ended()), 2, "the ends are not recorded")
    codes = [(one["action"], one.get("exitCode")) for one in recorded()]
    assert codes[1:8] == [
        ("shell.exec", 3),
        ("shell.exec", 4),
        ("shell.exec", 5),
        ("job.start", None),
        ("job.wait", 6),
        ("job.output", 6),
        ("job.info", 6),
    ]
    (spread,) = [one for one in recorded() if one["action"] == "shell.broadcast"]
    assert (spread["exitCodes"], spread["succeeded"], spread["failed"], spread["errors"]) == ([7, None], 0, 1, 1)
    by_action = {one["action"]: one for one in ended()}
    assert {action: one["exitCode"] for action, one in by_action.items()} == {"shell.pipe": 8, "terminal.open": 9}
    assert by_action["terminal.open"]["terminal"] == terminal
    began = {one["action"]: one for one in recorded() if "event" not in one}
    assert all(one["id"] == began[action]["id"] for action, one in by_action.items())
    shown = CommandLine(clean_daemon)("audit", "-n", "6").output
    assert all(word in shown for word in ("exit 7 (1) none (1)", "ended exit 8", "ended exit 9"))


def test_the_end_of_a_job_is_recorded_although_no_request_asks(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    client = daemon.client
    client.post("/shell/start", connection=LOCAL)
    holder = create(daemon, "job", "shell.any")
    jobs = [client.post("/job/start", connection=LOCAL, command=f"exit {code}")["job"] for code in (6, 7)]
    jobs.append(holder.ok("/job/start", connection=LOCAL, command="exit 8")["job"])
    assert client.post("/job/wait", job=jobs[1], wait=20)["exitCode"] == 7

    def ended() -> bool:
        return all(one["state"] == "exited" for one in client.post("/job/query")["jobs"])

    # The query sees the ends, as the thread does that looks at jobs every 30 s, and its entry does not tell them.
    eventually(ended, "the jobs run on")
    daemon.stop()
    entries = [json.loads(line) for line in _log(daemon).splitlines()]
    found = {one["job"]: one for one in entries if one.get("event") == "ended"}
    assert {job: one["exitCode"] for job, one in found.items()} == {jobs[0]: 6, jobs[2]: 8}
    owned, of_token = found[jobs[0]], found[jobs[2]]
    assert (owned["connection"], owned["state"], "token" in owned) == (LOCAL, "exited", False)
    assert (of_token["token"], "tokenName" in of_token) == (holder.id, True)
    assert [one["exitCode"] for one in entries if one.get("action") == "job.wait"] == [7], "a request has told it"


def test_ends_are_recorded_when_the_daemon_ends_the_programs(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    daemon.client.post("/terminal/open", connection=LOCAL, command="sleep 600")
    daemon.stop()
    entries = [json.loads(line) for line in _log(daemon).splitlines()]
    assert [one["action"] for one in entries if one.get("event") == "ended"] == ["terminal.open"]
    assert "exitCode" not in entries[-1]


def test_the_rule_the_approval_and_who_decided_are_shown(clean_daemon: Daemon, recorded: Recorded) -> None:
    rules = [
        {"name": "reads", "effect": "allow", "argv": ["/bin/true"]},
        {"name": "writes", "effect": "ask", "argv": ["/bin/echo", {"re": ".*"}]},
    ]
    holder = create(clean_daemon, "shell.argv", rules=rules)
    decider = create(clean_daemon, "approval.decide")
    _send(holder, argv=["/bin/true"])
    ids = []
    owner = clean_daemon.client.post
    for word, decide, verdict in (("a", owner, "once"), ("b", decider.ok, "once"), ("c", owner, "deny")):
        request = {"connection": LOCAL, "argv": ["/bin/echo", word]}
        answer = holder.send("/shell/exec", **request)
        assert answer.code == "approval_required"
        ids.append(answer.json["approval"])
        decide("/approval/decide", approval=ids[-1], decision=verdict)
        assert holder.send("/shell/exec", **request).status == (403 if verdict == "deny" else 200)
    entries = [one for one in recorded() if one["action"] == "shell.exec"]
    assert [(one.get("rule"), one.get("approval"), one.get("decidedBy"), one.get("exitCode")) for one in entries] == [
        ("reads", None, None, 0),
        (None, ids[0], None, None),
        ("writes", ids[0], "owner", 0),
        (None, ids[1], None, None),
        ("writes", ids[1], decider.id, 0),
        (None, ids[2], None, None),
        (None, ids[2], "owner", None),
    ]
    shown = CommandLine(clean_daemon)("audit", "--action", "shell.exec", "-n", "7").output
    assert "rule reads" in shown
    assert f"rule writes, approval {ids[0]} by owner" in shown
    assert f"approval {ids[1]} by {decider.id}" in shown
    assert "exit 0" in shown
