"""``connmgr exec --all`` over fifty hosts, some of them faulty: bounded time, and the right summary."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine

pytestmark = [pytest.mark.slow, pytest.mark.needs("sshd"), pytest.mark.timeout(300)]

HOSTS = 50
SLOW_SECONDS = 3.0
"""Duration of the command on the slow host."""
COMMAND_SECONDS = 5.0
"""Timeout of the command."""
RUN_SECONDS = 90.0
"""Longest run on a busy machine; without a limit the frozen host would take an hour."""


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
        "exec", "--all", "{one,two}", "--", 'test -n "$BASH_VERSION" || exit 3; echo a; echo b', code=1
    )
    lines = {line.split()[0]: line for line in done.output.splitlines()}
    assert re.fullmatch(r"one  ok       +[\d.]+ s  a  \(\+1 line\)", lines["one"]), lines
    assert re.fullmatch(r"two  exit 3   +[\d.]+ s", lines["two"]), lines
    assert done.errors.endswith(" s: 1 ok, 1 exit 3\n")


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


def test_what_is_no_earlier_output_is_refused(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text in ("web1  ok", "[]", '{"connection": "x"}', "3"):
        log.write_text(text)
        done = clean_connmgr("exec", "--all", "*", "--retry-failed", str(log), "--", "true", code=125)
        assert "line 1 is none" in done.errors
    assert (
        "goes with --all" in clean_connmgr("exec", "local", "--retry-failed", str(log), "--", "true", code=125).errors
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
