"""The documentation of the commands matches their help, and the program starts quickly."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import click
import pytest

from connmgr.cli.examples import EXAMPLES
from connmgr.cli.exits import MEANINGS
from connmgr.cli.root import COMMANDS, SECTIONS, main
from tests.cli.program import Done, run
from tests.daemon import clean_environment

ROOT = Path(__file__).parents[2]

STRANGERS = {
    *("flask", "marshmallow", "waitress", "sqlalchemy", "alembic", "nacl", "paramiko", "pluggy"),
    *("http", "email", "ssl", "psutil", "pexpect", "rich", "platformdirs", "cryptography", "readline", "tomllib"),
}
"""Modules that commands which only talk to the daemon must not load."""

LIGHT = [
    *("ls", "exec", "cp", "shell", "ssh", "disconnect", "job", "status", "info", "add", "edit", "rm", "mv", "category"),
    *("encrypt", "completion"),
]
LOADS = """
import os, sys
from connmgr.cli.root import main
for command in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    output, sys.stdout = sys.stdout, __import__("io").StringIO()
    try:
        main([command, "--help"])
    except SystemExit:
        loaded = sorted({name.split(".")[0] for name in sys.modules})
        print(__import__("json").dumps([sys.stdout.getvalue(), loaded]), file=output, flush=True)
    os._exit(0)
"""


def test_the_documents_are_as_the_commands_are() -> None:
    argv = [sys.executable, ROOT / "scripts/describe_cli.py", "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man: the program man is not installed")
def test_the_man_page_is_well_formed() -> None:
    argv = ["man", "--warnings=w", "--encoding=UTF-8", "--local-file", str(ROOT / "docs/connmgr.1")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env={"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "connmgr exec [OPTIONS] CONNECTION" in done.stdout
    assert "EXIT STATUS" in done.stdout


@pytest.mark.parametrize("command", LIGHT)
def test_a_command_loads_nothing_that_it_does_not_need(command: str) -> None:
    usage, loaded = _loaded()[command]
    assert usage.startswith("Usage: ")
    assert STRANGERS & set(loaded) == set()


@cache
def _loaded() -> dict[str, tuple[str, list[str]]]:
    """Return the help of each of :data:`LIGHT` and the packages loaded for it, each from a new process."""
    argv = [sys.executable, "-c", LOADS, *LIGHT]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return dict(zip(LIGHT, map(json.loads, done.stdout.splitlines()), strict=True))


def _each(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield the words and the command of each runnable command below ``command``."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield context.command_path.partition(" ")[2], command
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None, f"{context.command_path} lists {name}, and does not have it"
        yield from _each(inner, click.Context(inner, parent=context, info_name=name))


def test_each_command_has_examples_that_call_it() -> None:
    commands = dict(_each(main, click.Context(main, info_name="connmgr")))
    assert set(EXAMPLES) == set(commands)
    for words, lines in EXAMPLES.items():
        assert commands[words].epilog
        assert 1 <= len(lines) <= 5
        for line in lines:
            assert f"connmgr {words}" in line
            assert len(line) <= 76, f"{line!r} does not fit into 80 columns"


HelpOf = Callable[..., Done]


@pytest.fixture
def help_of(tmp_path: Path) -> HelpOf:
    """A function that runs the program on 80 columns."""
    return partial(run, environment=clean_environment(tmp_path) | {"COLUMNS": "80"})


def test_the_help_shows_every_command_once_in_its_section_on_one_line(help_of: HelpOf) -> None:
    shown = help_of("--help").output
    listed = [line for line in shown.splitlines() if re.fullmatch(r"  [a-z][a-z-]* {2,}\S.*", line)]
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert [title for title in SECTIONS if f"\n{title}:\n" in shown] == list(SECTIONS)
    assert not [line for line in listed if line.endswith("...")], "shorten the first sentences of these helps"
    assert "Which of the four" in shown.partition("Run commands:")[2]


@pytest.mark.parametrize("group", [("category",), ("job",), ("vault",), ("vault", "user"), ("service",)])
def test_summaries_fit_into_a_terminal_of_80_columns(help_of: HelpOf, group: tuple[str, ...]) -> None:
    shown = help_of(*group, "--help").output.partition("\nCommands:\n")[2].splitlines()
    assert shown
    for line in shown:
        assert not line.endswith("..."), f"shorten the first sentence of its help: {line}"
        assert re.fullmatch(r"  \S+ +\S.*", line), f"shorten the first sentence of the help of the line before: {line}"


def test_help_tells_of_a_command_and_of_exit_codes(help_of: HelpOf) -> None:
    assert help_of("help", "job", "wait").output == help_of("job", "wait", "--help").output
    assert help_of("help").output == help_of("--help").output
    codes = help_of("help", "exit-codes").output
    assert re.findall(r"^(\d+) ", codes, re.MULTILINE) == [str(code) for code in MEANINGS]
    assert "128 + N" in codes
    refused = help_of("help", "job", "wiat")
    assert (refused.code, "Did you mean wait" in refused.errors) == (2, True)
    assert "connmgr ls has no commands" in help_of("help", "ls", "more").errors
