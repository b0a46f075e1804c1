"""The age of jobs as a remote host lists it: with stat, with only find, and with neither."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from connmgr.jobs.launch import Launch
from tests.fs.remote_hosts import NECESSARY, SHELLS, Elsewhere, chosen_tools, shell_called_sh
from tests.jobs.conftest import Jobs, new_id
from tests.jobs.test_places import MORE_TOOLS

DAY = 86400

WithTools = Callable[[str, Sequence[str]], Jobs]


@pytest.fixture
def with_tools(tmp_path: Path) -> Iterator[WithTools]:
    """A function that returns the jobs of a remote host with a shell, the tools that jobs need, and some others."""
    with ExitStack() as made:

        def make(shell: str, tools: Sequence[str]) -> Jobs:
            path = chosen_tools(tmp_path, [*NECESSARY, *MORE_TOOLS, "date", *tools])
            jobs = Jobs(Elsewhere(shell_called_sh(tmp_path, shell), path, tmp_path))
            made.callback(jobs.close)
            return jobs

        yield make


def aged(jobs: Jobs, home: Path, seconds: int) -> str:
    """Return an ended job whose start appears to be so long ago."""
    id = jobs.start(Launch(new_id(), b"true"))
    jobs.ended(id)
    began = time.time() - seconds
    os.utime(home / id / "runner", (began, began))
    return id


@pytest.mark.parametrize("shell", SHELLS)
def test_only_jobs_of_an_age_are_listed(with_tools: WithTools, home: Path, shell: str) -> None:
    jobs = with_tools(shell, ["stat"])
    young, old, future = (aged(jobs, home, seconds) for seconds in (0, 100, -100))
    assert set(jobs.remote.list(20)) == {young, old, future}
    ages = jobs.remote.list(20, 60)
    assert set(ages) == {old}
    assert ages[old] in range(100, 160)
    assert jobs.remote.list(20, 1000) == {}


@pytest.mark.parametrize("shell", SHELLS)
def test_without_stat_only_jobs_are_listed_that_find_knows_to_be_old_enough(
    with_tools: WithTools, home: Path, shell: str
) -> None:
    jobs = with_tools(shell, ["find"])
    hour, day, three = (aged(jobs, home, seconds) for seconds in (3600, DAY + 60, 3 * DAY + 60))
    assert jobs.remote.list(20) == dict.fromkeys([hour, day, three])
    assert jobs.remote.list(20, 60) == dict.fromkeys([day, three])
    assert jobs.remote.list(20, DAY) == dict.fromkeys([day, three])
    assert jobs.remote.list(20, DAY + 1) == {three: None}, "find cannot tell that the other is older than a day"
    assert jobs.remote.list(20, 4 * DAY) == {}


@pytest.mark.needs("dash")
def test_without_stat_and_find_no_age_is_certain(with_tools: WithTools, home: Path) -> None:
    jobs = with_tools("dash", [])
    id = aged(jobs, home, 400 * DAY)
    assert jobs.remote.list(20) == {id: None}
    assert jobs.remote.list(20, 60) == {}
