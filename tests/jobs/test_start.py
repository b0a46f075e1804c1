"""Jobs start in each shell as a command of the session would, and leave none of their instructions behind."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.engine import rpc
from connmgr.engine.rpc import EXCHANGE, Exchange, Helpers, RemoteProgram
from connmgr.engine.script import Source
from connmgr.engine.session import Session
from connmgr.jobs.launch import SMALL_INPUT_BYTES, Launch
from connmgr.jobs.remote import RemoteJobs
from connmgr.plugin import Channel, Pty
from connmgr_local.transport import LocalTransport
from tests.deadlines import DEADLINE_SECONDS, eventually_equal
from tests.engine.shells import run
from tests.jobs.conftest import Jobs, new_id

SETTING = {
    "csh": "cd /usr; setenv FOO 'a b'; unsetenv DISPENSABLE",
    "fish": "cd /usr; set -gx FOO 'a b'; set -e DISPENSABLE",
    "sh": "cd /usr; export FOO='a b'; unset DISPENSABLE",
}


@pytest.fixture(autouse=True)
def _dispensable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPENSABLE", "1")


def language(session: Session) -> str:
    interpreter = session.surroundings.interpreter
    if interpreter is None:
        return "sh"
    return "fish" if interpreter.shell.endswith("fish") else "csh"


def test_a_job_has_the_session_s_directory_and_variables(any_shell: Session, jobs: Jobs) -> None:
    run(any_shell, SETTING[language(any_shell)])
    text = b"echo $FOO $BAR $PWD; env | grep -c DISPENSABLE; cat; echo told >/dev/stderr; sh -c 'exit 3'"
    done = jobs.done(Launch(new_id(), text, surroundings=any_shell.surroundings, environment={"BAR": "it's\n x"}))
    assert done.seen.exit_code == 3
    assert done.stdout.split() == b"a b it's x /usr 0".split()
    assert done.stderr == b"told\n"


@pytest.mark.parametrize("end", ["", "; exit 3", "; sh -c 'exit 3'"])
def test_a_job_tells_where_its_command_ended(any_shell: Session, jobs: Jobs, tmp_path: Path, end: str) -> None:
    directory = tmp_path / "a  'b' ü"
    directory.mkdir()
    text = f"cd {shlex.quote(str(directory))}; env | grep -c CONNMGR_CWD{end}".encode()
    launch = Launch(new_id(), text, surroundings=any_shell.surroundings, tells_directory=True)
    done = jobs.done(launch)
    assert done.stdout == b"0\n"
    assert done.seen.exit_code == (3 if end else 1)
    told = b"" if language(any_shell) == "csh" else os.fsencode(directory)
    assert done.directory == told
    if not end:
        done = jobs.done(replace(launch, id=new_id(), stdin=b"input"))
        assert (done.seen.exit_code, done.directory) == (1, told)


def test_a_job_that_is_not_asked_does_not_tell_where_it_ended(posix: Session, jobs: Jobs) -> None:
    assert jobs.done(Launch(new_id(), b"cd /", surroundings=posix.surroundings)).directory == b""
    argv = Launch(new_id(), argv=(b"true",), surroundings=posix.surroundings, tells_directory=True)
    assert jobs.done(argv).directory == b""


def test_input_of_any_bytes_arrives(any_shell: Session, jobs: Jobs) -> None:
    data = bytes(range(256)) * 4
    done = jobs.done(Launch(new_id(), b"cat", surroundings=any_shell.surroundings, stdin=data))
    assert done.stdout == data
    done = jobs.done(Launch(new_id(), b"cat", surroundings=any_shell.surroundings, stdin=data * 100))
    assert done.stdout == data * 100


def test_a_job_whose_input_does_not_arrive_whole_never_begins(jobs: Jobs, tmp_path: Path) -> None:
    data, id = b"x" * (4 * SMALL_INPUT_BYTES), new_id()

    class Breaking(LocalTransport):
        """A link that breaks in the middle of the input."""

        def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float = 30.0) -> Channel:
            channel = super().open_channel(argv, pty=pty, timeout=timeout)
            send = channel.sendall

            def sendall(part: bytes, timeout: float) -> None:
                if part.startswith(b"xx"):
                    send(part[: len(part) // 2], timeout)
                    channel.close()
                    raise BrokenPipeError
                send(part, timeout)

            channel.sendall = sendall  # type: ignore[method-assign]
            return channel

    breaking = Breaking()
    launch = Launch(id, f"echo begun >{tmp_path}/begun; cat".encode(), stdin=data)
    with pytest.raises(errors.TransferFailed):
        RemoteJobs(breaking, Helpers()).start(launch, DEADLINE_SECONDS)
    spool = tmp_path / ".local/state/connmgr/jobs"
    eventually_equal(lambda: list(spool.iterdir()), [], "a part of the input stays on the disk")
    assert jobs.look(id).state == "gone"
    held = spool / f".{id}.1"
    held.touch()
    jobs.remote.remove([id], DEADLINE_SECONDS)
    assert not held.exists(), "input that came before its job outlives the job's removal"
    # The same start, repeated, finds nothing in its way.
    assert jobs.done(launch).stdout == data
    breaking.close()


def test_a_signal_s_number_is_in_the_status(posix: Session, jobs: Jobs) -> None:
    for signal, status in {"KILL": 137, "INT": 130, "TERM": 143}.items():
        text = f"sh -c 'kill -{signal} $$'".encode()
        done = jobs.done(Launch(new_id(), text, surroundings=posix.surroundings))
        assert (done.seen.state, done.seen.exit_code) == ("exited", status), signal


def test_a_program_gets_its_arguments_as_they_are(any_shell: Session, jobs: Jobs) -> None:
    argv = (b"printf", b"<%s>", b"a  b", b"-n", b"it's", b"$HOME\n")
    done = jobs.done(Launch(new_id(), argv=argv, surroundings=any_shell.surroundings))
    assert done.stdout == b"<a  b><-n><it's><$HOME\n>"


def test_an_argv_runs_a_program_and_not_a_builtin(any_shell: Session, jobs: Jobs, tmp_path: Path) -> None:
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for name in ("cd", "-x"):
        (tmp_path / name).write_text('#!/bin/sh\necho "program $1"\n')
        (tmp_path / name).chmod(0o755)
        argv = (name.encode(), b"/usr")
        done = jobs.done(Launch(new_id(), argv=argv, surroundings=any_shell.surroundings, environment=path))
        assert (done.stdout, done.stderr) == (b"program /usr\n", b"")
    done = jobs.done(Launch(new_id(), argv=(b"export", b"A=b"), surroundings=any_shell.surroundings))
    assert done.seen.exit_code == 127
    assert b"export" in done.stderr


def test_a_job_without_a_session_runs_in_the_user_s_home(jobs: Jobs) -> None:
    done = jobs.done(Launch(new_id(), b'[ "$PWD" -ef "$HOME" ] && echo "$CONNMGR_JOB$CONNMGR_SPOOL"'))
    assert done.seen.exit_code == 0
    assert len(done.stdout) == 33


def test_a_directory_that_is_not_there_is_refused_and_nothing_is_left(posix: Session, jobs: Jobs) -> None:
    launch = Launch(new_id(), b"echo ran", surroundings=posix.surroundings, cwd=b"/no/such")
    with pytest.raises(errors.NoSuchDirectory):
        jobs.remote.start(launch, 20)
    assert jobs.remote.look([launch.id], 20)[launch.id].state == "gone"


class Deaf(LocalTransport):
    """This machine, with programs whose output nobody reads."""

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        return super().open_channel(["/bin/sh", "-c", '"$@" | true', "sh", *argv], pty=pty, timeout=timeout)


def test_a_start_whose_answer_nobody_reads_begins_all_the_same(posix: Session, jobs: Jobs) -> None:
    for _ in range(3):
        launch = Launch(new_id(), b"echo begun; exit 3", surroundings=posix.surroundings)
        with pytest.raises(errors.TransferFailed):
            RemoteJobs(Deaf(), Helpers()).start(launch, 20)
        done = jobs.ended(launch.id)
        assert (done.seen.state, done.seen.exit_code, done.stdout) == ("exited", 3, b"begun\n")
        jobs.remote.remove([launch.id], 20)


class Counting(LocalTransport):
    """Counts the channels that are opened."""

    opened = 0

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        self.opened += 1
        return super().open_channel(argv, pty=pty, timeout=timeout)


@pytest.mark.usefixtures("jobs")
def test_one_helper_begins_jobs_although_nobody_waits_for_the_end_of_the_program_that_begins_one() -> None:
    transport, helpers = Counting(), Helpers()
    remote = RemoteJobs(transport, helpers)
    ids = [new_id() for _ in range(5)]
    for id in ids:
        remote.start(Launch(id, b"exit 3"), DEADLINE_SECONDS)
    eventually_equal(
        lambda: [(job.state, job.exit_code) for job in remote.look(ids, DEADLINE_SECONDS).values()],
        [("exited", 3)] * 5,
        "the jobs end",
    )
    assert transport.opened == 1
    helpers.close()


class Staying(Source):
    """A program that answers, and ends only when the file that it is given is there."""

    @property
    def text(self) -> str:
        return 'say ok\nuntil [ -e "$1" ]; do sleep 0.05; done\n'


@pytest.mark.usefixtures("jobs")
def test_a_helper_whose_program_goes_on_after_its_answer_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "END_SECONDS", 0.2)
    transport, helpers, end = Counting(), Helpers(), tmp_path / "end"
    staying = RemoteProgram("staying", (EXCHANGE,), (Staying("tests", "staying"),), goes_on=True)
    with Exchange(transport, helpers, staying, [str(end)]) as exchange:
        exchange.answer(DEADLINE_SECONDS)
    RemoteJobs(transport, helpers).start(Launch(new_id(), b"true"), DEADLINE_SECONDS)
    end.touch()
    assert transport.opened == 2, "the job's start was written to a shell that still runs another program"
    helpers.close()


def test_a_job_that_has_not_begun_is_not_lost(jobs: Jobs, home: Path) -> None:
    jobs.done(Launch(new_id(), b"true"))
    id = new_id()
    (home / id).mkdir(mode=0o700)
    for name, content in {"runner": " " * 63 + "\n", "end": " " * 63 + "\n", "out": "", "err": ""}.items():
        (home / id / name).write_text(content)
    assert jobs.look(id).state == "starting"
    jobs.remote.remove([id], 20)


def test_an_id_starts_once(jobs: Jobs) -> None:
    launch = Launch(new_id(), b"echo once")
    jobs.done(launch)
    with pytest.raises(errors.FileExists):
        jobs.remote.start(launch, 20)
    assert jobs.read(launch.id).stdout == b"once\n"
