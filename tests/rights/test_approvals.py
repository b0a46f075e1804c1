"""Approvals from request to end, in one daemon and in two daemons on one vault."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from connmgr.contract.approval import Verdict
from connmgr.contract.message import time_to_json
from connmgr.errors import ApprovalDenied, ApprovalRequired, PolicyDenied, QuotaExceeded, UnknownApproval
from connmgr.rights.approvals import MAX_PENDING, Approvals
from connmgr.suspension import Continuation, Suspended
from connmgr.vault import Vault
from connmgr.vault.documents import Documents
from connmgr.vault.schema import now
from tests.clock import Clock

ASKED = {"action": "shell.exec", "connections": ["c"], "argv": ["systemctl", "restart", "ünit"], "env": {"A": "b"}}
KEY = b"k" * 32


@dataclass(frozen=True)
class Token:
    """A token with an id and a parent."""

    id: str
    parent: Token | None = None

    @property
    def name(self) -> str:
        return f"name of {self.id}"

    @property
    def lineage(self) -> tuple[Token, ...]:
        return (self, *(self.parent.lineage if self.parent else ()))


ASKING = Token("asking")


@dataclass
class Desk:
    """The approvals of one daemon; each thread has one current request."""

    vault: Vault
    notified: list[Mapping[str, Any]] = field(default_factory=list)
    local: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        self.approvals = Approvals(self.vault.approvals, KEY, lambda: self.local.request, self.notified.append)

    def ask(self, asked: Mapping[str, Any] = ASKED, token: Token = ASKING, wait: float = 0) -> str:
        """Require an approval in a new request."""
        self.local.request = request = Continuation(resumes=False)
        try:
            return self.approvals.require(token, asked, wait)
        except Suspended as suspended:
            request.wait(suspended)
        # The news, or the end of its time: either way it does not wait again.
        request.began = float("-inf")
        return self.approvals.require(token, asked, wait)

    def pending(self, asked: Mapping[str, Any] = ASKED, token: Token = ASKING) -> str:
        """Send a request that needs an approval, and return the pending approval's id."""
        with pytest.raises(ApprovalRequired) as error:
            self.ask(asked, token)
        id: str = error.value.details["approval"]
        return id

    def decide(self, id: str, verdict: Verdict, decider: Token | None = None, seconds: float = 60) -> None:
        self.approvals.decide(id, verdict, decider, seconds)


@pytest.fixture
def desk(vault: Vault) -> Iterator[Desk]:
    made = Desk(vault)
    yield made
    made.approvals.waiters.close()


def test_a_repeated_request_has_one_pending_approval_shown_whole(desk: Desk) -> None:
    id = desk.pending()
    assert desk.pending() == id
    [shown] = desk.approvals.query(["pending"])
    assert (shown.id, shown.state, shown.token, shown.token_name) == (id, "pending", "asking", "name of asking")
    assert shown.asked == ASKED
    assert timedelta(minutes=9) < shown.expires - now() <= timedelta(minutes=10)
    [told] = desk.notified
    assert told["approval"] == id
    assert told["asked"] == ASKED
    with pytest.raises(ApprovalRequired) as error:
        desk.ask()
    assert error.value.details == {"approval": id, "expires": time_to_json(shown.expires)}


OTHERS: list[Mapping[str, Any]] = [
    {**ASKED, "argv": ["systemctl", "restart", "unit"]},
    {**ASKED, "argv": ["systemctl", "restart ünit"]},
    {**ASKED, "argv": ["systemctl", "restart", "ünit", ""]},
    {**ASKED, "argv": None, "command": "systemctl restart ünit"},
    {**ASKED, "env": {}},
    {**ASKED, "env": {"A": "b", "C": ""}},
    {**ASKED, "env": {"A": "c"}},
    {**ASKED, "connections": ["d"]},
    {**ASKED, "connections": ["c", "d"]},
    {**ASKED, "cwd": "/"},
    {**ASKED, "stdin": ""},
    {**ASKED, "session": "x"},
    {**ASKED, "action": "job.start"},
    {},
]
"""Requests that differ from :data:`ASKED` in one member."""


def test_an_approval_covers_only_the_same_request(desk: Desk) -> None:
    id = desk.pending()
    desk.decide(id, "grant")
    assert desk.ask() == id
    pending = [desk.pending(other) for other in OTHERS]
    assert id not in pending
    assert len(set(pending)) == len(OTHERS), "what differs in one thing is taken for the same"


def test_an_approval_is_only_for_the_token_that_asked(desk: Desk) -> None:
    id = desk.pending()
    desk.decide(id, "grant")
    for token in (Token("other"), Token("below", ASKING)):
        assert desk.pending(token=token) != id


def test_an_approval_for_once_is_used_up_by_one_request(desk: Desk) -> None:
    id = desk.pending()
    desk.decide(id, "once")
    assert desk.ask() == id
    assert desk.approvals.query(["used"])[0].asked == {}
    assert desk.pending() != id
    for verdict in ("once", "grant", "deny"):
        with pytest.raises(UnknownApproval):
            desk.decide(id, verdict)


def test_a_request_gives_its_approval_back_unless_it_has_begun(desk: Desk) -> None:
    desk.decide(id := desk.pending(), "once")
    before = desk.approvals.get(id)
    desk.ask()
    desk.approvals.give_back()
    assert desk.approvals.get(id) == before
    assert desk.ask() == id
    desk.approvals.begun()
    desk.approvals.give_back()
    assert desk.pending() != id


def test_an_approval_given_back_is_replaced_by_one_requested_meanwhile(desk: Desk) -> None:
    desk.decide(id := desk.pending(), "once")
    desk.ask()
    first = desk.local.request
    other = desk.pending()
    desk.local.request = first
    desk.approvals.give_back()
    assert desk.pending() == other != id


def test_one_request_that_requires_its_approval_twice_uses_up_one(desk: Desk) -> None:
    desk.decide(id := desk.pending(), "once")
    assert desk.ask() == id
    assert desk.approvals.require(ASKING, ASKED) == id
    assert desk.pending() != id


def test_one_of_many_simultaneous_requests_uses_up_an_approval_for_once(desk: Desk) -> None:
    desk.decide(id := desk.pending(), "once")

    def ask(_: int) -> str | None:
        with contextlib.suppress(ApprovalRequired):
            return desk.ask()
        return None

    with ThreadPoolExecutor(8) as pool:
        assert sorted(filter(None, pool.map(ask, range(16)))) == [id]


def test_a_denial_holds_until_somebody_decides_otherwise(desk: Desk) -> None:
    id = desk.pending()
    desk.decide(id, "deny")
    for _ in range(2):
        with pytest.raises(ApprovalDenied) as error:
            desk.ask()
        assert error.value.details == {"approval": id}
    assert len(desk.notified) == 1
    desk.decide(id, "once")
    assert desk.ask() == id


def test_a_grant_ends_with_its_time_and_by_a_denial(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    id = desk.pending()
    desk.decide(id, "grant", seconds=3600)
    later = now() + timedelta(seconds=3590)
    monkeypatch.setattr(Documents, "now", lambda _: later)
    assert desk.ask() == id
    beyond = now() + timedelta(seconds=3610)
    monkeypatch.setattr(Documents, "now", lambda _: beyond)
    assert desk.pending() != id
    monkeypatch.undo()
    desk.decide(id := desk.pending({"other": 1}), "grant", seconds=3600)
    desk.decide(id, "deny")
    with pytest.raises(ApprovalDenied):
        desk.ask({"other": 1})


def test_a_clock_that_is_set_back_makes_no_approval_last_longer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Clock()
    monkeypatch.setattr("connmgr.vault.documents.boot_time", running)
    id = desk.pending()
    desk.decide(id, "grant", seconds=600)
    assert desk.ask() == id
    back = now() - timedelta(days=1)
    monkeypatch.setattr(Documents, "now", lambda _: back)
    running.now += 500
    assert desk.ask() == id
    running.now += 101
    assert desk.pending() != id
    with pytest.raises(UnknownApproval):
        desk.decide(id, "grant", seconds=600)


def test_an_undecided_approval_expires_after_ten_minutes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    id = desk.pending()
    late = now() + timedelta(minutes=11)
    monkeypatch.setattr(Documents, "now", lambda _: late)
    assert desk.approvals.query() == []
    with pytest.raises(UnknownApproval):
        desk.decide(id, "once")
    assert desk.pending() != id


def test_a_token_decides_neither_for_itself_nor_for_its_parents(desk: Desk) -> None:
    id = desk.pending()
    child = Token("child", ASKING)
    for decider in (ASKING, child, Token("grandchild", child)):
        with pytest.raises(PolicyDenied):
            desk.decide(id, "once", decider)
    assert desk.pending() == id
    above = Token("above")
    below = Token("below", above)
    desk.decide(asked := desk.pending(token=below), "once", above)
    assert desk.ask(token=below) == asked
    desk.decide(id, "grant", Token("other"))
    assert desk.approvals.get(id).decided_by == "other"
    with pytest.raises(PolicyDenied):
        desk.decide(id, "grant", ASKING, 86400)


def test_pending_approvals_of_a_token_are_limited(desk: Desk) -> None:
    first = desk.pending({"number": 0})
    for number in range(1, MAX_PENDING):
        desk.pending({"number": number})
    with pytest.raises(QuotaExceeded):
        desk.ask({"number": MAX_PENDING})
    desk.pending({"number": 0})
    desk.pending({"number": MAX_PENDING}, Token("other"))
    for kin in (Token("child", ASKING), Token("grandchild", Token("child", ASKING))):
        with pytest.raises(QuotaExceeded):
            desk.ask({"number": MAX_PENDING}, kin)
    desk.decide(first, "deny")
    desk.pending({"number": MAX_PENDING})


def test_a_request_too_long_to_be_shown_gets_no_approval(desk: Desk) -> None:
    with pytest.raises(PolicyDenied, match="too long"):
        desk.ask({"stdin": "x" * 300_000})
    assert desk.approvals.query() == []


def test_a_plugin_that_fails_changes_nothing(vault: Vault) -> None:
    def fail(_: Mapping[str, Any]) -> None:
        raise OSError("the pager is away")

    desk = Desk(vault)
    approvals = Approvals(vault.approvals, KEY, Continuation, fail)
    with pytest.raises(ApprovalRequired):
        approvals.require(ASKING, ASKED)
    desk.decide(desk.pending(), "once")
    assert approvals.require(ASKING, ASKED)


@pytest.mark.parametrize("verdict", ["once", "grant", "deny"])
def test_a_waiting_request_continues_after_the_decision(desk: Desk, verdict: Verdict) -> None:
    with ThreadPoolExecutor(1) as pool:
        id = desk.pending()
        waiting = pool.submit(desk.ask, wait=30)
        desk.decide(id, verdict)
        if verdict == "deny":
            with pytest.raises(ApprovalDenied):
                waiting.result(20)
        else:
            assert waiting.result(20) == id


def test_a_wait_ends_with_the_daemon_and_at_its_deadline(desk: Desk) -> None:
    with pytest.raises(ApprovalRequired):
        desk.ask(wait=0.01)
    with ThreadPoolExecutor(1) as pool:
        subscribed = threading.Event()
        subscribe = desk.approvals.waiters.subscribe

        def note(id: str, told: Callable[[], None]) -> Callable[[], None]:
            cancel = subscribe(id, told)
            subscribed.set()
            return cancel

        desk.approvals.waiters.subscribe = note  # type: ignore[method-assign]
        waiting = pool.submit(desk.ask, wait=30)
        assert subscribed.wait(20)
        desk.approvals.waiters.close()
        with pytest.raises(ApprovalRequired):
            waiting.result(20)


@pytest.mark.needs("postgres")
def test_two_daemons_of_one_vault_share_approvals(postgres: Any, open_vault: Callable[..., Vault]) -> None:
    dsn = postgres.dsn(postgres.create())
    here, there = Desk(open_vault(dsn)), Desk(open_vault(dsn))
    id = here.pending()
    assert there.pending() == id
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(here.ask, wait=30)
        there.decide(id, "once")
        assert waiting.result(20) == id
    assert here.pending() == there.pending() != id
    for desk in (here, there):
        desk.approvals.waiters.close()
