"""``client.jobs``: jobs are started, followed, fed and ended, with retries over failures."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from connmgr.client import LOCAL_MACHINE, Client, ClientError, Unreachable
from connmgr.client.jobs import OPEN, PIECE_BYTES, Job, JobOutput
from connmgr.vault.jobs import ENDED, UNDER_WAY
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually_raises
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd


@pytest.fixture
def client(client: Client) -> Iterator[Client]:
    """The client; the jobs of the daemon are removed afterwards."""
    yield client
    for one in client.jobs.query():
        client.jobs.get(one.id).remove(force=True)


def read_all(job: Job, stdout: int = 0, stderr: int = 0) -> tuple[bytes, bytes, JobOutput]:
    """Read both streams of a job from two offsets on; return them and the last piece."""
    out, err, last = b"", b"", None
    for last in job.stream(stdout, stderr):
        out += last.stdout
        err += last.stderr
        assert (last.next_stdout, last.next_stderr) == (stdout + len(out), stderr + len(err)), "offsets have gaps"
    assert last is not None
    assert last.ended
    return out, err, last


class TestOutput:
    def test_both_streams_come_byte_by_byte(self, client: Client, tmp_path: Path) -> None:
        random = tmp_path / "random"
        random.write_bytes(os.urandom(3 * PIECE_BYTES + 17))
        job = client.jobs.start(LOCAL_MACHINE, f"cat {random}; printf 'a\\000\\377\\n' >&2; exit 7")
        out, err, last = read_all(job)
        assert hashlib.sha256(out).digest() == hashlib.sha256(random.read_bytes()).digest()
        assert (err, last.state, last.exit_code, last.truncated, last.stale) == (
            b"a\0\xff\n",
            "exited",
            7,
            False,
            False,
        )
        assert read_all(job, len(out) - 5, 1)[:2] == (out[-5:], b"\0\xff\n")

    def test_output_arrives_while_the_job_runs(self, client: Client, gate: Path) -> None:
        job = client.jobs.start(LOCAL_MACHINE, f"echo one; cat {gate}")
        pieces = job.stream()
        first = next(pieces)
        assert (first.stdout, first.ended) == (b"one\n", False)
        gate.write_bytes(b"two\n")
        assert b"".join(piece.stdout for piece in pieces) == b"two\n"

    def test_a_poll_is_answered_at_once_or_at_the_end(self, client: Client, gate: Path) -> None:
        job = client.jobs.start(LOCAL_MACHINE, f"echo one; cat {gate}; echo two >&2")
        next(job.stream())
        assert job.output(4, 0) == JobOutput(b"", b"", 4, 0, False, False, "running", None, False, 4, 0)
        gate.write_bytes(b"")
        end = job.output(1, 0, wait=25, until_exit=True)
        assert (end.stdout, end.stderr, end.ended, end.exit_code) == (b"ne\n", b"two\n", True, 0)
        assert job.output(max_bytes=16).stdout == b"one\n"

    def test_a_client_may_ask_again_as_soon_as_there_were_news(self, client: Client) -> None:
        # A request that waited has no thread: no two threads may read the next one.
        def poll(client: Client) -> bytes:
            with client:
                job = client.jobs.start(
                    LOCAL_MACHINE, "i=0; while [ $i -lt 50 ]; do i=$((i+1)); echo; sleep 0.01; done"
                )
                piece = job.output(wait=25)
                while not piece.ended:
                    piece = job.output(piece.next_stdout, wait=25)
                return job.output().stdout

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(poll, [client.clone() for _ in range(8)])) == {b"\n" * 50}

    def test_deleted_output_is_reported_as_gone(self, client: Client, daemon: Daemon) -> None:
        job = client.jobs.start(LOCAL_MACHINE, "echo one")
        # After the end of its output nothing writes into the job's directory.
        assert b"".join(piece.stdout for piece in job.stream()) == b"one\n"
        place = f"{daemon.environment['XDG_STATE_HOME']}/connmgr/jobs/{job.id.replace('-', '')}"
        assert client.shell.exec(LOCAL_MACHINE, f"rm -r {place}").exit_code == 0
        # Recently read output is answered from a cache.
        gone = eventually_raises(
            lambda: list(job.stream(retry_timeout=math.inf)), ClientError, "output is read that was deleted"
        )
        assert gone.code == "output_gone"


class TestStart:
    def test_a_program_with_directory_variables_and_input(self, client: Client) -> None:
        job = client.jobs.start(
            LOCAL_MACHINE,
            argv=["sh", "-c", 'cat; echo "$0:$A:$PWD"', "$0 'b"],
            cwd="/usr",
            env={"A": "é"},
            stdin=b"\0\xff\n",
        )
        assert read_all(job)[0] == b"\0\xff\n" + "$0 'b:é:/usr\n".encode()
        assert client.jobs.get(job.id).info().command == ("sh", "-c", 'cat; echo "$0:$A:$PWD"', "$0 'b")

    @pytest.mark.parametrize("stdin", ["open", b"open", base64.b64decode("open"), "x" * 20_000])
    def test_no_input_is_taken_for_open(self, client: Client, stdin: str | bytes) -> None:
        job = client.jobs.start(LOCAL_MACHINE, "cat", stdin=stdin)
        assert read_all(job)[0] == (stdin.encode() if isinstance(stdin, str) else stdin)
        assert not job.info().stdin_open

    def test_a_command_that_may_be_detached_gets_its_input_whatever_that_says(self, client: Client) -> None:
        fields = {"connection": LOCAL_MACHINE, "command": "cat", "stdin": "open", "detachAfter": 20}
        assert client.post("/shell/exec", **fields)["stdout"] == "open"

    def test_a_key_starts_one_job(self, client: Client) -> None:
        key = str(uuid.uuid4())
        first, second = (client.jobs.start(LOCAL_MACHINE, "echo once", key=key, name="keyed") for _ in range(2))
        assert first.id == second.id
        assert [one.key for one in client.jobs.query(name="keyed")] == [key]

    def test_info_describes_a_job(self, client: Client) -> None:
        job = client.jobs.start(LOCAL_MACHINE, "exit 3", name="known", keep=60)
        info = job.wait()
        assert info == job.info()
        assert (info.id, info.connection, info.session, info.name, info.key) == (
            job.id,
            LOCAL_MACHINE,
            None,
            "known",
            None,
        )
        assert (info.command, info.state, info.exit_code, info.stdin_open, info.keep) == (
            "exit 3",
            "exited",
            3,
            False,
            60,
        )
        assert info.ended is not None
        assert info.created <= info.ended
        assert client.jobs.query("local*", name="known", states=["exited"], max_age=3600) == [info]
        assert client.jobs.query(name="known", states=["running"]) == []
        assert client.jobs.query(name="known", min_age=3600) == []
        assert {info.state} <= {*ENDED, *UNDER_WAY}

    def test_without_a_shell_nothing_begins(self, start_daemon: StartDaemon) -> None:
        with pytest.raises(ClientError) as refused:
            start_daemon().client.jobs.start(LOCAL_MACHINE, "true")
        assert refused.value.code == "no_shell"


class TestInput:
    def test_input_arrives_byte_by_byte_and_ends(self, client: Client) -> None:
        job = client.jobs.start(LOCAL_MACHINE, "cat", stdin=OPEN)
        sent = os.urandom(2 * PIECE_BYTES + 3)
        job.input("é\n")
        job.input(b"")
        job.input(sent, eof=True)
        assert read_all(job)[0] == "é\n".encode() + sent
        with pytest.raises(ClientError) as ended:
            job.input(b"more")
        assert ended.value.code in ("job_finished", "stdin_closed")

    def test_a_job_that_does_not_read_is_waited_for(self, client: Client, gate: Path) -> None:
        job = client.jobs.start(LOCAL_MACHINE, f"read -r go <{gate}; sha256sum", stdin=OPEN)
        sent = os.urandom(12 << 20)
        reasons: list[str] = []

        def open_gate(error: ClientError) -> None:
            if not reasons:
                gate.write_bytes(b"go\n")
            reasons.append(error.code)

        job.input(sent, eof=True, retry_timeout=60, on_retry=open_gate)
        assert reasons[0] == "no_space"
        assert read_all(job)[0].split()[0].decode() == hashlib.sha256(sent).hexdigest()

    def test_without_retries_it_is_refused(self, client: Client) -> None:
        job = client.jobs.start(LOCAL_MACHINE, "sleep 600", stdin=OPEN)
        with pytest.raises(ClientError) as full:
            job.input(bytes(12 << 20))
        assert full.value.code == "no_space"


class TestEnds:
    def test_kill(self, client: Client) -> None:
        job = client.jobs.start(LOCAL_MACHINE, "trap '' TERM; echo ready; sleep 600; sleep 600")
        next(job.stream())
        assert job.wait(timeout=0).state == "running"
        job.kill(grace=0.1)
        assert job.wait().state == "killed"
        with pytest.raises(ClientError) as over:
            job.kill()
        assert over.value.code == "job_finished"

    def test_timeout(self, client: Client) -> None:
        assert client.jobs.start(LOCAL_MACHINE, "sleep 600", timeout=1).wait().state == "timed_out"

    def test_remove(self, client: Client) -> None:
        job = client.jobs.start(LOCAL_MACHINE, "sleep 600")
        with pytest.raises(ClientError) as running:
            job.remove()
        assert running.value.code == "job_running"
        job.remove(force=True)
        with pytest.raises(ClientError) as unknown:
            job.wait()
        assert unknown.value.code == "unknown_job"


class TestRetries:
    @pytest.mark.parametrize("waits", ["stream", "wait"])
    def test_a_killed_daemon_that_starts_again_is_waited_for(
        self, port: str, start_daemon: StartDaemon, gate: Path, waits: str
    ) -> None:
        first = start_daemon("--port", port)
        with Client(first.url, auth_file=first.auth_file) as client:
            client.shell.start(LOCAL_MACHINE)
            job = client.jobs.start(LOCAL_MACHINE, f"printf 'one\\000'; cat {gate}; exit 3")
            pieces = job.stream(retry_timeout=60, on_retry=lambda error: again(error))
            assert next(pieces).stdout == b"one\0"
            said: list[ClientError] = []

            def again(error: ClientError) -> None:
                said.append(error)
                start_daemon("--port", port, home=first.home)
                gate.write_bytes(b"two\n")

            first.kill()
            if waits == "stream":
                assert b"".join(piece.stdout for piece in pieces) == b"two\n"
            assert job.wait(retry_timeout=60, on_retry=again).exit_code == 3
            assert [type(error) for error in said] == [Unreachable]

    def test_retries_end(self, port: str, start_daemon: StartDaemon) -> None:
        gone = start_daemon("--port", port)
        with Client(gone.url, auth_file=gone.auth_file) as client:
            client.shell.start(LOCAL_MACHINE)
            job = client.jobs.start(LOCAL_MACHINE, "echo one; sleep 600")
            pieces = job.stream(retry_timeout=0.2)
            next(pieces)
            gone.stop()
            with pytest.raises(Unreachable):
                next(pieces)
            with pytest.raises(Unreachable):
                job.wait(timeout=0.2, retry_timeout=math.inf)
            again = start_daemon("--port", port, home=gone.home)
            again.client.jobs.get(job.id).remove(force=True)

    @pytest.mark.needs("sshd")
    def test_a_machine_that_cannot_be_reached_is_waited_for(
        self, own_daemon: Daemon, tmp_path: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("connmgr.client.jobs.WAIT_SECONDS", 0.2)
        with ssh_server(tmp_path) as server, Client(own_daemon.url, auth_file=own_daemon.auth_file) as client:
            web = client.connection.add("web", {"type": "ssh", **ssh_fields(server, server.user)})
            client.shell.start(web)
            job = client.jobs.start(web, f"echo one; cat {gate}; exit 3")
            said: list[str] = []

            def back(error: ClientError) -> None:
                said.append(error.message)
                server.start()
                gate.write_bytes(b"two\n")

            pieces = job.stream(retry_timeout=120, on_retry=back)
            assert next(pieces).stdout == b"one\n"
            _vanish(server)
            assert b"".join(piece.stdout for piece in pieces) == b"two\n"
            assert said == [f"The machine of the job {job.id} does not answer."]
            assert (job.wait().exit_code, job.info().stale) == (3, False)


def _vanish(server: Sshd) -> None:
    """Kill the server and the processes that serve connections, but not their children."""
    doomed = [process for process in server.sessions() if process.name().startswith("sshd")]
    for process in doomed:
        process.kill()
    psutil.wait_procs(doomed, timeout=30)
    server.stop()
