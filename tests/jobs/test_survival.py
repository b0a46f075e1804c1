"""Jobs survive their starter, are distinguished from foreign processes, and do not expose their instructions."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from connmgr.engine.session import Session
from connmgr.errors import ConnmgrError
from connmgr.jobs.launch import OPEN, Launch
from tests.components import program
from tests.deadlines import DEADLINE_SECONDS, eventually, eventually_equal
from tests.engine.shells import local_session
from tests.fs.remote_hosts import SHELLS, Elsewhere, shell_called_sh
from tests.jobs.conftest import Jobs, new_id
from tests.jobs.test_kill import processes_of, ready
from tests.plugins.oneself import ssh_link, ssh_server

MANY = 130
"""Jobs whose ids together exceed a pipe's atomic write."""


def test_the_end_of_its_helper_and_of_its_session(jobs: Jobs, gate: Path) -> None:
    with local_session("sh") as session:
        launch = Launch(new_id(), f"echo ready; cat {gate}; echo later".encode(), surroundings=session.surroundings)
        id = jobs.start(launch)
        jobs.await_that(id, lambda read: read.stdout == b"ready\n")
        jobs.helpers.dismiss()
    gate.write_text("")
    assert jobs.ended(id).stdout == b"ready\nlater\n"


@pytest.mark.needs("sshd")
@pytest.mark.parametrize("shell", ["bash", "fish", "tcsh"])
def test_the_end_of_the_link_and_of_its_server(tmp_path: Path, shell: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = next(str(found) for folder in ("/bin", "/usr/bin") if (found := Path(folder, shell)).exists())
    with ssh_server(home, path) as server:
        with ssh_link(server) as link:
            jobs = Jobs(link)
            with local_session("sh", transport=link) as session:
                text = b"echo ready; trap 'echo hup' HUP; sleep 1; cat; echo later"
                launch = Launch(new_id(), text, surroundings=session.surroundings, stdin=OPEN)
                id = jobs.start(launch)
                jobs.await_that(id, lambda read: read.stdout == b"ready\n")
                jobs.remote.input(id, b"sent\n", True, 20)
                for process in psutil.Process(server.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        if process.name().startswith("sshd"):
                            process.kill()
        with ssh_link(server) as link:
            again = Jobs(link)
            assert again.ended(id).stdout == b"ready\nsent\nlater\n"
            again.remote.remove([id], 20)
            assert again.remote.list(20) == {}
            again.close()


@pytest.mark.needs("linux")
@pytest.mark.parametrize("shell", SHELLS)
def test_the_end_of_its_helper_while_it_is_started(tmp_path: Path, shell: str) -> None:
    (tmp_path / ".local/state/connmgr/jobs").mkdir(parents=True)
    reached, may_go_on = tmp_path / "reached", tmp_path / "may-go-on"
    slow = tmp_path / "tools/mkdir"
    slow.parent.mkdir()
    wait = f"echo $PPID >{reached}; until [ -e {may_go_on} ]; do sleep 0.01; done"
    slow.write_text(f'#!/bin/sh\n{wait}\nexec {program("mkdir")} "$@"\n')
    slow.chmod(0o755)
    path = f"{slow.parent}:{os.environ['PATH']}"
    jobs = Jobs(Elsewhere(shell_called_sh(tmp_path, shell), path, tmp_path))
    id, before = new_id(), set(psutil.Process().children())
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(jobs.start, Launch(id, b"echo done; exit 3"))
        try:
            eventually(lambda: reached.exists() and reached.stat().st_size > 0, "the start makes no directory")
            (helper,) = set(psutil.Process().children()) - before
            # As sudo signals its processes when the channel is closed.
            helper.send_signal(signal.SIGHUP)
            # Some shells run the start in their own process, which ignores HUP meanwhile.
            if helper.pid != int(reached.read_text()):
                helper.wait(DEADLINE_SECONDS)
        finally:
            may_go_on.touch()
        with suppress(ConnmgrError):
            starting.result(DEADLINE_SECONDS)
    ended = jobs.ended(id)
    assert (ended.seen.state, ended.seen.exit_code, ended.stdout) == ("exited", 3, b"done\n")
    jobs.close()


def targets(process: psutil.Process) -> Iterator[str]:
    """Yield the targets of a process's descriptors."""
    with suppress(FileNotFoundError):
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                yield str(link.readlink())


def test_no_stream_of_the_channel_is_kept(jobs: Jobs) -> None:
    id = ready(jobs, b"sleep 1000 & echo ready; sleep 1000")
    pipes = {target for process in (psutil.Process(), *psutil.Process().children()) for target in targets(process)}
    held = {target for process in processes_of(id) for target in targets(process)}
    assert not {name for name in held & pipes if "pipe:" in name}
    assert len({os.getsid(process.pid) for process in processes_of(id)} & {os.getsid(0)}) == 0


def test_the_command_its_variables_and_its_input_are_in_no_argv_and_no_file(
    any_shell: Session, jobs: Jobs, home: Path
) -> None:
    # Other programs of the machine may have any ordinary word in their arguments.
    hidden = f"hidden-{new_id()}"
    launch = Launch(
        new_id(),
        f": {hidden}; cat >/dev/null; echo ready; sleep 1000".encode(),
        surroundings=any_shell.surroundings,
        environment={"HIDDEN": hidden},
        stdin=hidden.encode(),
    )
    id = jobs.start(launch)
    jobs.await_that(id, lambda read: read.stdout == b"ready\n")
    for process in psutil.process_iter():
        if process.pid != os.getpid():
            try:
                assert hidden not in " ".join(process.cmdline())
            except psutil.Error:
                continue
    files = [path for path in home.rglob("*") if path.is_file()]
    assert not [path for path in files if hidden.encode() in path.read_bytes()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (home / id).stat().st_mode & 0o777 == 0o700


def test_the_runner_s_death_is_a_loss(jobs: Jobs, home: Path) -> None:
    id = ready(jobs, b"echo ready; sleep 1000")
    runner = int((home / id / "runner").read_text().split()[0])
    psutil.Process(runner).kill()
    eventually_equal(lambda: jobs.look(id).state, "lost", "a job without a runner seems to run")
    assert jobs.read(id).stdout == b"ready\n"
    jobs.remote.kill(id, "KILL", None, 20)
    eventually_equal(lambda: processes_of(id), [], "processes of the job are left")


def test_another_boot_is_a_loss(jobs: Jobs, home: Path) -> None:
    id = ready(jobs, b"echo ready; sleep 1000")
    record = home / id / "runner"
    pid, start, boot, *rest = record.read_text().split("\n")[0].split()
    record.write_text(" ".join([pid, start, boot[::-1], *rest]) + "\n")
    assert jobs.look(id).state == "lost"
    record.write_text(" ".join([pid, start, boot, *rest]) + "\n")
    assert jobs.look(id).state == "running"


def test_many_jobs_over_one_link(jobs: Jobs) -> None:
    ids = [jobs.start(Launch(new_id(), b"echo $CONNMGR_JOB; exit 3")) for _ in range(MANY)]
    eventually_equal(
        lambda: [id for id, seen in jobs.remote.look(ids, 20).items() if not seen.stdout.ended or seen.exit_code != 3],
        [],
        f"some of {MANY} jobs do not end",
    )
    for id in ids[::20]:
        assert jobs.read(id).stdout == id.encode() + b"\n"
