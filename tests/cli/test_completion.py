"""``connmgr completion`` in the real shells, on a terminal, by pressing Tab."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.cli.program import CommandLine
from tests.deadlines import eventually

PROMPT = "ready> "
SHELLS = [pytest.param(shell, marks=pytest.mark.needs(shell)) for shell in ("bash", "zsh", "fish")]


@pytest.fixture(scope="module", autouse=True)
def connections(connmgr: CommandLine) -> None:
    for name in ("unmistakable host", "twin one", "twin two", "it's odd"):
        connmgr.daemon.client.connection.add(name, {"type": "ssh", "host": f"h{abs(hash(name))}.example"})


SETTINGS = {
    "bash": ("bashrc", f"PS1='{PROMPT}'", 'eval "$(connmgr completion bash)"'),
    "zsh": (".zshrc", f"PS1='{PROMPT}'", "autoload -Uz compinit; compinit -D", 'eval "$(connmgr completion zsh)"'),
    "fish": ("config.fish", f"function fish_prompt; echo -n '{PROMPT}'; end", "connmgr completion fish | source"),
}


@pytest.fixture
def terminal(connmgr: CommandLine, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[pexpect.spawn]:
    """The shell that is the test's parameter, at its first prompt, with nothing set up but the completion."""
    name, *lines = SETTINGS[request.param]
    settings = tmp_path / name
    settings.write_text("\n".join([*lines, ""]))
    arguments = {
        "bash": ["--noprofile", "--rcfile", str(settings), "-i"],
        "zsh": ["-d", "-i"],
        "fish": ["--no-config", "--interactive", "--init-command", f"source {settings}"],
    }[request.param]
    connmgr.environment["ZDOTDIR"] = str(tmp_path)
    started = connmgr.on_terminal(*arguments, program=request.param)
    started.expect_exact(PROMPT)
    yield started
    started.close(force=True)


def complete(terminal: pexpect.spawn, directory: Path, line: str) -> str:
    """Type ``line``, press Tab, run what has become of it, and return its standard output."""
    output, end = directory / "output", directory / "end"
    terminal.send(f"{line}\t")
    terminal.send(f" >{output}; echo >{end}\r")
    eventually(end.exists, f"the command {line!r} does not end")
    return output.read_text()


@pytest.mark.parametrize("terminal", SHELLS, indirect=True)
def test_a_name_with_blanks_is_completed_and_quoted(terminal: pexpect.spawn, tmp_path: Path) -> None:
    shown = complete(terminal, tmp_path, "connmgr info --json unmis")
    assert json.loads(shown)["name"] == ["unmistakable host"]


@pytest.mark.parametrize("terminal", SHELLS, indirect=True)
def test_commands_are_completed(terminal: pexpect.spawn, tmp_path: Path) -> None:
    assert complete(terminal, tmp_path, "connmgr vault stat").startswith("users ")


@pytest.mark.parametrize("terminal", SHELLS, indirect=True)
def test_several_candidates_are_shown(terminal: pexpect.spawn) -> None:
    terminal.send("connmgr exec twin\t")
    terminal.send("\t\t")
    terminal.expect(re.compile(r"one.*two", re.DOTALL))


@pytest.mark.needs("fish")
def test_fish_shows_descriptions_whole(connmgr: CommandLine) -> None:
    def described(line: str) -> dict[str, str]:
        script = f"connmgr completion fish | source; complete --do-complete {shlex.quote(line)}"
        argv = ["fish", "--no-config", "-c", script]
        done = subprocess.run(argv, env=connmgr.environment, capture_output=True, text=True, timeout=60, check=True)
        return dict(row.split("\t", 1) for row in done.stdout.splitlines() if "\t" in row)

    assert described("connmgr pl")["plugins"] == "List connection types, secret sources, problems."
    option = described("connmgr exec --det")["--detach"]
    assert option == "Begin it as a job, which runs on by itself, and print the job's uuid."


@pytest.mark.needs("bash")
def test_a_category_is_completed_and_a_command_is_not(clean_connmgr: CommandLine) -> None:
    clean_connmgr("category", "add", "fleet/eu")
    clean_connmgr("add", "ssh", "web", "host=a.example", "--category", "fleet/eu")
    for words, expected in {
        "exec flee": ["fleet/eu/web"],
        "exec fleet/eu/w": ["fleet/eu/web"],
        "exec --all local we": ["web"],
        "exec local we": [],
        "exec --all web -- we": [],
        "help wait": [],
        "help job wai": ["wait"],
        "help exi": ["exit-codes"],
    }.items():
        line = f"connmgr {words}"
        request = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_CONNMGR_COMPLETE": "bash_complete"}
        offered = [one.partition(",")[2] for one in clean_connmgr(environment=request).output.split()]
        assert offered == expected, words


@pytest.mark.needs("bash")
def test_without_a_daemon_nothing_is_offered_and_nothing_said(connmgr: CommandLine) -> None:
    request = {"COMP_WORDS": "connmgr exec un", "COMP_CWORD": "2", "_CONNMGR_COMPLETE": "bash_complete"}
    assert connmgr(environment=request).output == "plain,unmistakable\\ host\n"
    done = connmgr(environment={**request, "CONNMGR_PORT": "1"})
    assert (done.output.strip(), done.errors) == ("", "")


def test_each_completion_names_one_connection(clean_connmgr: CommandLine) -> None:
    connmgr = clean_connmgr
    for category in ("a", "b"):
        connmgr("category", "add", category)
        connmgr("add", "ssh", "web", f"host={category}.example", "--category", category)
    request = {"COMP_WORDS": "connmgr exec w", "COMP_CWORD": "2", "_CONNMGR_COMPLETE": "bash_complete"}
    offered = [line.removeprefix("plain,") for line in connmgr(environment=request).output.splitlines()]
    assert offered == ["a/web", "b/web"]
    for name in offered:
        connmgr("info", name)
    for_cp = {**request, "COMP_WORDS": "connmgr cp loc"}
    assert connmgr(environment=for_cp).output.splitlines() == ["plain,local\\ machine:"]


def test_a_name_offers_nothing_beside_itself_and_reaches_no_terminal(clean_connmgr: CommandLine) -> None:
    for number, name in enumerate(("web", "web\nplain,other", "web\x1b]52;c;eA==\x07", "web\u202egpj"), 1):
        data = {"type": "ssh", "host": f"192.0.2.{number}"}
        clean_connmgr.daemon.client.connection.add(name, data, validate=False)
    for shell, current in (("bash", "2"), ("zsh", "2"), ("fish", "w")):
        request = {"COMP_WORDS": "connmgr exec w", "COMP_CWORD": current, "_CONNMGR_COMPLETE": f"{shell}_complete"}
        offered = clean_connmgr(environment=request).output
        assert (offered.count("web"), "other" in offered) == (1, False), (shell, offered)


@pytest.mark.needs("bash")
def test_quoted_names_survive_bash(connmgr: CommandLine) -> None:
    request = {"COMP_WORDS": "connmgr exec it", "COMP_CWORD": "2", "_CONNMGR_COMPLETE": "bash_complete"}
    (offered,) = connmgr(environment=request).output.splitlines()
    assert shlex.split(offered.removeprefix("plain,")) == ["it's odd"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ssh twi", ["twin\\ one", "twin\\ two"]),
        ("ssh -t -p 22 unmis", ["unmistakable\\ host"]),
        ("ssh -p unmis", []),
        ("ssh local twi", []),
        ("ssh -Z twi", []),
    ],
)
def test_ssh_completes_the_connection_among_its_own_options(connmgr: CommandLine, line: str, found: list[str]) -> None:
    words = {"COMP_WORDS": f"connmgr {line}", "COMP_CWORD": str(len(line.split()))}
    done = connmgr(environment={"_CONNMGR_COMPLETE": "bash_complete", **words})
    assert done.output.split("\n")[:-1] == ([f"plain,{name}" for name in found] or [""])
