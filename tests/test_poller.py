"""Threads that look what there is to do: what they log while that cannot be done."""

from __future__ import annotations

import logging
import threading

import pytest

from connmgr import poller
from connmgr.errors import VaultUnavailable
from connmgr.poller import Poller, Trouble
from tests.deadlines import DEADLINE_SECONDS, eventually

logger = logging.getLogger("connmgr.test")


def test_what_cannot_be_done_is_logged_as_it_begins_changes_and_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble(logger, "It waits", "It goes on.")
    trouble.end()
    for reason in ("away", "away", "full", "full", "away"):
        trouble.note(reason)
    trouble.end()
    trouble.end()
    said = ["It waits: away", "It waits: full", "It waits: away", "It goes on."]
    assert caplog.messages == said
    monkeypatch.setattr(poller, "TOLD_SECONDS", 0.0)
    for _ in range(2):
        trouble.note("away")
    assert caplog.messages == [*said, "It waits: away", "It waits: away"]


def test_a_poller_that_tries_again_and_again_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    looks, is_back, seen = [0], threading.Event(), threading.Event()

    def look() -> float | None:
        looks[0] += 1
        if not is_back.is_set():
            raise VaultUnavailable("The database is away.")
        seen.set()
        return None

    polls = Poller("things", look, 0.001, logger)
    polls.poke()
    try:
        eventually(lambda: looks[0], "it does not try again", holds=lambda count: count > 10)
        is_back.set()
        assert seen.wait(DEADLINE_SECONDS)
    finally:
        polls.close(DEADLINE_SECONDS)
    assert caplog.messages == ["The things wait: The database is away.", "The things go on."]
