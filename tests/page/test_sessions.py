"""How a page gets a session of its opener's rights, and how that ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from connmgr.api.auth import Tickets, Tokens
from connmgr.contract.web import LOGIN_SECONDS
from connmgr.errors import ConnmgrError, InvalidToken
from tests.api.wire import LOCAL, bearer, client_of, send
from tests.clock import Clock
from tests.conftest import Recorded, StartDaemon
from tests.daemon import Daemon
from tests.page.wire import login, ticket_of
from tests.rights.wire import create
from tests.streams.wire import NotUpgradedError, Stream

ALL = {"connectionFilter": "*", "categoryFilter": "*", "typeFilter": "*"}


def test_a_ticket_logs_in_once(daemon: Daemon) -> None:
    ticket = ticket_of(daemon)
    first = send(daemon.url, "/web/login", {"ticket": ticket})
    assert first.json["idle"] == 3600
    authorization = {"Authorization": f"Bearer {first.json['sessionToken']}"}
    assert send(daemon.url, "/daemon/status", {}, authorization).status == 200
    second = send(daemon.url, "/web/login", {"ticket": ticket})
    assert (second.status, second.code) == (403, "invalid_token")


def test_a_ticket_is_valid_for_a_minute(clock: Clock) -> None:
    tokens, tickets = Tokens(ttl=0), Tickets(clock)
    caller = tokens.find(f"Bearer {tokens.issue('owner')}")
    one, other = (tickets.issue("web.login", caller, LOGIN_SECONDS) for _ in range(2))
    clock.now += 59
    assert tickets.redeem(one, "web.login") is caller
    clock.now += 1
    with pytest.raises(InvalidToken):
        tickets.redeem(other, "web.login")


def test_the_ticket_of_a_terminal_does_not_log_in_nor_the_other_way_round(daemon: Daemon) -> None:
    with client_of(daemon) as client:
        terminal = client.post("/terminal/open", connection=LOCAL, argv=["cat"])["terminal"]
        ticket = client.post("/terminal/ticket", terminal=terminal)["ticket"]
        assert send(daemon.url, "/web/login", {"ticket": ticket}).code == "invalid_token"
        client.post("/terminal/close", terminal=terminal)
    headers = {"Authorization": f"Bearer {ticket_of(daemon)}"}
    assert send(daemon.url, "/daemon/version", {}, headers).code == "invalid_token"


def test_a_page_opened_with_a_token_has_its_rights_and_ends_with_it(own_daemon: Daemon) -> None:
    holder = create(own_daemon, "connection.read")
    page = login(own_daemon, {"Authorization": f"Bearer {holder.secret}"})
    assert page.send("/connection/query", **ALL).status == 200
    assert page.send("/daemon/status").code == "scope_denied"
    assert page.send("/token/info").json["scopes"] == ["connection.read"]
    page.send("/web/ticket")
    with client_of(own_daemon) as client:
        client.token.revoke(page.send("/token/info").json["id"])
    assert page.send("/connection/query", **ALL).code == "token_revoked"


def test_a_ticket_of_a_token_that_was_revoked_meanwhile_does_not_log_in(own_daemon: Daemon) -> None:
    holder = create(own_daemon, "connection.read")
    headers = {"Authorization": f"Bearer {holder.secret}"}
    ticket = ticket_of(own_daemon, headers)
    with client_of(own_daemon) as client:
        client.token.revoke(send(own_daemon.url, "/token/info", {}, headers).json["id"])
    assert send(own_daemon.url, "/web/login", {"ticket": ticket}).code == "token_revoked"


def test_a_page_does_not_share_the_secrets_that_its_opener_unlocked(own_daemon: Daemon) -> None:
    passphrase = "alice's long passphrase"
    with client_of(own_daemon) as client:
        client.post("/vault/user/add", user="alice", passphrase=passphrase)
        client.post("/vault/unlock", user="alice", passphrase=passphrase)
        opener = {"Authorization": f"Bearer {client.session_token}"}
        page = login(own_daemon, opener)
    status = page.send("/vault/status").json
    assert (status["hasUsers"], status["user"]) == (True, None)


def test_logging_out_ends_the_session_its_streams_and_nothing_else(own_daemon: Daemon) -> None:
    page, other = login(own_daemon), login(own_daemon)
    terminal = page.send("/terminal/open", connection=LOCAL, argv=["cat"]).json["terminal"]
    streams = []
    for each in (page, other):
        ticket = each.send("/terminal/ticket", terminal=terminal).json["ticket"]
        offered = ["connmgr.v1", f"connmgr.ticket.{ticket}"]
        streams.append(Stream(own_daemon.url, f"/terminal/attach/{terminal}", None, subprotocols=offered))
    assert page.send("/web/logout").status == 200
    ended = streams[0].finish()
    assert (ended.error["code"], ended.status) == ("invalid_token", None)
    assert page.send("/daemon/version").code == "invalid_token"
    assert other.send("/terminal/query").json["terminals"][0]["state"] == "running"
    other.send("/terminal/close", terminal=terminal)
    assert streams[1].finish().error.get("code") != "invalid_token"


def test_a_ticket_of_a_session_that_was_logged_out_opens_nothing(daemon: Daemon) -> None:
    page = login(daemon)
    ticket = page.send("/web/ticket").json["ticket"]
    page.send("/web/logout")
    assert send(daemon.url, "/web/login", {"ticket": ticket}).code == "invalid_token"


def test_an_idle_page_is_logged_out_and_its_streams_end(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--web-ttl", "1")
    page = login(daemon)
    terminal = page.send("/terminal/open", connection=LOCAL, argv=["cat"]).json["terminal"]
    ticket = page.send("/terminal/ticket", terminal=terminal).json["ticket"]
    offered = ["connmgr.v1", f"connmgr.ticket.{ticket}"]
    stream = Stream(daemon.url, f"/terminal/attach/{terminal}", None, subprotocols=offered)
    # The daemon ends it by itself: nothing is sent meanwhile.
    ended = stream.finish()
    assert (ended.error["code"], "idle" in ended.error["message"]) == ("invalid_token", True)
    assert page.send("/daemon/version").code == "invalid_token"
    with client_of(daemon) as client:
        assert client.post("/terminal/query")["terminals"][0]["state"] == "running"


def test_a_page_is_idle_by_its_own_limit_and_whoever_types_is_not_idle(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connmgr.api.auth.boot_time", clock)
    left: list[tuple[str, str]] = []
    tokens = Tokens(ttl=1000, page_ttl=60, left=lambda page, why: left.append((page.name, why.code)))
    program, used, idle = (
        tokens.issue("program"),
        tokens.issue("used", is_page=True),
        tokens.issue("idle", is_page=True),
    )
    typing = tokens.find(f"Bearer {used}")
    for _ in range(3):
        clock.now += 50
        typing.note_use()
    assert tokens.find(f"Bearer {used}") is typing
    with pytest.raises(ConnmgrError):
        tokens.find(f"Bearer {idle}")
    assert left == [("idle", "invalid_token")]
    assert tokens.find(f"Bearer {program}")
    clock.now += 1001
    with pytest.raises(InvalidToken):
        tokens.find(f"Bearer {program}")
    assert left == [("idle", "invalid_token")], "only what a page has left is ended with it"


def test_neither_the_ticket_nor_the_token_reaches_a_log(own_daemon: Daemon, recorded: Recorded) -> None:
    ticket = ticket_of(own_daemon)
    token = send(own_daemon.url, "/web/login", {"ticket": ticket}).json["sessionToken"]
    written = own_daemon.stderr() + "".join(path.read_text() for path in own_daemon.data_dir.glob("**/*.jsonl"))
    assert "/web/login" in written
    for secret in (ticket, token):
        assert secret not in written


def test_a_token_that_is_sent_itself_stays_valid_after_logging_out(own_daemon: Daemon) -> None:
    holder = create(own_daemon, "connection.read")
    headers = {"Authorization": f"Bearer {holder.secret}"}
    assert send(own_daemon.url, "/web/logout", {}, headers).status == 200
    assert send(own_daemon.url, "/connection/query", ALL, headers).status == 200


def test_a_browser_is_refused_while_authentication_is_off(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--no-auth")
    headers = {"Sec-Fetch-Site": "same-origin"}
    assert send(daemon.url, "/", None, headers, "GET").status == 200
    assert send(daemon.url, "/web/login", {"ticket": "x"}, headers).code == "forbidden_origin"


def test_a_foreign_page_gets_nothing(daemon: Daemon) -> None:
    for headers in (
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        for path, method in (("/", "GET"), ("/page/main.js", "GET"), ("/web/login", "POST"), ("/web/ticket", "POST")):
            answer = send(daemon.url, path, None, {**bearer(daemon), **headers}, method)
            assert (answer.status, answer.code) == (403, "forbidden_origin"), (path, headers)


def test_a_ticket_for_the_own_user_is_worthless_to_others(own_daemon: Daemon) -> None:
    tickets = [
        send(own_daemon.url, "/web/ticket", {"sameUser": True}, bearer(own_daemon)).json["ticket"] for _ in range(2)
    ]
    program = """
import os, sys, urllib.request, urllib.error
os.setgid(65534)
os.setuid(65534)
body = sys.stdin.buffer.read()
request = urllib.request.Request(sys.argv[1] + "/web/login", body, {"Content-Type": "application/json"})
try:
    print(urllib.request.urlopen(request, timeout=30).status)
except urllib.error.HTTPError as error:
    print(error.status)
"""
    stolen, own = tickets
    if os.geteuid() == 0:
        argv = [sys.executable, "-I", "-c", program, own_daemon.url]
        body = json.dumps({"ticket": stolen})
        done = subprocess.run(argv, input=body, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == "403"
    assert send(own_daemon.url, "/web/login", {"ticket": own}).status == 200


def test_a_ticket_for_a_terminal_ends_with_the_page_that_asked_for_it(daemon: Daemon) -> None:
    page = login(daemon)
    terminal = page.send("/terminal/open", connection=LOCAL, argv=["cat"]).json["terminal"]
    ticket = page.send("/terminal/ticket", terminal=terminal).json["ticket"]
    page.send("/web/logout")
    offered = ["connmgr.v1", f"connmgr.ticket.{ticket}"]
    with pytest.raises(NotUpgradedError, match="logged out"):
        Stream(daemon.url, f"/terminal/attach/{terminal}", None, subprotocols=offered)
    with client_of(daemon) as client:
        client.post("/terminal/close", terminal=terminal)
