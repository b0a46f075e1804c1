"""A job's output is kept unchanged up to a limit, and stays after the end."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from connmgr.jobs.launch import Launch
from tests.jobs.conftest import Jobs, new_id

ODD_PIECES = b"i=0; while [ $i -lt 300 ]; do printf '%01001d' $i; printf '%0777d' $i >&2; i=$((i+1)); done"


@pytest.mark.parametrize("cap", [1, 511, 512, 100_000, 100_353])
def test_output_is_cut_at_the_byte_and_the_command_goes_on(jobs: Jobs, cap: int) -> None:
    whole = b"".join(b"%01001d" % number for number in range(300))
    done = jobs.done(Launch(new_id(), ODD_PIECES + b"; exit 7", cap=cap))
    assert (done.seen.state, done.seen.exit_code) == ("exited", 7)
    assert (done.seen.stdout.size, done.seen.stdout.truncated) == (cap, True)
    assert done.stdout == whole[:cap]
    assert (done.seen.stderr.size, done.seen.stderr.truncated) == (cap, True)


def test_output_of_just_the_limit_is_whole(jobs: Jobs) -> None:
    done = jobs.done(Launch(new_id(), ODD_PIECES, cap=300 * 1001))
    assert (done.seen.stdout.size, done.seen.stdout.truncated) == (300 * 1001, False)
    assert (done.seen.stderr.size, done.seen.stderr.truncated) == (300 * 777, False)


def test_output_is_read_from_any_place_on(jobs: Jobs) -> None:
    whole = b"".join(b"%01001d" % number for number in range(300))
    id = jobs.start(Launch(new_id(), ODD_PIECES))
    jobs.ended(id)
    for offset in (0, 1, 4095, 4096, 4097, 300_299, 300_300, 300_301, 1 << 40):
        _, stdout, stderr, _ = jobs.remote.read(id, offset, 5, 5000, 20)
        assert stdout == whole[offset : offset + 5000]
        assert len(stderr) == 5000
    assert jobs.remote.read(id, 0, 0, 0, 20)[1:] == (b"", b"", b"")


def test_output_is_visible_while_the_command_runs(jobs: Jobs) -> None:
    id = jobs.start(Launch(new_id(), b"printf begun; sleep 100"))
    seen = jobs.await_that(id, lambda read: read.stdout == b"begun").seen
    assert (seen.state, seen.exit_code, seen.stdout.ended) == ("running", None, False)


def test_a_child_that_holds_the_streams_does_not_keep_the_job_running(jobs: Jobs) -> None:
    begun = time.monotonic()
    done = jobs.done(Launch(new_id(), b"sleep 50 & printf said; exit 4"))
    assert (done.seen.state, done.seen.exit_code, done.stdout) == ("exited", 4, b"said")
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("name", ["out", "err"])
def test_a_link_in_the_place_of_a_file_is_not_followed(jobs: Jobs, home: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("not the job's")
    id = jobs.start(Launch(new_id(), b"echo x"))
    jobs.ended(id)
    (home / id / name).unlink()
    (home / id / name).symlink_to(tmp_path / "secret")
    read = jobs.read(id)
    assert (read.seen.state, read.stdout, read.stderr) == ("gone", b"", b"")


def test_a_link_in_the_place_of_the_directory_is_not_followed_and_removed_alone(jobs: Jobs, home: Path) -> None:
    one, other = (jobs.start(Launch(new_id(), b"echo x")) for _ in range(2))
    jobs.ended(one)
    jobs.ended(other)
    shutil.rmtree(home / other)
    (home / other).symlink_to(home / one)
    assert jobs.look(other).state == "gone"
    jobs.remote.remove([other], 20)
    assert [path.name for path in home.iterdir()] == [one]


def test_removed_jobs_are_gone_and_no_longer_listed(jobs: Jobs) -> None:
    ids = [jobs.start(Launch(new_id(), b"echo x")) for _ in range(3)]
    for id in ids:
        jobs.ended(id)
    ages = jobs.remote.list(20)
    assert set(ages) == set(ids)
    assert all(age is not None and 0 <= age < 60 for age in ages.values())
    jobs.remote.remove([*ids[:2], new_id()], 20)
    assert set(jobs.remote.list(20)) == set(ids[2:])
    assert [jobs.look(id).state for id in ids] == ["gone", "gone", "exited"]
