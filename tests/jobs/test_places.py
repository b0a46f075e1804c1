"""Jobs on unusual remote hosts: another /bin/sh, few tools, no /proc, no space, a login manager."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.engine.script import programs
from connmgr.fs import files
from connmgr.fs.checksums import Checksums
from connmgr.fs.remote import RemoteFileSystem
from connmgr.jobs.launch import OPEN, Launch
from connmgr.plugin import Channel, Pty, Transport
from connmgr_local.transport import LocalTransport
from tests.components import mount_words, program
from tests.engine.shells import local_session, run
from tests.fs.remote_hosts import NECESSARY, busybox_tools, chosen_tools, content_of, tools_and_shells
from tests.fs.trees import archive_of, packed, unpack
from tests.jobs.conftest import Jobs, new_id

MORE_TOOLS = ["dd", "env", "grep", "id", "ln", "mkfifo", "sleep", "tee"]


class Mounted(Transport):
    """This machine after ``mounts`` in a private namespace."""

    def __init__(self, mounts: str, tools: str, home: Path, **variables: str) -> None:
        self._local = LocalTransport()
        environment = {"HOME": str(home), "PATH": tools, **variables}
        words = shlex.join(f"{name}={value}" for name, value in environment.items())
        set_up = f'{mounts}\nexec env -i {words} "$@"'
        self._words = [*mount_words(), "/bin/bash", "-c", set_up, "bash"]

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        return self._local.open_channel([*self._words, *argv], pty=pty, timeout=timeout)

    def close(self) -> None:
        self._local.close()


def all_of_it(jobs: Jobs) -> None:
    """Run a job with input to its end, and kill another one."""
    id = jobs.start(Launch(new_id(), b"cat; echo told >&2; exit 3", stdin=OPEN, cap=6, timeout=100))
    jobs.remote.input(id, b"some ", False, 20)
    jobs.await_that(id, lambda read: read.stdout == b"some ")
    jobs.remote.input(id, b"input", True, 20)
    done = jobs.ended(id)
    assert (done.seen.state, done.seen.exit_code) == ("exited", 3)
    assert (done.stdout, done.seen.stdout.truncated, done.stderr) == (b"some i", True, b"told\n")
    id = jobs.start(Launch(new_id(), b"sleep 1000 & echo ready; sleep 1001"))
    jobs.await_that(id, lambda read: read.stdout == b"ready\n")
    jobs.remote.kill(id, "TERM", 1, 20)
    assert (jobs.ended(id).seen.state, jobs.ended(id).seen.exit_code) == ("killed", 143)
    assert set(jobs.remote.list(20)) >= {id}


@pytest.mark.needs("mounts")
@pytest.mark.parametrize(("tools", "shell"), tools_and_shells(0))
def test_any_sh_and_hardly_any_tools(tmp_path: Path, shell: str, tools: str) -> None:
    path = os.environ["PATH"]
    if tools == "busybox":
        path = busybox_tools(tmp_path)
        for name in [*MORE_TOOLS, "date", "setsid"]:
            (Path(path) / name).symlink_to(str(program("busybox"))) if not (Path(path) / name).exists() else None
    elif tools == "few":
        path = chosen_tools(tmp_path, [*NECESSARY, *MORE_TOOLS, "date"])
    mounts = f"mount --bind {program(shell)} {Path('/bin/sh').resolve()}"
    jobs = Jobs(Mounted(mounts, path, tmp_path))
    all_of_it(jobs)
    jobs.close()


def exported(words: str) -> dict[str, str]:
    """Return the variables by which bash, also as sh, is given functions of these names."""
    return {f"BASH_FUNC_{word}%%": "() {  /bin/echo misled; return 7;\n}" for word in words.split()}


WORDS = """
    [ alias builtin cat cd chmod command cp cut dd declare echo env find grep hash head id kill ln local ls mkdir mkfifo
    mktemp mv printf pwd read rm sed sh sleep stat tar tee test touch tr true type umask uname unset wait wc
"""


@pytest.mark.needs("mounts", "bash")
@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_functions_that_a_login_exports_mislead_nothing_of_ours(tmp_path: Path, shell: str) -> None:
    sh_is_bash = f"mount --bind {program('bash')} {Path('/bin/sh').resolve()}"
    functions = exported(WORDS)
    transport = Mounted(sh_is_bash, os.environ["PATH"], tmp_path, **functions)
    sessions = Mounted(sh_is_bash, os.environ["PATH"], tmp_path, **functions)
    jobs = Jobs(transport)
    all_of_it(jobs)
    place = RemoteFileSystem(transport, bytes(tmp_path), jobs.helpers)
    assert unpack(place, b"tree", archive_of(("a/b", {"content": b"x" * 100_000}))) == []
    assert content_of(place, b"tree/a/b") == b"x" * 100_000
    assert {entry.name for entry in files.list_directory(place, b"tree", recursive=True)} == {b"a", b"a/b"}
    files.move(place, b"tree/a/b", b"tree/c", overwrite=False, timeout=20)
    assert len(packed(place, b"tree")) > 100_000
    files.remove(place, b"tree", recursive=True, timeout=20)
    assert not (tmp_path / "tree").exists()
    with local_session(shell, transport=sessions) as session:
        result = run(session, "/bin/pwd", stdin=b"x" * 100_000, directory=b"/usr")
        assert (result.exit_code, bytes(result.stdout), bytes(result.stderr)) == (0, b"/usr\n", b"")
        assert run(session, "rm x").stdout == b"misled\n", "the user's commands have the user's functions"
        with pytest.raises(errors.CommandTimeout):
            run(session, "/bin/sleep 100", timeout=0.2)
        assert run(session, "/bin/echo x").stdout == b"x\n"
    jobs.close()


STEERING = {
    "BLOCK_SIZE": "human-readable",
    "CLICOLOR_FORCE": "1",
    "FIND_BLOCK_SIZE": "1",
    "GREP_OPTIONS": "-v --color=always",
    "LS_BLOCK_SIZE": "1K",
    "PS_PERSONALITY": "hpux",
    "QUOTING_STYLE": "c",
    "TIME_STYLE": "full-iso",
    "TMOUT": "1",
}
OPTIONS = {"SHELLOPTS": "errexit:nounset:noglob:noclobber:xtrace", "BASHOPTS": "failglob:nullglob:nocasematch"}


@pytest.mark.needs("mounts", "bash")
@pytest.mark.parametrize("variables", [STEERING, OPTIONS], ids=["tools", "bash"])
def test_variables_that_steer_tools_or_the_shell_mislead_nothing_of_ours(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    sh_is_bash = f"mount --bind {program('bash')} {Path('/bin/sh').resolve()}"
    jobs = Jobs(Mounted(sh_is_bash, os.environ["PATH"], tmp_path, **variables))
    all_of_it(jobs)
    place = RemoteFileSystem(jobs.transport, bytes(tmp_path), jobs.helpers)
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "b").write_bytes(b"x" * 100_000)
    entries = {entry.name: entry.size for entry in files.list_directory(place, b"tree", recursive=True)}
    assert entries[b"a/b"] == 100_000
    assert [sum.name for some in Checksums(place, b"tree") for sum in some] == [b"a/b"]
    with local_session("bash", transport=Mounted(sh_is_bash, os.environ["PATH"], tmp_path, **variables)) as session:
        with pytest.raises(errors.CommandTimeout):
            run(session, "/bin/sleep 100", timeout=0.2)
        assert run(session, "/bin/echo x").stdout == b"x\n", "the command that took too long took the shell along"
    jobs.close()


@pytest.mark.needs("mounts")
def test_a_system_without_proc(tmp_path: Path) -> None:
    jobs = Jobs(Mounted("mount -t tmpfs tmpfs /proc", os.environ["PATH"], tmp_path))
    id = jobs.start(Launch(new_id(), b"cat; exit 3", stdin=OPEN))
    assert jobs.look(id).state == "running"
    jobs.remote.input(id, b"input", True, 20)
    done = jobs.ended(id)
    assert (done.seen.state, done.seen.exit_code, done.stdout) == ("exited", 3, b"input")
    jobs.close()


@pytest.mark.needs("mounts")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    state = tmp_path / ".local"
    state.mkdir()
    full = f"mount -t tmpfs -o size=1m tmpfs {state}; mkdir -p -m 700 {state}/state/connmgr/jobs; "
    jobs = Jobs(Mounted(full + f"head -c 2000000 /dev/zero >{state}/filling 2>/dev/null", os.environ["PATH"], tmp_path))
    with pytest.raises(errors.NoSpace):
        jobs.remote.start(Launch(new_id(), b"true"), 20)
    assert jobs.remote.list(20) == {}
    jobs.close()


@pytest.mark.needs("mounts")
def test_a_disk_that_gets_full_keeps_the_status(tmp_path: Path) -> None:
    state = tmp_path / ".local"
    state.mkdir()
    small = f"mount -t tmpfs -o size=1m tmpfs {state}"
    jobs = Jobs(Mounted(small, os.environ["PATH"], tmp_path))
    done = jobs.done(Launch(new_id(), b"head -c 3000000 /dev/zero; echo x >&2; exit 42"))
    assert (done.seen.state, done.seen.exit_code, done.seen.stdout.truncated) == ("exited", 42, True)
    assert 0 < done.seen.stdout.size < 1 << 20
    jobs.remote.remove(jobs.remote.list(20), 20)
    jobs.close()


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Jobs of a user whose home is a file."""
    (tmp_path / "home").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    jobs = Jobs(LocalTransport())
    yield jobs
    jobs.close()


def launch() -> Launch:
    return Launch(new_id(), b"echo x")


def test_without_a_home_jobs_are_in_the_temporary_directory(homeless: Jobs, tmp_path: Path) -> None:
    for _ in range(2):
        id = homeless.start(replace_directory(launch()))
        assert homeless.ended(id).stdout == b"x\n"
        assert (tmp_path / f"tmp/connmgr-{os.getuid()}/jobs/{id}").is_dir()


def replace_directory(given: Launch) -> Launch:
    return Launch(given.id, given.text, cwd=b"/")


@pytest.mark.parametrize("kind", ["link", "open", "file"])
def test_a_place_that_somebody_else_prepared_is_refused(homeless: Jobs, tmp_path: Path, kind: str) -> None:
    place = tmp_path / f"tmp/connmgr-{os.getuid()}"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    elif kind == "open":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.touch()
    with pytest.raises(errors.PermissionDenied, match=f"{place} does not belong to it alone"):
        homeless.remote.start(replace_directory(launch()), 20)
    if kind == "link":
        assert not list((tmp_path / "elsewhere").iterdir()), "something was made through a stranger's link"


def test_nothing_is_read_or_removed_through_a_link_that_somebody_else_prepared(homeless: Jobs, tmp_path: Path) -> None:
    id = homeless.start(replace_directory(launch()))
    homeless.ended(id)
    place, elsewhere = tmp_path / f"tmp/connmgr-{os.getuid()}", tmp_path / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    homeless.remote.remove([id], 20)
    assert (elsewhere / "jobs" / id).is_dir()
    later = Jobs(LocalTransport())
    assert later.look(id).state == "gone"
    later.close()


@pytest.mark.parametrize(
    ("facts", "linger", "found"),
    [
        ("KillUserProcesses=no", "yes", "|"),
        ("KillUserProcesses=yes", "no", "|ends_with_login"),
        ("KillUserProcesses=yes\nKillOnlyUsers=other", "no", "|"),
        ("KillUserProcesses=yes\nKillOnlyUsers=other somebody", "no", "|ends_with_login"),
        ("KillUserProcesses=yes\nKillExcludeUsers=root somebody", "no", "|"),
        ("KillUserProcesses=yes\nKillExcludeUsers=root", "yes", "systemd-run --user --scope --quiet|"),
    ],
)
def test_a_login_manager_that_ends_all_of_a_login(tmp_path: Path, facts: str, linger: str, found: str) -> None:
    answers = f"""case "$*" in
*KillUserProcesses*) echo {shlex.quote(facts)};;
*Name) echo Name=somebody;;
*Linger) echo Linger={linger};;
esac"""
    scripts = {"loginctl": answers, "systemd-run": "exit 0", "id": "echo 1000"}
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "cgroup").write_text("0::/user.slice/user-1000.slice/session-3.scope\n")
    text = programs("connmgr.jobs")["places.sh"].replace("/proc/self/cgroup", str(tmp_path / "cgroup"))
    done = subprocess.run(
        ["/bin/sh", "-c", text + 'echo "$job_around|$job_warning"'],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == found + "\n"
