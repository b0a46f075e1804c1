"""``connmgr exec --all`` over fifty hosts, some of them faulty: bounded time, and the right summary."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import click
import pytest

from connmgr.cli.fan_out import Gathered, fold_names, sum_up
from connmgr.printable import visible
from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine, finish
from tests.hasty import hasty

HOSTS = 50
SLOW_SECONDS = 3.0
"""Duration of the command on the slow host."""
COMMAND_SECONDS = 5.0
"""Timeout of the command."""
RUN_SECONDS = 90.0
"""Longest run on a busy machine; without a limit the frozen host would take an hour."""


@pytest.mark.slow
@pytest.mark.needs("sshd")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("daemon_program", [hasty("connmgr.engine.running.KILL_SECONDS=4")], ids=["hasty"])
def test_fifty_hosts_with_one_frozen_one_refusing_and_one_slow(
    own_connmgr: CommandLine, start_sshd: StartSshd, closed_port: int
) -> None:
    good, frozen = start_sshd(), start_sshd()
    client = own_connmgr.daemon.client
    own_connmgr.add_ssh("host00", good)
    pattern = client.connection.info(client.connection.query("host00"))[0].data
    # Equal connections would be one.
    for number in range(1, HOSTS - 3):
        client.connection.add(f"host{number:02}", {"type": "ssh", **pattern, "connectTimeout": 20 + number / 100})
    inner = client.connection.add("slow-link", {"type": "ssh", **pattern, "connectTimeout": 21})
    data = {"type": "shellEnvironment", "host": inner, "commands": [f"export WAIT={SLOW_SECONDS}"]}
    client.connection.add("host-slow", data)
    own_connmgr.add_ssh("host-frozen", frozen)
    own_connmgr.add_ssh("host-refusing", good, f"port={closed_port}", "connectTimeout=5")
    # The host freezes with a running shell.
    own_connmgr("exec", "host-frozen", "--", "true")
    frozen.freeze()
    command = (
        "exec",
        "--all",
        "--brief",
        "**host*",
        "-j",
        "20",
        "--timeout",
        f"{COMMAND_SECONDS:g}",
        "--",
        "sleep ${WAIT:-0}; echo $0",
    )
    start = time.monotonic()
    done = own_connmgr(*command, code=1)
    taken = time.monotonic() - start
    frozen.thaw()
    lines = done.output.splitlines()
    assert len(lines) == HOSTS, done.output
    verdicts = {line.split()[0]: line for line in lines}
    assert len(verdicts) == HOSTS
    troubled = {"host-frozen", "host-refusing"}
    for name, line in verdicts.items():
        assert (" ok " in line) == (name not in troubled), line
    assert re.search(r" (shell_lost|command_timeout) ", verdicts["host-frozen"]), verdicts["host-frozen"]
    assert " host_refused " in verdicts["host-refusing"]
    assert re.fullmatch(rf"{HOSTS} connections in [\d.]+ s: {HOSTS - 2} ok, 1 \w+, 1 \w+\n", done.errors), done.errors
    # Each line comes when its host finishes, so the first is of a quick one.
    assert next(iter(verdicts)) not in {"host-frozen", "slow-link/host-slow"}
    assert taken < RUN_SECONDS


def test_a_command_that_fails_somewhere_exits_with_1(clean_connmgr: CommandLine) -> None:
    for name, shell in (("one", "bash"), ("two", "sh")):
        clean_connmgr("add", "local", name, f"shell={shell}")
    done = clean_connmgr(
        "exec", "--brief", "--all", "{one,two}", "--", 'test -n "$BASH_VERSION" || exit 3; echo a; echo b', code=1
    )
    lines = {line.split()[0]: line for line in done.output.splitlines()}
    assert re.fullmatch(r"one  ok       +[\d.]+ s  a  \(\+1 line\)", lines["one"]), lines
    assert re.fullmatch(r"two  exit 3   +[\d.]+ s", lines["two"]), lines
    assert done.errors.endswith(" s: 1 ok, 1 exit 3\n")


def _shells(connmgr: CommandLine, names: Sequence[str], **data: object) -> None:
    """Add local shells with the variable N, their number."""
    for number, name in enumerate(names):
        commands = [f"N={number}; export N"]
        more = {"type": "shellEnvironment", "host": _local(connmgr), "commands": commands, **data}
        connmgr.daemon.client.connection.add(name, more)


def test_equal_outputs_are_printed_once_below_the_names_that_share_them(
    clean_connmgr: CommandLine, closed_port: int
) -> None:
    _shells(clean_connmgr, ["web1", "web2", "web3", "db"])
    far = {"type": "ssh", "host": "127.0.0.1", "port": closed_port, "user": "x"}
    clean_connmgr.daemon.client.connection.add("down", far)
    command = 'printf "one\\ntwo\\n"; [ $N -lt 3 ] || { printf "why not" >&2; exit 4; }'
    done = clean_connmgr("exec", "--all", "**/web?", "**/db", "down", "--", command, code=1)
    rule = "-" * 15
    lines = done.output.splitlines()
    assert lines[:5] == [rule, "local machine/web[1-3] (3)", rule, "one", "two"], done.output
    assert lines[5:-1] == [rule, "local machine/db (1): exit 4", rule, "one", "two", f"{rule} stderr", "why not"]
    assert lines[-1].startswith(f"down: host_refused: 127.0.0.1:{closed_port} refused"), lines[-1]
    assert re.fullmatch(r"5 connections in [\d.]+ s: 3 ok, 1 exit 4, 1 host_refused\n", done.errors), done.errors


def test_the_sum_is_in_one_order_whichever_came_first(capsys: pytest.CaptureFixture[str]) -> None:
    for verdicts in permutations(["ok", "exit 4", "host_refused", "shell_lost", "shell_lost"]):
        with pytest.raises(click.exceptions.Exit):
            sum_up(verdicts, 5, 0.1)
        said = "5 connections in 0.1 s: 1 ok, 2 shell_lost, 1 exit 4, 1 host_refused\n"
        assert capsys.readouterr().err == said


def test_output_that_is_the_same_on_both_streams_is_not_the_same(clean_connmgr: CommandLine) -> None:
    _shells(clean_connmgr, ["a0", "a1"])
    done = clean_connmgr("exec", "--all", "**/a?", "--", "[ $N = 0 ] && echo x || echo x >&2")
    assert done.output.count("(1)") == 2, done.output


def test_output_arrives_byte_by_byte(clean_connmgr: CommandLine) -> None:
    _shells(clean_connmgr, ["a0", "a1", "a2"])
    # More than is kept in memory, from all three.
    command = r"printf '\377\000\033[2J\r'; head -c 600000 /dev/zero | tr '\000' '\376'; echo; [ $N = 0 ] || echo $N"
    done = clean_connmgr("exec", "--all", "**/a?", "--", command)
    content = b"\xff\0\x1b[2J\r" + b"\xfe" * 600_000 + b"\n"
    assert done.stdout.count(content) == 3
    assert done.stdout.count(content + b"1\n") == 1


def test_a_command_killed_at_its_timeout_shows_what_it_printed(clean_connmgr: CommandLine) -> None:
    _shells(clean_connmgr, ["a0", "a1"])
    command = "echo began; [ $N = 0 ] || sleep 100"
    done = clean_connmgr("exec", "--all", "--timeout", "1", "**/a?", "--", command, code=1)
    assert done.output.count("began") == 2
    assert "a1 (1): command_timeout: The command ran longer than 1 s" in done.output


def test_a_terminal_shows_how_far_it_is(clean_connmgr: CommandLine, gate: Path) -> None:
    _shells(clean_connmgr, ["a0", "a1"])
    terminal = clean_connmgr.on_terminal("exec", "--all", "**/a?", "--", f"[ $N = 0 ] || read line < {gate}; echo done")
    terminal.expect_exact("1 of 2 done, waiting for local machine/a1")
    gate.write_text("go\n")
    code, rest = finish(terminal)
    assert code == 0
    assert "local machine/a0, local machine/a1 (2)" in rest


def test_ctrl_c_prints_what_has_ended_and_names_the_rest(clean_connmgr: CommandLine) -> None:
    _shells(clean_connmgr, ["a0", "a1"])
    terminal = clean_connmgr.on_terminal("exec", "--all", "**/a?", "--", "[ $N = 0 ] || sleep 300; echo done")
    terminal.expect_exact("1 of 2 done")
    terminal.sendintr()
    code, rest = finish(terminal)
    assert code == 130
    assert "local machine/a0 (1)" in rest
    assert "local machine/a1: interrupted" in rest


def test_brief_and_jobs_go_with_all_and_brief_without_json(connmgr: CommandLine) -> None:
    for option in (["--brief"], ["--jobs", "2"]):
        assert f"{option[0]} needs --all" in connmgr("exec", "local", *option, "--", "true", code=125).errors
        assert f"{option[0]} needs --all" in connmgr("cp", *option, __file__, "local:there", code=2).errors
    both = connmgr("exec", "--all", "local*", "--brief", "--json", "--", "true", code=125)
    assert "Give --brief or --json" in both.errors


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["web1"], "web1"),
        (["web1", "web2"], "web1, web2"),
        (["web1", "web2", "web3", "web7", "web9", "web10"], "web[1-3,7,9-10]"),
        (["n08", "n09", "n10", "db", "n11"], "n[08-11], db"),
        (["n8", "n09", "n10"], "n8, n09, n10"),
        (["rack1/a", "rack2/a", "rack3/a", "rack3/b"], "rack[1-3]/a, rack3/b"),
        (["local machine", "9" * 30], f"local machine, {'9' * 30}"),
    ],
)
def test_numbered_names_are_folded(names: list[str], text: str) -> None:
    assert fold_names(names) == text


@pytest.mark.parametrize("text", ["a\rb\n", "a\r\n", "\x1b[2J", "é"])
def test_control_characters_are_visible_on_a_terminal(
    text: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("connmgr.cli.fan_out.PIECE_BYTES", 1)
    with Gathered(["a"]) as gathered:
        gathered.add("a", "ok", text.encode())
        gathered.show()
    shown = capsysbinary.readouterr().out.decode().partition("(1)")[2].split("\n", 2)[2]
    assert shown.rstrip("\n") == visible(text, lines=True).rstrip("\n")


def test_only_what_failed_is_run_again(clean_connmgr: CommandLine, tmp_path: Path, closed_port: int) -> None:
    client = clean_connmgr.daemon.client
    for number in range(4):
        data = {"type": "shellEnvironment", "host": _local(clean_connmgr), "commands": [f"N={number}; export N"]}
        client.connection.add(f"sh{number}", data)
    unreachable = {"type": "ssh", "host": "127.0.0.1", "port": closed_port, "user": "x"}
    client.connection.add("sh-far", unreachable)
    first = clean_connmgr("exec", "--all", "**/sh?", "--json", "--", "exit $((N % 2))", code=1)
    log = tmp_path / "first"
    log.write_text(first.output + clean_connmgr("exec", "--all", "sh-far", "--json", "--", "true", code=1).output)
    again = ("exec", "--all", "**sh*", "--retry-failed", str(log), "--json", "--", "echo $N")
    done = clean_connmgr(*again, code=1)
    outcomes = [json.loads(line) for line in done.output.splitlines()]
    assert sorted(one.get("stdout", one.get("error", {}).get("code")) for one in outcomes) == ["1", "3", "host_refused"]
    log.write_text("\n".join(line for line in first.output.splitlines() if '"exitCode": 0' in line))
    nothing = clean_connmgr(*again)
    assert (nothing.output, nothing.errors) == ("", "0 connections in 0.0 s: 0 ok\n")


def test_a_file_that_is_not_an_earlier_output_is_refused(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text in ("web1  ok", "[]", '{"connection": "x"}', "3"):
        log.write_text(text)
        done = clean_connmgr("exec", "--all", "*", "--retry-failed", str(log), "--", "true", code=125)
        assert "line 1 is not one" in done.errors
    assert (
        "Only with --all" in clean_connmgr("exec", "local", "--retry-failed", str(log), "--", "true", code=125).errors
    )


def test_a_daemon_with_few_slots_is_asked_again(start_daemon: object) -> None:
    assert callable(start_daemon)
    connmgr = CommandLine(start_daemon("--threads", "2"))
    for number in range(6):
        connmgr.daemon.client.connection.add(
            f"sh{number}", {"type": "shellEnvironment", "host": _local(connmgr), "commands": [f"N={number}"]}
        )
    done = connmgr("exec", "--all", "**/sh?", "-j", "6", "--json", "--", "sleep 0.3")
    assert [json.loads(line)["exitCode"] for line in done.output.splitlines()] == [0] * 6


def _local(connmgr: CommandLine) -> str:
    return connmgr.daemon.client.connection.query("local machine")[0]
