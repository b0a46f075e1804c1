"""Jobs whose directory on the remote host was removed, replaced, full or missing: answers stay true, and all ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from connmgr import errors
from connmgr.jobs.launch import Launch
from connmgr.plugin import Channel, Pty
from connmgr_local.transport import LocalTransport
from tests.components import mount_words
from tests.deadlines import eventually_equal
from tests.jobs.conftest import Jobs, new_id
from tests.jobs.test_kill import processes_of, ready

LINES = b"i=0; while [ $i -lt 30000 ]; do echo line $i; i=$((i+1)); done; exit 3"
SECRET = "of somebody else\n"


def link(path: Path) -> None:
    """Replace a file by a link to another one."""
    other = target(path)
    other.write_text(SECRET)
    path.symlink_to(other)


def target(path: Path) -> Path:
    """Return the target of such a link."""
    return path.parent.with_suffix(".other")


REPLACEMENTS: list[Callable[[Path], None]] = [
    link,
    os.mkfifo,
    Path.mkdir,
]
RUNNING = b"echo ready; sleep 1000"

replaced = pytest.mark.parametrize("replace", REPLACEMENTS, ids=["link", "fifo", "directory"])


class Inside(LocalTransport):
    """This machine, each helper behind ``words``."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self._words = words

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        return super().open_channel([*self._words, *argv], pty=pty, timeout=timeout)


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Callable[..., Jobs]]:
    """A function that returns jobs with their own environment, on a machine that a script has changed before."""
    opened: list[Jobs] = []

    def open(script: str = "", home: Sequence[str] = (f"HOME={tmp_path / 'home'}",)) -> Jobs:
        words = ["env", "-u", "XDG_STATE_HOME", *home, f"TMPDIR={tmp_path}"]
        before = [*mount_words(), "/bin/sh", "-c", f'{script}; exec "$@"', "sh"] if script else []
        opened.append(Jobs(Inside([*words, *before])))
        return opened[-1]

    (tmp_path / "home").mkdir()
    yield open
    for jobs in opened:
        jobs.close()


@replaced
@pytest.mark.parametrize("name", ["out", "err", "runner", "end", "kill"])
def test_a_fifo_or_link_in_place_of_a_file_is_neither_read_nor_waited_for(
    jobs: Jobs, home: Path, name: str, replace: Callable[[Path], None]
) -> None:
    id = jobs.start(Launch(new_id(), b"echo x; exit 3"))
    jobs.ended(id)
    (home / id / name).unlink()
    replace(home / id / name)
    states = {"out": "gone", "err": "gone", "runner": "exited", "end": "lost", "kill": "exited"}
    assert jobs.look(id).state == states[name]
    assert jobs.read(id).stdout == (b"" if states[name] == "gone" else b"x\n")


@replaced
@pytest.mark.parametrize("name", ["kill", "end", "out"])
def test_a_job_is_killed_whatever_has_taken_a_file_s_place(
    jobs: Jobs, home: Path, name: str, replace: Callable[[Path], None]
) -> None:
    id = ready(jobs, RUNNING)
    (home / id / name).unlink()
    replace(home / id / name)
    jobs.remote.kill(id, "KILL", None, 20)
    eventually_equal(lambda: processes_of(id), [], "processes of the job are left")
    if replace is link:
        assert target(home / id / name).read_text() == SECRET, "it was written through the link"


@pytest.mark.needs("linux")
@pytest.mark.parametrize("link", [False, True])
def test_a_job_without_its_directory_is_gone_and_can_be_killed(jobs: Jobs, home: Path, link: bool) -> None:
    id, other = ready(jobs, RUNNING), ready(jobs, RUNNING)
    shutil.rmtree(home / id)
    if link:
        (home / id).symlink_to(home / other)
    assert jobs.look(id).state == "gone"
    assert jobs.remote.kill(id, "KILL", None, 20).state == "gone"
    eventually_equal(lambda: processes_of(id), [], "processes of the job are left")
    assert jobs.look(other).state == "running"


@pytest.mark.needs("mounts")
def test_a_disk_that_fills_cuts_the_output_and_nothing_else(inside: Callable[..., Jobs]) -> None:
    jobs = inside('mount -t tmpfs -o size=128k tmpfs "$HOME"')
    done = jobs.done(Launch(new_id(), LINES))
    assert (done.seen.state, done.seen.exit_code, done.seen.stdout.truncated) == ("exited", 3, True)
    whole = b"".join(b"line %d\n" % number for number in range(30000))
    assert 0 < len(done.stdout) < len(whole)
    assert whole.startswith(done.stdout)


@pytest.mark.needs("mounts")
def test_a_full_disk_is_told_and_nothing_is_left(inside: Callable[..., Jobs]) -> None:
    jobs = inside('mount -t tmpfs -o size=16k tmpfs "$HOME"; head -c 60000 /dev/zero >"$HOME/fill"')
    with pytest.raises(errors.NoSpace):
        jobs.start(Launch(new_id(), b"echo ran"))
    assert jobs.remote.list(20) == {}


@pytest.mark.needs("mounts")
def test_a_job_needs_no_writable_home(inside: Callable[..., Jobs]) -> None:
    jobs = inside('mount -t tmpfs -o ro tmpfs "$HOME"')
    assert jobs.done(Launch(new_id(), b"exit 3")).seen.exit_code == 3


def test_without_a_home(inside: Callable[..., Jobs]) -> None:
    assert inside("", ["-u", "HOME"]).done(Launch(new_id(), b"exit 3")).seen.exit_code == 3


@pytest.mark.needs("mounts", "linux")
def test_without_proc_and_ps_a_job_ends_and_a_kill_says_that_it_cannot(inside: Callable[..., Jobs]) -> None:
    jobs = inside("mount -t tmpfs tmpfs /proc")
    done = jobs.done(Launch(new_id(), b"echo x; exit 3"))
    assert (done.seen.state, done.seen.exit_code, done.stdout) == ("exited", 3, b"x\n")
    id = jobs.start(Launch(new_id(), b"read -r word; echo $word", stdin=None))
    with pytest.raises(errors.FileOperationFailed, match="neither /proc nor ps"):
        jobs.remote.kill(id, "KILL", None, 20)
    assert jobs.look(id).state == "running"
    jobs.remote.input(id, b"over\n", True, 20)
    assert jobs.ended(id).stdout == b"over\n"
