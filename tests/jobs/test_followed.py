"""Followed jobs: an answer has the output from the requested offsets on, and no other."""

from __future__ import annotations

from typing import cast

import pytest

from connmgr.jobs.followed import Followed, Output
from connmgr.jobs.spool import Seen, Stream
from connmgr.vault.jobs import StoredJob

PRINTED = Seen("running", None, Stream(6, ended=False), Stream(0, ended=False))


@pytest.fixture
def followed() -> Followed:
    return Followed(cast("StoredJob", None))


def told(output: Output) -> tuple[int, bytes]:
    return output.stdout_offset, output.stdout


def test_a_read_without_news_is_told_nothing_that_another_read(followed: Followed) -> None:
    assert told(followed.publish(PRINTED, 0, b"first\n")) == (0, b"first\n")
    assert told(followed.publish(PRINTED, 6, b"")) == (6, b"")
    assert told(followed.last) == (0, b"first\n"), "what was read serves others on"


def test_who_cannot_ask_is_told_nothing_that_another_read(followed: Followed) -> None:
    followed.publish(PRINTED, 0, b"first\n")
    assert told(followed.unreachable(6, 0)) == (6, b"")
    assert told(followed.unreachable(0, 0)) == (0, b"first\n")
    assert followed.unreachable(6, 0).stale


def test_a_new_version_is_told_once(followed: Followed) -> None:
    heard: list[int] = []
    followed.publish(PRINTED)
    followed.subscribe(followed.last.version, lambda: heard.append(1))
    followed.publish(PRINTED, 0, b"first\n")
    assert heard == [], "what was read is no news"
    followed.publish(Seen("exited", 0, Stream(6), Stream(0)))
    followed.publish(Seen("exited", 0, Stream(7), Stream(0)))
    assert heard == [1]
