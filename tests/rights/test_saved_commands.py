"""Saved commands: their parameters, the argv that they run, and who may run them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from connmgr.client.jobs import Job
from connmgr.errors import CommandExists, InvalidRequest, UnknownCommand
from connmgr.rights.saved_commands import SavedCommand, SavedCommands
from connmgr.vault import Vault
from tests.api.wire import LOCAL
from tests.daemon import Daemon
from tests.recorder import recorded, write_recorder
from tests.rights.wire import create

BODY = {
    "argv": ["tool", {"parameter": "name"}, {"text": "--n={n}.{{x}}"}, {"text": "{n}{name}"}],
    "parameters": {"name": {"re": ".*", "description": "a name"}, "n": {"integer": {"min": -5, "max": 9}}},
    "description": "What it is for",
}


def saved(name: str = "tool", **changes: Any) -> SavedCommand:
    return SavedCommand.read(name, {**BODY, **changes})


def test_arguments_take_the_place_of_parameters() -> None:
    argv, texts, recorded = saved().expand({"name": "a b;$(id)", "n": 7})
    assert recorded == argv
    assert argv == ("tool", "a b;$(id)", "--n=7.{x}", "7a b;$(id)")
    assert texts == {"name": "a b;$(id)", "n": "7"}
    assert saved().expand({"name": "{n}", "n": "-5"})[0] == ("tool", "{n}", "--n=-5.{x}", "-5{n}")
    assert saved(argv=["tool", "{n}", "{"], parameters={}).expand({})[0] == ("tool", "{n}", "{")


def test_what_answers_have_in_place_of_a_secret_is_not_one() -> None:
    command = saved(parameters={"name": {"re": ".*", "secret": True}, "n": {"integer": {}}})
    shown = command.shown({"name": "hunter2", "n": "1"})
    with pytest.raises(InvalidRequest, match="send the secret"):
        command.expand(shown)
    assert saved(parameters={"name": {"re": ".*"}, "n": {"integer": {}}}).expand(shown)


def test_arguments_of_secret_parameters_are_kept_out_of_what_is_recorded() -> None:
    parameters = {"name": {"re": ".*", "secret": True}, "n": {"integer": {}, "secret": False}}
    expanded = saved(parameters=parameters).expand({"name": "hunter2", "n": 7})
    assert expanded.argv[1] == "hunter2"
    assert expanded.recorded == ("tool", "[secret]", "--n=7.{x}", "7[secret]")
    with pytest.raises(InvalidRequest, match=r"parameters\.name\.secret"):
        saved(parameters={"name": {"re": ".*", "secret": "yes"}, "n": {"integer": {}}})


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"n": 1}, "saved.arguments.name: Missing"),
        ({"name": "x"}, "saved.arguments.n: Missing"),
        ({"name": "x", "n": 1, "more": "x"}, "saved.arguments.more: The command has no such parameter"),
        ({"name": "x", "n": 10}, "saved.arguments.n: The parameter does not accept this value"),
        ({"name": "x", "n": "01"}, "saved.arguments.n: The parameter does not accept this value"),
        ({"name": "x", "n": 1.0}, "saved.arguments.n: Not a text"),
        ({"name": "x", "n": True}, "saved.arguments.n: Not a text"),
        ({"name": "x", "n": None}, "saved.arguments.n: Not a text"),
        ({"name": ["x"], "n": 1}, "saved.arguments.name: Not a text"),
        ({"name": "x\n", "n": 1}, "saved.arguments.name: The parameter does not accept this value"),
        ({"name": "x\0", "n": 1}, "saved.arguments.name: It holds a NUL"),
        ({"name": "\ud800", "n": 1}, "saved.arguments.name: It holds a NUL character or a lone surrogate"),
        ({"name": "x" * 5000, "n": 1}, "saved.arguments.name: Longer than"),
        ({"name": "-x", "n": 1}, "saved.arguments.name: Its word would begin with `-`"),
        ({"name": "--", "n": 1}, "saved.arguments.name: Its word would begin with `-`"),
    ],
)
def test_an_invalid_argument_is_refused_with_its_parameter_s_name(arguments: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest, match="^" + re.escape(place)):
        saved().expand(arguments)


def test_no_argument_becomes_an_option_unless_it_is_listed() -> None:
    both = {"argv": ["tool", {"text": "{a}{b}"}], "parameters": {"a": {"re": "x*"}, "b": {"in": ["-v", "w"]}}}
    with pytest.raises(InvalidRequest, match="begin with"):
        saved(**both).expand({"a": "", "b": "-v"})
    assert saved(**both).expand({"a": "x", "b": "-v"})[0] == ("tool", "x-v")
    listed = saved(argv=["tool", {"parameter": "a"}], parameters={"a": {"in": ["-v"]}})
    assert listed.expand({"a": "-v"})[0] == ("tool", "-v")


@pytest.mark.parametrize(
    ("name", "changes", "place"),
    [
        ("", {}, "name"),
        ("-x", {}, "name"),
        ("a/b", {}, "name"),
        ("a\n", {}, "name"),
        ("a" * 65, {}, "name"),
        ("x", {"argv": []}, "argv: Not a list with at least one member"),
        ("x", {"argv": ["x"] * 101}, "argv: More than"),
        ("x", {"argv": [""]}, "argv[0]: The program is a text"),
        ("x", {"argv": ["./x"]}, "argv[0]: The program is a text"),
        ("x", {"argv": ["/a/../x"]}, "argv[0]: The program is a text"),
        ("x", {"argv": [{"parameter": "name"}, {"parameter": "n"}]}, "argv[0]: The program is a text"),
        ("x", {"argv": ["x", 1]}, "argv[1]: Neither a text nor an object"),
        ("x", {"argv": ["x", {"text": "{name}", "parameter": "n"}]}, "argv[1]: Neither a text nor an object"),
        ("x", {"argv": ["x", {"text": "{name"}]}, "argv[1].text: A single { stands"),
        ("x", {"argv": ["x", {"text": "name}"}]}, "argv[1].text: A single } stands"),
        ("x", {"argv": ["x", {"text": "{}"}]}, "argv[1].text: Not the name of a parameter"),
        ("x", {"argv": ["x", {"text": "{a b}"}]}, "argv[1].text: Not the name of a parameter"),
        ("x", {"argv": ["x", {"text": "a\0"}]}, "argv[1].text: It holds a NUL"),
        ("x", {"argv": ["x", {"parameter": ["n"]}]}, "argv[1].parameter: Not the name of a parameter"),
        ("x", {"argv": ["x", {"parameter": "other"}]}, "argv: No parameter is called other"),
        ("x", {"argv": ["x"]}, "parameters.n: No word has this parameter"),
        ("x", {"parameters": []}, "parameters: Not an object"),
        ("x", {"parameters": {"a b": {"re": "x"}}}, "parameters: Not a name"),
        ("x", {"parameters": {"n": "x"}}, "parameters.n: Not an object"),
        ("x", {"parameters": {"n": {"re": "("}}}, "parameters.n.re: Not a regular expression"),
        ("x", {"parameters": {"n": {"description": "x"}}}, "parameters.n: Neither a text nor an object"),
        ("x", {"parameters": {"n": {"re": "x", "description": 1}}}, "parameters.n.description: Not a text"),
        ("x", {"description": "x" * 1001}, "description: Longer than"),
    ],
)
def test_a_malformed_command_is_refused_with_its_place(name: str, changes: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest, match="^" + re.escape(place)):
        saved(name, **changes)


def test_commands_are_stored_by_name(vault: Vault) -> None:
    commands = SavedCommands(vault.commands)
    commands.save(saved("b"), replaces=False)
    commands.save(saved("a", argv=["x"], parameters={}), replaces=True)
    with pytest.raises(CommandExists):
        commands.save(saved("a"), replaces=False)
    commands.save(saved("a", argv=["y"], parameters={}), replaces=True)
    assert [name for name, _ in commands.all()] == ["a", "b"]
    assert commands.get("a").expand({})[0] == ("y",)
    commands.remove("a")
    with pytest.raises(UnknownCommand):
        commands.remove("a")
    with pytest.raises(UnknownCommand):
        commands.get("a").expand({})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a saved command that records its words."""
    directory = tmp_path_factory.mktemp("running")
    program = write_recorder(directory / "recorder")
    daemon = Daemon(directory / "home")
    parameters = {"what": {"re": r"[\w$();'\" ]*"}}
    argv = [str(program), {"parameter": "what"}, {"text": "<{what}>"}]
    daemon.client.post("/command/save", name="record", argv=argv, parameters=parameters)
    daemon.client.shell.start(LOCAL)
    yield daemon
    daemon.stop()


HOSTILE = "$(id) 'x\" ;"
ARGUMENTS = {"name": "record", "arguments": {"what": HOSTILE}}
WORDS = (HOSTILE.encode(), f"<{HOSTILE}>".encode())


def test_every_way_to_run_commands_runs_saved_ones(running: Daemon) -> None:
    client: Client = running.client
    assert recorded(client.shell.exec_bytes(LOCAL, saved=ARGUMENTS).stdout).words == WORDS
    [outcome] = client.shell.broadcast_bytes(connections=[LOCAL], saved=ARGUMENTS)
    assert recorded(outcome.result.stdout).words == WORDS  # type: ignore[union-attr]
    job = client.jobs.start(LOCAL, saved=ARGUMENTS)
    assert isinstance(job, Job)
    assert recorded(b"".join(piece.stdout for piece in job.stream())).words == WORDS
    with client.shell.pipe(LOCAL, saved=ARGUMENTS) as pipe:
        assert recorded(b"".join(piece.stdout for piece in pipe)).words == WORDS
    terminal = client.post("/terminal/open", connection=LOCAL, saved=ARGUMENTS)
    assert terminal["command"][1:] == [HOSTILE, f"<{HOSTILE}>"]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"saved": {"name": "none"}}, "unknown_command"),
        ({"saved": {"name": "record"}}, "invalid_request"),
        ({"saved": {"name": "record", "arguments": {"what": "\n"}}}, "invalid_request"),
        ({"saved": ARGUMENTS, "command": "true"}, "invalid_request"),
        ({"saved": ARGUMENTS, "argv": ["true"]}, "invalid_request"),
        ({"saved": "record"}, "invalid_request"),
        ({"saved": {**ARGUMENTS, "more": 1}}, "invalid_request"),
        ({}, "invalid_request"),
    ],
)
def test_a_request_for_a_saved_command_is_checked(running: Daemon, what: dict[str, Any], code: str) -> None:
    for path, where in (("/shell/exec", {"connection": LOCAL}), ("/shell/broadcast", {"connections": [LOCAL]})):
        with pytest.raises(ClientError) as error:
            running.client.post(path, **where, **what)
        assert error.value.code == code


RM: dict[str, Any] = {
    "argv": ["rm", "-v", {"text": "{name}.draft"}],
    "parameters": {"name": {"re": "[a-z]+"}},
}
GIT: dict[str, Any] = {
    "argv": ["git", "log", {"parameter": "n"}],
    "parameters": {"n": {"integer": {"min": 0, "max": 9}}},
}
ALLOW, ASK = {"effect": "allow"}, {"effect": "ask"}


@pytest.mark.parametrize(
    ("command", "rule", "passes"),
    [
        (RM, ALLOW, False),
        (RM, ASK, True),
        (RM, {**ALLOW, "mayRunOthers": True}, True),
        (RM, {**ALLOW, "arguments": {"name": {"in": ["old", "new"]}}}, True),
        (RM, {**ALLOW, "arguments": {"name": {"re": "old|new"}}}, False),
        ({**RM, "mayRunOthers": True}, ALLOW, True),
        ({**RM, "parameters": {"name": {"in": ["old", "new"]}}}, ALLOW, True),
        (GIT, ALLOW, False),
        (GIT, ASK, False),
        (GIT, {**ASK, "mayRunOthers": True}, True),
        ({"argv": ["cat", {"parameter": "f"}], "parameters": {"f": {"path": "/srv/**"}}}, ALLOW, True),
        ({"argv": ["sh", "-c", "id"], "parameters": {}}, ALLOW, True),
    ],
)
def test_arguments_of_a_token_are_as_free_as_the_words_of_a_rule(
    running: Daemon, command: dict[str, Any], rule: dict[str, Any], *, passes: bool
) -> None:
    client = running.client
    given = {"name": "old", "n": 3, "f": "/srv/none"}
    saved = {"name": "tried", "arguments": {name: given[name] for name in command["parameters"]}}
    body = {"name": "x", "expires": 60, "scopes": ["shell.argv"], "rules": [{**rule, "command": "tried"}]}
    # A rule may be there before its command.
    holder = create(running, *body["scopes"], rules=body["rules"])
    client.post("/command/save", name="tried", **command)
    try:
        answer = holder.send("/shell/exec", connection=LOCAL, saved=saved)
        expected = None if rule["effect"] == "allow" else "approval_required"
        assert (answer.json.get("code") if passes else answer.code) == (expected if passes else "policy_denied")
        if not passes:
            assert "mayRunOthers" in answer.json["message"]
            with pytest.raises(ClientError, match=r"rules\[0\]\.command: ") as error:
                client.post("/token/create", **body)
            assert error.value.code == "invalid_request"
        # The owner runs what the owner has saved.
        assert "exitCode" in client.post("/shell/exec", connection=LOCAL, saved=saved)
    finally:
        client.post("/command/remove", name="tried")


def test_a_token_saves_no_command_with_free_words_for_other_programs(running: Daemon) -> None:
    admin = create(running, "vault.admin")
    assert "rm may do more than print" in running.client.post("/command/save", name="mine", **RM)["warning"]
    assert admin.refused("/command/save", name="mine", replace=True, **RM) == "invalid_request"
    assert admin.refused("/command/save", name="mine", replace=True, mayRunOthers=True, **RM) == "scope_denied"
    listed = {**RM, "parameters": {"name": {"in": ["old"]}}}
    assert admin.ok("/command/save", name="mine", replace=True, **listed) == {"warning": None}
    running.client.post("/command/remove", name="mine")


def test_a_token_runs_only_the_saved_commands_that_a_rule_names(running: Daemon, tmp_path: Path) -> None:
    rule = {"effect": "allow", "command": "record", "arguments": {"what": {"in": ["one", "two"]}}}
    holder = create(running, "shell.argv", rules=[rule])

    def run(what: str, **more: Any) -> Any:
        return holder.send(
            "/shell/exec", connection=LOCAL, saved={"name": "record", "arguments": {"what": what}}, **more
        )

    assert run("one").json["exitCode"] == 0
    assert run("three").code == "policy_denied"
    assert run("one", env={"LD_PRELOAD": "x"}).code == "policy_denied"
    assert run("one", cwd="/").code == "policy_denied"
    [command] = running.client.post("/command/query")["commands"]
    argv = [command["argv"][0], "one", "<one>"]
    assert holder.refused("/shell/exec", connection=LOCAL, argv=argv) == "policy_denied"
    assert holder.refused("/command/save", name="mine", argv=["id"]) == "scope_denied"
    assert holder.refused("/command/remove", name="record") == "scope_denied"
    assert [one["name"] for one in holder.ok("/command/query")["commands"]] == ["record"]
    others = create(running, "shell.argv", rules=[{"effect": "allow", "argv": ["id"]}])
    assert others.refused("/shell/exec", connection=LOCAL, saved=ARGUMENTS) == "policy_denied"
    without = create(running, "connection.read")
    assert without.refused("/shell/exec", connection=LOCAL, saved=ARGUMENTS) == "scope_denied"
    entries = [json.loads(line) for line in (running.data_dir / "audit.log").read_text().splitlines()]
    assert any(one.get("saved") == "record" and one.get("code") == "policy_denied" for one in entries)
