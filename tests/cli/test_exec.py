"""``connmgr exec``: output, exit codes, automatic starts of shells, and ways to kill a command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from connmgr.cli.exits import NOT_RUN
from connmgr.cli.progress import QUIET_SECONDS
from connmgr.client import LOCAL_MACHINE
from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine, finish
from tests.conftest import StartDaemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.processes import await_ends
from tests.recorder import recorded, write_recorder

pytestmark = pytest.mark.needs("bash")


def test_output_goes_where_it_went_byte_by_byte(connmgr: CommandLine) -> None:
    done = connmgr("exec", "local machine", "--", r"printf 'a\000\377\n\n'; printf 'b' >&2; exit 7", code=7)
    assert (done.stdout, done.stderr) == (b"a\0\xff\n\n", b"b")


def test_words_are_joined_by_blanks_into_one_command(connmgr: CommandLine) -> None:
    assert connmgr("exec", "local", "--", "echo", "$((1+1))", "a  b", "--", "-n", "|", "tr", "a-z", "A-Z").output == (
        "2 A B -- -N\n"
    )


def test_with_argv_no_shell_reads_the_words(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    words = ["", "a  b", "it's", "$((1+1))", "*", "--", "-n", "new\nline", "ä", "|"]
    sent = tuple(word.encode() for word in words)
    recorder = str(write_recorder(tmp_path / "recorder"))
    assert recorded(clean_connmgr("exec", "local", "--argv", "--", recorder, *words).stdout).words == sent
    shown = clean_connmgr("exec", "--json", "--argv", "--env", "A=b", "local", "--", recorder, *words).json
    assert shown["stdout"].split("\0")[1:11] == words
    [line] = clean_connmgr("exec", "--all", "--json", "--argv", "local*", "--", recorder, *words).output.splitlines()
    assert json.loads(line)["stdout"].split("\0")[1:11] == words
    job = clean_connmgr("exec", "--detach", "--argv", "local", "--", recorder, *words).output.strip()
    assert clean_connmgr("job", "wait", job).code == 0
    assert recorded(clean_connmgr("job", "logs", job).stdout).words == sent
    assert "/etc/passwd" in clean_connmgr("exec", "local", "--argv", "--", "/etc/passwd", code=126).errors


def test_the_shell_is_started_kept_and_started_again(clean_connmgr: CommandLine) -> None:
    assert clean_connmgr("exec", "local", "--", "cd /etc; export ODD='a b'").code == 0
    assert clean_connmgr("exec", "local", "--", 'pwd; echo "$ODD"').output == "/etc\na b\n"
    clean_connmgr.daemon.client.shell.stop(LOCAL_MACHINE)
    assert clean_connmgr("exec", "local", "--", 'echo "<$ODD>"').output == "<>\n"


def test_a_shell_of_a_name_is_another_one(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    clean_connmgr("exec", "local", "--", "cd /usr")
    clean_connmgr("exec", "local", "--session", "build", "--", f"cd {tmp_path}")
    assert clean_connmgr("exec", "local", "--", "pwd").output == "/usr\n"
    assert clean_connmgr("exec", "local", "--session", "build", "--", "pwd").output == f"{tmp_path}\n"
    assert "build" not in clean_connmgr("exec", "--all", "local*", "--session", "build", "--", "pwd").errors
    clean_connmgr("cp", "--session", "build", "-", "local:file", stdin="here")
    assert (tmp_path / "file").read_text() == "here"
    assert clean_connmgr("cp", "--session", "build", "local:file", "-").output == "here"
    assert clean_connmgr("shell", "--session", "build", "local", stdin="cd /etc\npwd\n").output == "/etc\n"
    assert clean_connmgr("exec", "local", "--", "pwd").output == "/usr\n"
    assert "session" in clean_connmgr("exec", "local", "--session", "no name", "--", "pwd", code=125).errors


def test_input_directory_and_variables_are_given_when_asked_for(connmgr: CommandLine) -> None:
    assert connmgr("exec", "local", "--", "cat", stdin="read").output == "read"
    assert connmgr("exec", "-n", "local", "--", "cat", stdin="unread").output == ""
    assert connmgr("exec", "local", "--stdin", "--", "od -An -c", stdin=b"\0\xffx").output.split() == [
        "\\0",
        "377",
        "x",
    ]
    assert connmgr("exec", "local", "--cwd", "/usr", "--env", "A=b=c", "--", 'pwd; echo "$A"').output == "/usr\nb=c\n"
    assert "NAME=VALUE" in connmgr("exec", "local", "--env", "A", "--", "true", code=125).errors


def test_the_words_after_the_connection_are_the_command_as_with_ssh(connmgr: CommandLine) -> None:
    for words, output in (
        (("echo", "-n", "a", "--json", "--timeout"), "a --json --timeout"),
        (("echo", "a", "--", "b"), "a -- b\n"),
        (("--", "echo", "--", "b"), "-- b\n"),
        (("--timeout", "60", "--cwd", "/usr", "--", "pwd"), "/usr\n"),
    ):
        assert connmgr("exec", "local", *words).output == output
    assert connmgr("exec", "--cwd", "/usr", "local", "pwd").output == "/usr\n"
    assert connmgr("exec", "--argv", "local", "echo", "$HOME", "-n").output == "$HOME -n\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("local", "--timeout", "5", "true"), "--timeout stands after the connection local"),
        (("local", "--timeout", "5", "true", "--", "x"), "--timeout stands after the connection local"),
        (("local", "--nonsense", "--", "true"), "No such option"),
        (("local", "ls", "--all", "--", "/"), "--all could belong to connmgr, or to the command on local"),
        (("--all", "local", "true"), "With --all write --"),
        (("local",), "Missing argument"),
        (("--script", "x", "--argv", "local"), "Give one of"),
        (("-n", "--stdin", "local", "true"), "Give --stdin or -n"),
    ],
)
def test_words_that_cannot_be_told_apart_are_explained(connmgr: CommandLine, words: tuple[str, ...], said: str) -> None:
    done = connmgr("exec", *words, code=125)
    assert said in " ".join(done.errors.split()), done.errors


def test_json_holds_it_all(connmgr: CommandLine) -> None:
    done = connmgr("exec", "local", "--json", "--", "echo out; echo err >&2; exit 4", code=4)
    assert done.json == {"exitCode": 4, "stdout": "out", "stderr": "err"}


@pytest.mark.parametrize(
    ("command", "code"), [("exit 0", 0), ("false", 1), ("nonexistent-program", 127), ("kill -9 $BASHPID", 137)]
)
def test_the_exit_code_is_the_command_s(connmgr: CommandLine, command: str, code: int) -> None:
    connmgr("exec", "local", "--", command, code=code)


def test_failures_of_connmgr_itself_have_codes_of_their_own(connmgr: CommandLine) -> None:
    assert "killed" in connmgr("exec", "local", "--timeout", "0.2", "--", "sleep 100", code=124).errors
    for arguments in (("nowhere", "--", "true"), ("local",), ("local", "--nonsense", "--", "true")):
        connmgr("exec", *arguments, code=125)
    connmgr("exec", "local", "--", "true", code=125, environment={"CONNMGR_PORT": "1"})
    connmgr("add", "ssh", "refused", "host=127.0.0.1", "port=1")
    assert "refused" in connmgr("exec", "refused", "--", "true", code=125).errors


TELLS_THEN_SLEEPS = r"printf 'out\000\377'; printf err >&2; sleep 100"


def test_output_before_the_timeout_is_printed(connmgr: CommandLine) -> None:
    done = connmgr("exec", "local", "--timeout", "1", "--", TELLS_THEN_SLEEPS, code=124)
    assert done.stdout == b"out\0\xff", "what the command had printed to stdout is lost"
    assert done.stderr.startswith(b"errError: "), "what it had printed to stderr does not stand before the message"
    assert "longer than 1 s" in done.errors


def test_json_of_a_timed_out_command_has_its_output(connmgr: CommandLine) -> None:
    expected = {"stdout": "out\0\ufffd", "stderr": "err"}
    one = connmgr("exec", "local", "--json", "--timeout", "1", "--", TELLS_THEN_SLEEPS, code=124).json
    line = connmgr("exec", "--all", "local*", "--json", "--timeout", "1", "--", TELLS_THEN_SLEEPS, code=1).json
    for found in (one, line):
        assert found["error"]["code"] == "command_timeout"
        assert {name: found.get(name) for name in expected} == expected, "its output is not in the object"


def test_a_shell_prints_what_a_line_printed_until_its_time_was_over(start_daemon: StartDaemon) -> None:
    impatient = CommandLine(start_daemon("--command-timeout", "1"))
    done = impatient("shell", "local", stdin=f"{TELLS_THEN_SLEEPS}\n", code=1)
    assert (done.stdout, done.stderr[:3]) == (b"out\0\xff", b"err"), "what the line had printed is lost"


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "soon"])
def test_a_malformed_timeout_is_refused_with_its_option(connmgr: CommandLine, seconds: str) -> None:
    assert "'--timeout'" in connmgr("exec", "local", "--timeout", seconds, "--", "true", code=125).errors


def test_output_has_no_limit_but_in_an_object(start_daemon: StartDaemon) -> None:
    small = CommandLine(start_daemon("--max-output", "1024"))
    assert small("exec", "local", "--", "yes | head -c 5000").stdout == b"y\n" * 2500
    assert small("exec", "local", "--json", "--", "yes | head -c 5000").json["truncated"]
    assert small("shell", "local", stdin="yes | head -c 5000\n").stdout == b"y\n" * 2500


def test_output_appears_as_it_is_printed_both_streams_apart(connmgr: CommandLine, tmp_path: Path) -> None:
    gates = [tmp_path / "first", tmp_path / "second"]
    waits = [f"while [ ! -e {gate} ]; do sleep 0.01; done" for gate in gates]
    command = rf"printf 'one\377'; {waits[0]}; printf two >&2; {waits[1]}; echo three; exit 7"
    with connmgr.begin("exec", "local", "--", command) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.read(4) == b"one\xff"
        gates[0].touch()
        assert process.stderr.read(3) == b"two"
        gates[1].touch()
        assert process.stdout.read() == b"three\n"
        assert process.stderr.read() == b""
        assert process.wait(DEADLINE_SECONDS) == 7


def test_large_binary_output_arrives_whole(connmgr: CommandLine, tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_bytes(os.urandom(5_000_000))
    assert connmgr("exec", "local", "--", f"cat {noise}").stdout == noise.read_bytes()


def test_a_reader_that_leaves_ends_a_command_that_prints_for_ever(connmgr: CommandLine) -> None:
    done = subprocess.run(
        ["bash", "-c", "connmgr exec local -- yes | head -n 1; echo ${PIPESTATUS[1]}"],
        env=connmgr.environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("y\n0\n", "")
    assert connmgr("exec", "local", "--", "echo free").output == "free\n"


def test_a_terminal_shows_how_long_a_silent_command_takes_until_it_prints(connmgr: CommandLine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = f"while [ ! -e {gate} ]; do sleep 0.01; done; echo done"
    terminal = connmgr.on_terminal("exec", "local", "--", command)
    shown = []
    for _ in range(2):
        # On a busy machine a second may be skipped.
        terminal.expect(r"local: (\d+) s")
        shown.append(int(terminal.match[1]))
    assert 1 <= shown[0] < shown[1]
    gate.touch()
    assert finish(terminal) == (0, "\r\x1b[Kdone\r\n")


def test_a_terminal_shows_that_a_command_waits_for_another_one(connmgr: CommandLine, gate: Path) -> None:
    with connmgr.begin("exec", "local", "--", f"echo begun; cat {gate}; true") as first:
        assert first.stdout
        assert first.stdout.readline() == b"begun\n"
        terminal = connmgr.on_terminal("exec", "local", "--", "echo done")
        try:
            terminal.expect(r"local: waiting for `echo begun; cat .* of connmgr, running for \d+ s in this shell")
            piped = connmgr.begin("exec", "local", "--", "echo piped")
            assert piped.stdout
            assert piped.stderr
            told = piped.stderr.readline().decode()
        finally:
            gate.write_text("")
        assert finish(terminal)[1].endswith("\r\x1b[Kdone\r\n")
        assert re.fullmatch(
            r"connmgr: local: waiting for `echo begun; cat .* of connmgr, running for \d+ s in this shell\n",
            told,
        )
        with piped:
            assert (piped.stdout.read(), piped.stderr.read()) == (b"piped\n", b"")


def test_ctrl_c_of_a_waiting_command_leaves_no_trace(connmgr: CommandLine, tmp_path: Path, gate: Path) -> None:
    trace = tmp_path / "trace"
    with connmgr.begin("exec", "local", "--", f"echo begun; cat {gate}; true") as first:
        assert first.stdout
        assert first.stdout.readline() == b"begun\n"
        terminal = connmgr.on_terminal("exec", "local", "--", f"touch {trace}")
        try:
            terminal.expect("in this shell")
            terminal.sendintr()
            assert finish(terminal)[0] == 130
        finally:
            gate.write_text("")
    connmgr("exec", "local", "--", "true")
    assert not trace.exists()


def test_a_quick_command_shows_no_progress_and_without_a_terminal_none_does(connmgr: CommandLine) -> None:
    connmgr("exec", "local", "--", "true")
    began = time.monotonic()
    terminal = connmgr.on_terminal("exec", "local", "--", "echo done")
    code, shown = finish(terminal)
    # On a busy machine the command may be slow.
    assert (code, shown) == (0, "done\r\n") or time.monotonic() - began > QUIET_SECONDS
    assert connmgr("exec", "local", "--", "sleep 1.5").errors == ""


def test_ctrl_c_kills_the_command_and_leaves_what_it_had_printed(connmgr: CommandLine, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    command = f"printf out; echo $BASHPID > {mark}.new; mv {mark}.new {mark}; sleep 99"
    terminal = connmgr.on_terminal("exec", "local", "--", command)
    eventually(mark.exists, "the command has not begun")
    terminal.expect_exact("out")
    terminal.sendintr()
    assert finish(terminal)[0] == 130
    await_ends(int(mark.read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_client_kills_the_command(connmgr: CommandLine, tmp_path: Path, number: signal.Signals) -> None:
    mark = tmp_path / "pid"
    command = f"echo $BASHPID > {mark}.new; mv {mark}.new {mark}; sleep 99"
    with connmgr.begin("exec", "local", "--", command) as process:
        eventually(mark.exists, "the command has not begun")
        process.send_signal(number)
        assert process.wait(DEADLINE_SECONDS) != 0
    await_ends(int(mark.read_text()))


def test_a_reader_that_leaves_early_causes_no_traceback(connmgr: CommandLine) -> None:
    pipeline = "connmgr exec local -- 'yes | head -c 5000000' | head -n 1"
    done = subprocess.run(
        ["bash", "-c", pipeline], env=connmgr.environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "y\n"
    assert "Traceback" not in done.stderr


@pytest.mark.needs("sshd")
def test_bytes_exit_codes_and_directories_over_ssh(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    clean_connmgr.add_ssh("web", start_sshd())
    done = clean_connmgr("exec", "web", "--", r"printf 'a\000\377'; printf b >&2; exit 7", code=7)
    assert (done.stdout, done.stderr) == (b"a\0\xff", b"b")
    clean_connmgr("exec", "web", "--", "cd /etc")
    assert clean_connmgr("exec", "web", "--", "pwd").output == "/etc\n"


def test_json_lines_of_many_are_objects(clean_connmgr: CommandLine) -> None:
    clean_connmgr("add", "local", "posix", "shell=sh")
    done = clean_connmgr("exec", "--all", "{local*,posix}", "--json", "--", "echo $0; echo err >&2", code=0)
    outcomes = {one["name"]: one for one in map(json.loads, done.output.splitlines())}
    assert set(outcomes) == {"default/local machine", "default/posix"}
    assert all((one["exitCode"], one["stderr"]) == (0, "err") for one in outcomes.values())
    assert "2 connections in " in done.errors
    assert "2 ok" in done.errors
    assert "No connection matches" in clean_connmgr("exec", "--all", "x*", "--", "true", code=125).errors


def test_a_dry_run_does_not_drop_detach_in_silence(connmgr: CommandLine) -> None:
    done = connmgr("exec", "--dry-run", "--detach", "local", "--", "true", code=NOT_RUN)
    assert "leave out --detach" in done.errors
