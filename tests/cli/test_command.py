"""``connmgr command`` and ``connmgr exec --saved``."""

from __future__ import annotations

import pytest

from tests.cli.program import CommandLine


def test_a_command_is_saved_listed_run_and_removed(connmgr: CommandLine) -> None:
    parameters = ["name=re:[A-Z][a-z]+", "mood=in:well,ill", "count=integer:1..3", "file=path:/tmp/**"]
    options = [word for one in parameters for word in ("--parameter", one)]
    words = ["printf", "%s|", "{name}", "is {mood}", "{count}", "{{{file}}}", "plain"]
    connmgr("command", "save", "greet", *options, "--description", "Greets.", "--", *words)
    [listed] = connmgr("command", "ls", "--json").json
    assert listed["argv"] == ["printf", "%s|", {"parameter": "name"}, {"text": "is {mood}"}, {"parameter": "count"},
                              {"text": "{{{file}}}"}, "plain"]  # fmt: skip
    assert listed["parameters"] == {
        "name": {"re": "[A-Z][a-z]+"},
        "mood": {"in": ["well", "ill"]},
        "count": {"integer": {"min": 1, "max": 3}},
        "file": {"path": "/tmp/**"},
    }
    line = connmgr("command", "ls").output
    assert line == "greet  printf '%s|' '{name}' 'is {mood}' '{count}' '{{{file}}}' plain  Greets.\n"
    arguments = ["name=Ada", "mood=well", "count=2", "file=/tmp/a=b"]
    printed = "Ada|is well|2|{/tmp/a=b}|plain|"
    assert connmgr("exec", "local", "--saved", "greet", *arguments).output == printed
    assert connmgr("exec", "local", "--saved", "greet", "--", *arguments).output == printed
    assert printed in connmgr("exec", "--all", "local*", "--saved", "greet", "--", *arguments).output
    job = connmgr("exec", "--detach", "local", "--saved", "greet", "--", *arguments).output.strip()
    connmgr("job", "wait", job)
    assert connmgr("job", "logs", job).output == printed
    done = connmgr("exec", "local", "--saved", "greet", *arguments[:-1], "file=/etc/passwd", code=125)
    assert "saved.arguments.file: The parameter does not accept this value" in done.errors
    connmgr("command", "save", "greet", "--replace", "--", "echo", "hi")
    assert connmgr("exec", "local", "--saved", "greet").output == "hi\n"
    assert connmgr("exec", "--all", "local*", "--saved", "greet").code == 0
    connmgr("command", "rm", "greet")
    assert "Unknown saved command: greet" in connmgr("exec", "local", "--saved", "greet", code=125).errors


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["command", "save", "x", "--parameter", "a", "--", "x", "{a}"], 2, "NAME=KIND:VALUE"),
        (["command", "save", "x", "--parameter", "a=glob:x", "--", "x", "{a}"], 2, "NAME=KIND:VALUE"),
        (["command", "save", "x", "--parameter", "a=integer:1", "--", "x", "{a}"], 2, "MIN..MAX"),
        (["command", "save", "x", "--parameter", "a=re:(", "--", "x", "{a}"], 1, "parameters.a.re: Not a regular"),
        (["command", "save", "x", "--", "x", "{a}"], 1, "No parameter is called a"),
        (["command", "save", "x"], 2, "Missing argument"),
        (["command", "rm", "none"], 1, "Unknown saved command: none"),
        (["exec", "local", "--saved", "x", "a"], 125, "not of the form NAME=VALUE"),
        (["exec", "local", "--saved", "x", "--argv", "--", "a=b"], 125, "Give one of --argv, --saved and --script"),
    ],
)
def test_impossible_commands_are_reported(connmgr: CommandLine, arguments: list[str], code: int, told: str) -> None:
    assert told in connmgr(*arguments, code=code).errors
