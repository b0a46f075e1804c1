"""Cached jobs: an answer has the output from the requested offsets on, and no other."""

from __future__ import annotations

from typing import cast

import pytest

from connmgr.jobs.jobs import CachedJob, JobOutput
from connmgr.jobs.remote import JobStream, RemoteJob
from connmgr.vault.jobs import StoredJob

PRINTED = RemoteJob("running", None, JobStream(6, ended=False), JobStream(0, ended=False))


@pytest.fixture
def cached() -> CachedJob:
    return CachedJob(cast("StoredJob", None))


def told(output: JobOutput) -> tuple[int, bytes]:
    return output.stdout_offset, output.stdout


def test_a_read_without_news_is_told_nothing_that_another_read(cached: CachedJob) -> None:
    assert told(cached.publish(PRINTED, 0, b"first\n")) == (0, b"first\n")
    assert told(cached.publish(PRINTED, 6, b"")) == (6, b"")
    assert told(cached.last) == (0, b"first\n"), "what was read serves others on"


def test_who_cannot_ask_is_told_nothing_that_another_read(cached: CachedJob) -> None:
    cached.publish(PRINTED, 0, b"first\n")
    assert told(cached.unreachable(6, 0)) == (6, b"")
    assert told(cached.unreachable(0, 0)) == (0, b"first\n")
    assert cached.unreachable(6, 0).stale


def test_a_new_version_is_told_once(cached: CachedJob) -> None:
    heard: list[int] = []
    cached.publish(PRINTED)
    cached.subscribe(cached.last.version, lambda: heard.append(1))
    cached.publish(PRINTED, 0, b"first\n")
    assert heard == [], "what was read is no news"
    cached.publish(RemoteJob("exited", 0, JobStream(6), JobStream(0)))
    cached.publish(RemoteJob("exited", 0, JobStream(7), JobStream(0)))
    assert heard == [1]
