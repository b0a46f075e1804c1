"""What a page may do only after its user has shown again who they are, where the owner says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connmgr.api.app import endpoints
from connmgr.api.step_up import LISTS, needs_step_up
from tests.api.wire import LOCAL, bearer, client_of, send
from tests.clock import Clock
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.page.wire import PageSession, login
from tests.rights.wire import create

if TYPE_CHECKING:
    from tests.page.browser import Visitor

PASSPHRASE = "alice's long passphrase"
ITS_OWN = {
    *("docs.read", "handshake", "page.read", "vault.lock", "vault.unlock", "vault.user.passphrase"),
    *("web.confirm", "web.login", "web.logout", "web.ticket"),
}
"""What a page does without a step-up besides reading: its own sessions, and what takes a passphrase anyway."""


def guarded(page: PageSession) -> list[str]:
    """Return the codes of requests that need a step-up."""
    requests: list[tuple[str, dict[str, object]]] = [
        ("/terminal/open", {"connection": LOCAL, "argv": ["true"]}),
        ("/shell/exec", {"connection": LOCAL, "command": "true"}),
        ("/fs/read", {"connection": LOCAL, "path": "/etc/hostname"}),
        ("/secret/decrypt", {"secret": "x"}),
        ("/token/create", {"name": "x", "scopes": []}),
        ("/approval/decide", {"approval": LOCAL, "decision": "once"}),
        ("/connection/add", {"name": "x", "data": {"type": "ssh", "host": "nowhere.example"}}),
    ]
    answers = [page.send(path, **fields) for path, fields in requests]
    return ["ok" if answer.status == 200 else answer.code for answer in answers]


@pytest.fixture
def locked(start_daemon: StartDaemon) -> Daemon:
    """A daemon that asks pages for a passphrase, with one vault user."""
    daemon = start_daemon("--web-step-up", "passphrase")
    with client_of(daemon) as client:
        client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
    return daemon


def test_by_default_a_page_needs_none(daemon: Daemon) -> None:
    page = login(daemon)
    assert "step_up_required" not in guarded(page)
    assert page.send("/web/confirm").json == {"valid": 900}


def test_a_page_looks_without_and_does_the_rest_after_the_passphrase(locked: Daemon) -> None:
    page, other = login(locked), login(locked)
    assert set(guarded(page)) == {"step_up_required"}
    refused = page.send("/terminal/open", connection=LOCAL, argv=["true"])
    assert (refused.status, refused.json["stepUp"]) == (403, "passphrase")
    for path in ("/terminal/query", "/connection/types", "/vault/status", "/token/query", "/daemon/status"):
        assert page.send(path).status == 200, path
    assert page.send("/web/confirm").code == "invalid_request"
    assert page.send("/web/confirm", user="alice", passphrase="wrong").code == "unlock_failed"
    assert set(guarded(page)) == {"step_up_required"}
    assert page.send("/web/confirm", user="alice", passphrase=PASSPHRASE).json == {"valid": 900}
    assert "step_up_required" not in guarded(page)
    assert page.send("/terminal/open", connection=LOCAL, argv=["true"]).status == 200
    assert set(guarded(other)) == {"step_up_required"}, "another session of the same owner has shown nothing"


@pytest.mark.needs("chromium", "libatomic")
def test_a_browser_asks_and_goes_on(locked: Daemon, visitor: Visitor) -> None:
    page = visitor.opened(locked, "#/hub/default/local%20machine")
    details = page.get_by_role("complementary", name="local machine")
    details.get_by_role("button", name="Connect", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Show again that it is you").wait_for()
    dialog.get_by_label("User").fill("alice")
    dialog.get_by_label("Passphrase").fill("wrong")
    dialog.get_by_role("button", name="Unlock").click()
    dialog.get_by_role("alert").wait_for()
    dialog.get_by_label("Passphrase").fill(PASSPHRASE)
    dialog.get_by_role("button", name="Unlock").click()
    page.get_by_role("status").get_by_text("local machine answers").wait_for()
    # For a while it is not asked again.
    details.get_by_role("button", name="Open a terminal").click()
    page.locator(".tabs .here .dot.attached").wait_for(state="attached")
    visitor.forgive("403")
    visitor.forgive("400")


def test_unlocking_alone_is_no_step_up(locked: Daemon) -> None:
    page = login(locked)
    assert page.send("/vault/unlock", user="alice", passphrase=PASSPHRASE).status == 200
    assert set(guarded(page)) == {"step_up_required"}


def test_programs_are_not_concerned(locked: Daemon) -> None:
    with client_of(locked) as client:
        client.shell.start(LOCAL)
    answer = send(locked.url, "/shell/exec", {"connection": LOCAL, "command": "true"}, bearer(locked))
    assert answer.status == 200
    holder = create(locked, "shell.any")
    headers = {"Authorization": f"Bearer {holder.secret}"}
    assert send(locked.url, "/shell/exec", {"connection": LOCAL, "command": "true"}, headers).status == 200
    page = login(locked, headers)
    assert page.send("/shell/exec", connection=LOCAL, command="true").code == "step_up_required"


def test_a_step_up_lasts_for_a_quarter_of_an_hour(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    from connmgr.api.auth import Tokens
    from connmgr.api.step_up import require_step_up
    from connmgr.errors import StepUpRequired
    from connmgr.rights.actions import Action

    monkeypatch.setattr("connmgr.api.step_up.boot_time", clock)
    tokens = Tokens(ttl=0)
    page = tokens.find(f"Bearer {tokens.issue('page', is_page=True)}")
    action: Action[object] = Action("terminal.open", runs=True)  # type: ignore[type-var]
    page.stepped_up = clock.now
    clock.now += 900
    require_step_up(page, action, "passphrase")
    clock.now += 1
    with pytest.raises(StepUpRequired):
        require_step_up(page, action, "passphrase")
    require_step_up(page, action, "none")


def test_a_page_is_approved_by_somebody_else(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--web-step-up", "approval")
    page = login(daemon)
    assert page.send("/terminal/open", connection=LOCAL, argv=["true"]).json["stepUp"] == "approval"
    asked = page.send("/web/confirm")
    assert asked.code == "approval_required"
    approval = asked.json["approval"]
    assert page.send("/approval/decide", approval=approval, decision="once").code == "step_up_required"
    with client_of(daemon) as client:
        (pending,) = client.post("/approval/query", states=["pending"])["approvals"]
        assert (pending["approval"], pending["asked"]["action"]) == (approval, "web.confirm")
        assert pending["tokenName"].startswith("page ")
        client.post("/approval/decide", approval=approval, decision="once")
    assert page.send("/web/confirm").json == {"valid": 900}
    assert "step_up_required" not in guarded(page)
    assert page.send("/web/confirm").code == "approval_required", "an approval counts once"


def test_a_page_of_a_token_is_not_approved_by_that_token(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--web-step-up", "approval")
    holder = create(daemon, "shell.any", "approval.decide")
    headers = {"Authorization": f"Bearer {holder.secret}"}
    page = login(daemon, headers)
    approval = page.send("/web/confirm").json["approval"]
    assert send(daemon.url, "/approval/decide", {"approval": approval, "decision": "once"}, headers).status != 200
    with client_of(daemon) as client:
        client.post("/approval/decide", approval=approval, decision="deny")
    assert page.send("/web/confirm").code == "approval_denied"
    assert page.send("/shell/exec", connection=LOCAL, command="true").code == "step_up_required"


def test_what_runs_or_shows_content_needs_it_and_what_lists_does_not() -> None:
    actions = {endpoint.action.name: endpoint for endpoint in endpoints()}
    assert set(actions) >= LISTS
    for name, endpoint in actions.items():
        if name in LISTS:
            assert endpoint.reads, name
        elif endpoint.action.runs or name.split(".")[0] in {"fs", "secret", "token"}:
            assert needs_step_up(endpoint.action) or name in {"token.info", "token.check"}, name
    free = {name for name, endpoint in actions.items() if not needs_step_up(endpoint.action)}
    assert {name for name in free if not actions[name].reads} == ITS_OWN
    assert {"web.login", "web.logout", "web.confirm", "vault.unlock", "vault.lock", "event.stream"} <= free
