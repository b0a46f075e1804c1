"""``connmgr exec --detach`` and ``connmgr job``: starting, naming, following, feeding, awaiting and removing jobs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from connmgr.cli.commands.jobs import STATES
from connmgr.client import LOCAL_MACHINE, Client
from connmgr.client.jobs import OPEN
from connmgr.vault.jobs import ENDED, UNDER_WAY
from tests.cli.conftest import StartSshd
from tests.cli.program import DIRECTORY, CommandLine, finish
from tests.conftest import StartDaemon
from tests.deadlines import DEADLINE_SECONDS
from tests.rights import wire

pytestmark = pytest.mark.needs("bash")

UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\n"


@pytest.fixture
def connmgr(connmgr: CommandLine) -> Iterator[CommandLine]:
    """The command line with the module's daemon; the test's jobs are removed afterwards."""
    yield connmgr
    client = connmgr.daemon.client
    for one in client.jobs.query():
        client.jobs.get(one.id).remove(force=True)


def begin(connmgr: CommandLine, command: str, *options: str, on: str = "local") -> str:
    """Begin a job and return its uuid."""
    printed = connmgr("exec", "--detach", *options, on, "--", command).output
    assert re.fullmatch(UUID, printed), printed
    return printed.strip()


class Follower:
    """A running ``connmgr job logs -f``."""

    def __init__(self, connmgr: CommandLine, job: str) -> None:
        self.process = subprocess.Popen(
            [DIRECTORY / "connmgr", "job", "logs", "-f", job],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=connmgr.environment,
        )
        assert self.process.stdout
        assert self.process.stderr
        self.stdout: IO[bytes] = self.process.stdout
        self.stderr: IO[bytes] = self.process.stderr

    def end(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def close(self) -> None:
        """Kill the process, unless it has ended."""
        with self.process:
            self.process.kill()


Follow = Callable[..., Follower]


@pytest.fixture
def follow() -> Iterator[Follow]:
    """A function that starts ``connmgr job logs -f``; those still running at the end of the test are killed."""
    with ExitStack() as followers:

        def start(connmgr: CommandLine, job: str) -> Follower:
            follower = Follower(connmgr, job)
            followers.callback(follower.close)
            return follower

        yield start


class TestBegin:
    def test_the_uuid_is_printed_and_the_shell_started(self, clean_connmgr: CommandLine) -> None:
        id = begin(clean_connmgr, "pwd; echo $A; cat", "--cwd", "/usr", "--env", "A=b", "--stdin")
        clean_connmgr("job", "wait", id)
        assert clean_connmgr("job", "logs", id).output == "/usr\nb\n"
        object = clean_connmgr("exec", "--detach", "--json", "local", "--", "true").json
        assert re.fullmatch(UUID, object["job"] + "\n")

    def test_a_job_gets_standard_input(self, connmgr: CommandLine) -> None:
        id = connmgr("exec", "--detach", "--stdin", "local", "--", "cat", stdin=b"\0\xff").output.strip()
        connmgr("job", "wait", id)
        assert connmgr("job", "logs", id).stdout == b"\0\xff"

    def test_a_key_begins_one_job(self, connmgr: CommandLine) -> None:
        first, second = (begin(connmgr, "true", "--key", "once", "--keep", "60") for _ in range(2))
        assert first == second

    @pytest.mark.parametrize(
        "options",
        [
            ("--name", "x"),
            ("--keep", "0"),
            ("--open-input",),
            ("--detach", "--all", "--store"),
            ("--detach", "--stdin", "--open-input"),
            ("--detach", "--keep", "-1"),
        ],
    )
    def test_options_that_do_not_go_together_are_refused(self, connmgr: CommandLine, options: tuple[str, ...]) -> None:
        assert connmgr("exec", *options, "local", "--", "true", code=125).errors.startswith("Usage: ")

    def test_the_failures_have_the_code_of_exec(self, connmgr: CommandLine) -> None:
        connmgr("exec", "--detach", "nowhere", "--", "true", code=125)
        connmgr("exec", "--detach", "--cwd", "/nowhere", "local", "--", "true", code=125)


class TestLogs:
    def test_both_streams_byte_by_byte(self, connmgr: CommandLine) -> None:
        id = begin(connmgr, r"printf 'a\000\377\n\n'; printf b >&2")
        connmgr("job", "wait", id)
        for options in ((), ("-f",)):
            done = connmgr("job", "logs", *options, id)
            assert (done.stdout, done.stderr) == (b"a\0\xff\n\n", b"b")
        done = connmgr("job", "logs", "--stdout-offset", "2", "--stderr-offset", "1", id)
        assert (done.stdout, done.stderr) == (b"\xff\n\n", b"")

    def test_without_following_it_ends_at_once(self, connmgr: CommandLine) -> None:
        id = begin(connmgr, "head -c 3000000 /dev/zero; echo all >&2; sleep 600")
        pieces = connmgr.daemon.client.jobs.get(id).stream()
        next(piece for piece in pieces if (piece.next_stdout, piece.next_stderr) == (3_000_000, 4))
        assert connmgr("job", "logs", id).stdout == bytes(3_000_000)

    def test_following_goes_on_when_the_daemon_was_killed(
        self, port: str, start_daemon: StartDaemon, follow: Follow, gate: Path
    ) -> None:
        first = start_daemon("--port", port)
        connmgr = CommandLine(first)
        id = begin(connmgr, f"echo one; cat {gate}; printf three >&2; exit 3", "--name", "survivor")
        follower = follow(connmgr, "survivor")
        assert follower.stdout.readline() == b"one\n"
        first.kill()
        assert b"Waiting." in follower.stderr.readline()
        start_daemon("--port", port, home=first.home)
        gate.write_bytes(b"two\n")
        assert follower.end() == (0, b"two\n", b"three")
        connmgr("job", "wait", id, code=3)

    def test_ctrl_c_ends_it_and_the_job_runs_on(self, connmgr: CommandLine, follow: Follow, gate: Path) -> None:
        id = begin(connmgr, f"echo one; cat {gate}")
        follower = follow(connmgr, id)
        follower.stdout.readline()
        follower.process.send_signal(signal.SIGINT)
        assert follower.end()[0] == 130
        gate.write_bytes(b"two\n")
        connmgr("job", "wait", id)

    def test_a_reader_that_leaves_early_causes_no_traceback(self, connmgr: CommandLine) -> None:
        id = begin(connmgr, "yes | head -c 5000000")
        pipeline = f"connmgr job logs -f {id} | head -n 1"
        done = subprocess.run(
            ["bash", "-c", pipeline], env=connmgr.environment, capture_output=True, timeout=60, check=True
        )
        assert (done.stdout, done.stderr) == (b"y\n", b"")

    def test_without_a_daemon_it_ends(self, connmgr: CommandLine) -> None:
        unknown = "00000000-0000-4000-8000-000000000000"
        connmgr("job", "logs", "-f", unknown, code=3, environment={"CONNMGR_PORT": "1"})
        connmgr("job", "logs", "-f", unknown, code=5)

    def test_output_that_was_dropped_is_told_of(self, start_daemon: StartDaemon) -> None:
        small = CommandLine(start_daemon("--job-output", "1024"))
        id = begin(small, "yes | head -c 5000")
        small("job", "wait", id)
        done = small("job", "logs", id)
        assert done.stdout == b"y\n" * 512
        assert "job-output" in done.errors

    @pytest.mark.needs("sshd")
    def test_over_ssh(self, clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
        clean_connmgr.add_ssh("web", start_sshd())
        id = begin(clean_connmgr, r"printf 'a\000\377'; printf b >&2; exit 7", on="web")
        done = clean_connmgr("job", "logs", "-f", id)
        assert (done.stdout, done.stderr) == (b"a\0\xff", b"b")
        clean_connmgr("job", "wait", id, code=7)


class TestWait:
    @pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
    def test_the_exit_code_is_the_job_s(self, connmgr: CommandLine, command: str, code: int) -> None:
        connmgr("job", "wait", begin(connmgr, command), code=code)

    def test_a_timeout_has_the_code_of_exec(self, connmgr: CommandLine) -> None:
        connmgr("job", "wait", begin(connmgr, "sleep 600", "--timeout", "1"), code=124)

    def test_nobody_knows(self, connmgr: CommandLine) -> None:
        id = begin(connmgr, "sleep 600")
        assert connmgr("job", "info", "--json", id).json["state"] == "running"
        connmgr.daemon.client.shell.exec(LOCAL_MACHINE, f'rm -r "$XDG_STATE_HOME/connmgr/jobs/{id.replace("-", "")}"')
        assert "lost" in connmgr("job", "wait", id, code=125).errors

    def test_failures_have_a_code_of_their_own(self, connmgr: CommandLine) -> None:
        connmgr("job", "wait", "nothing", code=125)
        connmgr("job", "wait", code=125)


class TestInput:
    def test_input_is_sent_and_ended(self, connmgr: CommandLine) -> None:
        id = begin(connmgr, "cat", "--open-input", "--name", "eater")
        connmgr("job", "input", "--no-eof", "eater", stdin="one\n")
        connmgr("job", "input", "eater", stdin=b"\0\xff")
        connmgr("job", "wait", id)
        assert connmgr("job", "logs", id).stdout == b"one\n\0\xff"
        connmgr("job", "input", "eater", stdin="late", code=1)

    def test_a_job_without_open_input_takes_none(self, connmgr: CommandLine) -> None:
        id = begin(connmgr, "sleep 600")
        assert "input" in connmgr("job", "input", id, stdin="x", code=1).errors

    def test_a_job_that_reads_late_is_waited_for(self, connmgr: CommandLine, gate: Path, tmp_path: Path) -> None:
        id = begin(connmgr, f"read -r go <{gate}; sha256sum", "--open-input")
        large = tmp_path / "large"
        large.write_bytes(os.urandom(10 << 20))
        argv = [DIRECTORY / "connmgr", "job", "input", id]
        with (
            large.open("rb") as stdin,
            subprocess.Popen(argv, stdin=stdin, stderr=subprocess.PIPE, env=connmgr.environment) as sender,
        ):
            assert sender.stderr
            assert b"Waiting." in sender.stderr.readline()
            gate.write_bytes(b"go\n")
            assert (sender.wait(60), sender.stderr.read()) == (0, b"")
        connmgr("job", "wait", id)
        assert connmgr("job", "logs", id).output.split()[0] == hashlib.sha256(large.read_bytes()).hexdigest()


class TestEnds:
    def test_kill(self, connmgr: CommandLine, follow: Follow) -> None:
        id = begin(connmgr, "trap 'echo caught' USR1; echo ready; while :; do sleep 600 & wait; done")
        follower = follow(connmgr, id)
        assert follower.stdout.readline() == b"ready\n"
        connmgr("job", "kill", "-s", "sigusr1", id)
        assert follower.stdout.readline() == b"caught\n"
        connmgr("job", "kill", "--grace", "10", id)
        assert follower.end()[0] == 0
        connmgr("job", "wait", id, code=143)
        assert "ended" in connmgr("job", "kill", id, code=1).errors
        connmgr("job", "kill", "-s", "NONSENSE", id, code=1)

    def test_rm(self, connmgr: CommandLine) -> None:
        done, running = begin(connmgr, "true"), begin(connmgr, "sleep 600")
        connmgr("job", "wait", done)
        connmgr("job", "rm", running, code=1)
        connmgr("job", "rm", "-f", running, done)
        for id in (done, running):
            connmgr("job", "info", id, code=5)
        assert connmgr("job", "ls").output == ""


class TestNames:
    def test_a_name_a_uuid_and_its_beginning(self, connmgr: CommandLine) -> None:
        id = begin(connmgr, "exit 3", "--name", "my [name]")
        connmgr("job", "wait", id, code=3)
        for name in (id, id.upper(), "my [name]", id[:13]):
            assert connmgr("job", "info", "--json", name).json["job"] == id
        for name in ("my", "MY [NAME]", "", "*", "zz", id[:7], id[1:10]):
            assert "No job is called" in connmgr("job", "info", name, code=5).errors
        for changes in ("kill", "input", "rm"):
            assert "No job is called" in connmgr("job", changes, id[:8], code=5).errors
        connmgr("job", "rm", id)

    def test_a_name_of_several_is_refused_and_they_are_listed(self, connmgr: CommandLine) -> None:
        first, second = (begin(connmgr, "sleep 600", "--name", "twin") for _ in range(2))
        said = connmgr("job", "kill", "twin", code=5).errors
        assert said.index(second) < said.index(first), "the younger one is not listed first"

    def test_names_are_completed(self, connmgr: CommandLine) -> None:
        twins = {begin(connmgr, "true", "--name", "twin") for _ in range(2)}
        begin(connmgr, "true", "--name", "it's mine")
        request = {"COMP_CWORD": "3", "_CONNMGR_COMPLETE": "bash_complete"}
        offered = connmgr(environment={**request, "COMP_WORDS": "connmgr job info "}).output.splitlines()
        assert set(offered) == {f"plain,{name}" for name in (*twins, r"it\'s\ mine")}
        begun = connmgr(environment={**request, "COMP_WORDS": "connmgr job info it"}).output
        assert begun == "plain,it\\'s\\ mine\n"
        gone = {**request, "COMP_WORDS": "connmgr job info ", "CONNMGR_PORT": "1"}
        assert connmgr(environment=gone).output.strip() == ""


class TestLists:
    def test_ls(self, connmgr: CommandLine) -> None:
        ended = begin(connmgr, "exit 3\n: more", "--name", "ended")
        running = begin(connmgr, "sleep 600")
        connmgr("job", "wait", ended, code=3)
        lines = [re.split(" {2,}", line) for line in connmgr("job", "ls").output.splitlines()]
        assert [line[:4] for line in lines] == [
            [ended, "ended", "local machine", "exited 3"],
            [running, "-", "local machine", "running"],
        ]
        assert [line[5] for line in lines] == ["exit 3…", "sleep 600"]
        for arguments, ids in (
            (("--state", "running"), [running]),
            (("--state", "exited", "--state", "running"), [ended, running]),
            (("local*",), [ended, running]),
        ):
            assert [one["job"] for one in connmgr("job", "ls", "--json", *arguments).json] == ids
        connmgr("job", "ls", "--state", "nonsense", code=2)
        assert "No connection matches 'nowhere*'" in connmgr("job", "ls", "nowhere*", code=5).errors

    def test_ls_counts_the_jobs_of_tokens_and_lists_those_that_wait(self, connmgr: CommandLine) -> None:
        daemon = connmgr.daemon
        own = begin(connmgr, "sleep 600")
        holder = wire.create(daemon, "connection.read", "shell.any", "job", name="agent")
        agent = Client(daemon.url, daemon.auth_file, holder.secret)
        jobs = agent.jobs
        asks = jobs.start(LOCAL_MACHINE, "printf 'Sure? '; read answer", stdin=OPEN)
        others = [jobs.start(LOCAL_MACHINE, command).id for command in ("sleep 600", "true")]
        jobs.get(others[1]).wait(DEADLINE_SECONDS)
        assert asks.output(until_input=True, wait=25).waiting is not None
        listed = connmgr("job", "ls")
        assert [line.split()[0] for line in listed.output.splitlines()] == [own, asks.id]
        assert listed.errors == "Jobs of tokens: 2, 1 under way. --all lists them.\n"
        everything = connmgr("job", "ls", "--all")
        assert [line.split()[0] for line in everything.output.splitlines()] == [own, asks.id, *others]
        found = connmgr("job", "ls", "--json").json
        assert [one.get("token") for one in found] == [None, *[holder.id] * 3]
        for id in (own, asks.id, *others):
            daemon.client.jobs.get(id).remove(force=True)
        agent.close()

    def test_every_state_can_be_asked_for(self) -> None:
        assert set(STATES) == {*UNDER_WAY, *ENDED}

    def test_info(self, connmgr: CommandLine) -> None:
        id = begin(connmgr, "exit 3", "--name", "one", "--key", "k", "--keep", "90")
        connmgr("job", "wait", id, code=3)
        shown = dict(re.split(" {2,}", line) for line in connmgr("job", "info", id).output.splitlines())
        assert shown.pop("begun").endswith(" ago")
        assert shown.pop("ended").endswith(" ago")
        assert shown == {
            "uuid": id,
            "name": "one",
            "key": "k",
            "connection": "local machine",
            "command": "exit 3",
            "state": "exited 3",
            "kept for": "1 min",
        }
        assert json.loads(connmgr("job", "info", "--json", id).output)["keep"] == 90


class TestSeveral:
    """``exec --all --detach``, and waiting for all that it began."""

    @pytest.fixture
    def shells(self, clean_connmgr: CommandLine) -> CommandLine:
        client = clean_connmgr.daemon.client
        for number in range(3):
            data = {"type": "shellEnvironment", "host": LOCAL_MACHINE, "commands": [f"N={number}; export N"]}
            client.connection.add(f"sh{number}", data)
        return clean_connmgr

    def test_each_connection_gets_a_job_and_all_are_awaited(self, shells: CommandLine, tmp_path: Path) -> None:
        # Readers of one pipe would take each other's bytes.
        gates = [tmp_path / f"gate{number}" for number in range(3)]
        for gate in gates:
            os.mkfifo(gate)
        command = f"read line < {tmp_path}/gate$N; exit $N"
        started = shells("exec", "--all", "--detach", "--name", "many", "--key", "k", "**/sh?", "--", command)
        assert re.search(r"3 connections in [\d.]+ s: 3 ok\n", started.errors), started.errors
        lines = started.output.splitlines()
        assert sorted(line.split("  ")[0] for line in lines) == [f"local machine/sh{number}" for number in range(3)]
        assert all(re.fullmatch(UUID, f"{line.split()[-1]}\n") for line in lines), lines
        again = shells("exec", "--all", "--detach", "--name", "many", "--key", "k", "**/sh?", "--", command)
        assert sorted(again.output.splitlines()) == sorted(lines), "a key begins no second job"
        waiting = shells.on_terminal("job", "wait", "--all", "many")
        for gate in gates:
            gate.write_text("go\n")
        code, printed = finish(waiting)
        assert code == 1
        assert set(re.findall(r"exited \d", printed)) == {"exited 0", "exited 1", "exited 2"}
        assert re.search(r"3 jobs in [\d.]+ s: 1 ok, (1 exit 1, 1 exit 2|1 exit 2, 1 exit 1)", printed), printed
        by_file = shells("job", "wait", "--from", "-", stdin=started.output, code=1)
        assert " 3 ok" not in by_file.errors
        assert by_file.output.count("exited") == 3
        by_key = shells("job", "wait", "--all", "k", "--json", code=1)
        assert sorted(json.loads(line)["exitCode"] for line in by_key.output.splitlines()) == [0, 1, 2]
        good = next(line.split()[-1] for line in lines if "sh0" in line)
        assert shells("job", "wait", good, good).errors.endswith(" s: 1 ok\n")
        assert shells("job", "wait", good).output == ""

    def test_a_start_that_failed_has_failed_for_who_waits(self, shells: CommandLine, closed_port: int) -> None:
        far = {"type": "ssh", "host": "127.0.0.1", "port": closed_port, "user": "x"}
        shells.daemon.client.connection.add("down", far)
        started = shells("exec", "--all", "--detach", "--json", "**/sh0", "down", "--", "true", code=1)
        assert started.errors.endswith(" s: 1 ok, 1 host_refused\n")
        waited = shells("job", "wait", "--from", "-", stdin=started.output, code=1)
        assert "down  host_refused" in waited.output
        assert waited.errors.endswith(" s: 1 ok, 1 host_refused\n")
        plain = shells("exec", "--all", "--detach", "**/sh0", "down", "--", "true", code=1)
        again = shells("job", "wait", "--from", "-", stdin=plain.output, code=1)
        assert "down  host_refused  127.0.0.1:" in again.output
        assert again.errors.endswith(" s: 1 ok, 1 host_refused\n")
        chosen = shells("ls", "--format", "names", "--failed", "-", stdin=started.output)
        assert chosen.output == "default/down\n"

    def test_waiting_for_no_job_is_an_error(self, shells: CommandLine) -> None:
        assert "No job has the name" in shells("job", "wait", "--all", "nothing", code=125).errors
        assert "line 1 has no uuid" in shells("job", "wait", "--from", "-", stdin="web1 ok\n", code=125).errors
        assert "Missing argument" in shells("job", "wait", code=125).errors
