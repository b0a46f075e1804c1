"""Requests that wait without a thread: only those may whose endpoint is declared so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from connmgr.api.app import endpoints
from connmgr.api.endpoint import Endpoint
from connmgr.rights.actions import Action
from connmgr.suspension import Continuation, Suspended
from tests.deadlines import DEADLINE_SECONDS

VIEWS_THAT_WAIT = {
    "/job/output",
    "/job/wait",
    "/shell/exec",
    "/terminal/output",
    "/terminal/screen",
    "/run/wait",
    # Its view asks for an approval, as an owner may demand of a page.
    "/web/confirm",
    # Their views ask rules over paths, which may ask for an approval.
    "/fs/archive",
    "/fs/attributes",
    "/fs/download",
    "/fs/ticket",
    "/fs/checksum",
    "/fs/glob",
    "/fs/list",
    "/fs/mkdir",
    "/fs/move",
    "/fs/read",
    "/fs/remove",
    "/fs/search",
    "/fs/stat",
    "/fs/write",
}
"""The endpoints whose views may run more than once for a request: a new one needs a reason why that is safe."""


def _never(_: Callable[[], None]) -> Callable[[], None]:
    return lambda: None


def _view() -> None:
    raise Suspended(_never, 1.0)


def _call_view(endpoint: Endpoint) -> Any:
    unused: Any = None
    return endpoint._call_view(unused, unused, {}, {})


def test_the_endpoints_whose_views_may_run_again_are_declared() -> None:
    assert {endpoint.path for endpoint in endpoints() if endpoint.suspends} == VIEWS_THAT_WAIT


def test_a_view_that_waits_without_the_declaration_is_a_fault() -> None:
    with pytest.raises(RuntimeError, match="/x may not run twice"):
        _call_view(Endpoint(path="/x", view=_view, action=Action("x")))
    with pytest.raises(Suspended):
        _call_view(Endpoint(path="/x", view=_view, action=Action("x"), suspends=True))


def test_a_request_waits_until_the_news_or_until_it_is_old_enough() -> None:
    continuation, news = Continuation(resumes=False), threading.Event()
    assert continuation.is_younger_than(DEADLINE_SECONDS)
    assert not continuation.is_younger_than(0)
    cancelled: list[str] = []

    def subscribe(resume: Callable[[], None]) -> Callable[[], None]:
        threading.Thread(target=lambda: news.wait(DEADLINE_SECONDS) and resume()).start()
        news.set()
        return lambda: cancelled.append("cancelled")

    continuation.wait(Suspended(subscribe, DEADLINE_SECONDS))
    assert continuation.is_younger_than(DEADLINE_SECONDS), "it has waited for its time, not for the news"
    continuation.wait(Suspended(_never, 0.0))
    assert cancelled == ["cancelled"]


def test_news_that_is_there_already_resumes_at_once_and_is_not_waited_for_any_more() -> None:
    resumed: list[str] = []
    cancelled: list[str] = []

    def subscribe(resume: Callable[[], None]) -> Callable[[], None]:
        resume()
        return lambda: cancelled.append("cancelled")

    suspended = Suspended(subscribe, 1.0)

    def resume() -> None:
        resumed.append("resumed")
        suspended.end()

    suspended.begin(resume)
    assert (resumed, cancelled) == (["resumed"], ["cancelled"])
