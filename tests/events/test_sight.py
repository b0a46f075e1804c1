"""Who hears of what: by the scopes of a kind and the sight of a connection, and until a token is revoked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from connmgr.api.listeners import ACTIONS
from connmgr.client import Client
from connmgr.contract.event import KINDS, RUN
from connmgr.contract.token import SCOPES
from connmgr.rights.scopes import missing
from tests.api.wire import LOCAL, ROOT_CATEGORY, add, token_of
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.events.listening import Line, Listening, ListeningSocket
from tests.rights.wire import Holder, create


def listening(holder: Holder, **request: object) -> Listening:
    return Listening(holder.url, holder.secret, **request)


def told_before(listening: Listening, sentinel: Callable[[], str]) -> list[Line]:
    """Return the lines before that of the connection that ``sentinel`` adds, which the listener sees."""
    return listening.lines_until("connection", "added", connection=sentinel())[:-1]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != RUN])
def test_a_kind_needs_the_scopes_of_its_query(watched: Daemon, kind: str) -> None:
    lacking = create(watched, *(one for one in SCOPES if missing(ACTIONS[kind], set(SCOPES) - {one}) is None))
    needed = [one for one in SCOPES if missing(ACTIONS[kind], [one]) is None]
    assert needed
    for scope in needed:
        with listening(create(watched, scope), kinds=[kind]):
            pass
    without = create(watched, *(one for one in SCOPES if one not in needed))
    assert without.refused("/event/stream", kinds=[kind]) == "scope_denied"
    assert lacking.ok("/daemon/version")


def test_without_kinds_a_token_hears_of_those_that_it_may_query(watched: Daemon, client: Client) -> None:
    client.shell.start(LOCAL)
    with listening(create(watched, "connection.read", "job", "shell.any")) as heard:
        create(watched, "job")
        client.post("/shell/stop", connection=LOCAL)
        client.shell.start(LOCAL)
        job = client.jobs.start(LOCAL, "exit 0")
        add(client, "unheard", type="ssh", host="unheard.example")
        kinds = {line["kind"] for line in heard.lines_until("connection", "added")}
    # A shell may be asked about with the scope `job`. Whether the link was open before is up to other tests.
    assert kinds - {"link"} == {"shell", "job", "connection"}
    job.remove(force=True)


def test_a_token_hears_of_connections_in_its_sight_alone(watched: Daemon, client: Client) -> None:
    seen = create(watched, "connection.read", "token.create", "approval.decide", "job", connections=["seen*"])
    with listening(seen) as heard:
        hidden = add(client, "hidden", type="ssh", host="hidden.example")
        client.post("/connection/update", connection=hidden, name="hidden2")
        client.shell.start(LOCAL)
        job = client.jobs.start(LOCAL, "exit 0")
        asks = create(watched, "shell.any", rules=[{"effect": "ask", "text": "."}])
        asks.send("/shell/exec", connection=LOCAL, command="true", start=True)
        client.connection.remove([hidden])
        category = client.post("/category/add", name="secret", parent=ROOT_CATEGORY)["category"]
        client.post("/category/remove", categories=[category], removeChildrenCategories=False, removeContents=False)
        assert told_before(heard, lambda: add(client, "seen", type="ssh", host="seen.example")) == []
        below = seen.create("connection.read")
        assert heard.until("token", "created")["id"] == below.id
    job.remove(force=True)
    client.connection.remove(client.connection.query("seen*"))


def test_a_change_of_sight_adds_and_removes(watched: Daemon, client: Client) -> None:
    id = add(client, "outside", type="ssh", host="moves.example")
    with listening(create(watched, "connection.read", connections=["inside*"])) as heard:
        client.post("/connection/update", connection=id, name="inside")
        assert heard.line().items() >= {"change": "added", "connection": id, "name": "inside"}.items()
        client.post("/connection/update", connection=id, name="inside2")
        assert heard.line().items() >= {"change": "changed", "name": "inside2"}.items()
        client.post("/connection/update", connection=id, name="outside")
        line = heard.line()
        assert (line["change"], line["connection"], line.get("name")) == ("removed", id, None)
        client.post("/connection/update", connection=id, name="inside")
        heard.until("connection", "added")
        client.connection.remove([id])
        assert heard.line()["change"] == "removed"


def test_a_bound_token_hears_of_its_own_jobs(watched: Daemon, client: Client, tmp_path: Path) -> None:
    client.shell.start(LOCAL)
    holder = create(watched, "job", "shell.argv", "connection.read")
    with listening(holder, kinds=["job"]) as heard:
        others = client.jobs.start(LOCAL, "exit 0")
        own = holder.ok("/job/start", connection=LOCAL, argv=["true"])["job"]
        assert heard.line().items() >= {"change": "started", "id": own, "token": holder.id}.items()
        assert heard.until("job", "exited")["id"] == own
    others.remove(force=True)


def test_the_stream_of_a_revoked_token_ends_with_a_line(watched: Daemon, client: Client) -> None:
    holder = create(watched, "connection.read")
    with listening(holder) as heard, ListeningSocket(watched.url, holder.secret) as socket:
        assert socket.line()["change"] == "begun"
        client.token.revoke(holder.id)
        lines = [*heard.rest()[-1:], *socket.rest()[-1:]]
        assert [(line["change"], line["code"]) for line in lines] == [("ended", "token_revoked")] * 2
        assert socket.code == 1000


def test_a_loss_of_rights_counts_in_mid_stream(watched: Daemon, client: Client) -> None:
    above = create(watched, "connection.read", "token.create")
    below = above.create("connection.read")
    with listening(below) as heard:
        client.token.revoke(above.id)
        assert heard.rest()[-1]["code"] == "token_revoked"


def test_a_ticket_opens_the_stream_once(watched: Daemon, client: Client) -> None:
    from tests.streams.wire import NotUpgradedError

    ticket = client.post("/event/ticket")["ticket"]
    with ListeningSocket(watched.url, None, ticket=ticket, kinds=["connection"]) as socket:
        assert socket.stream.subprotocol == "connmgr.v1"
        assert socket.line()["change"] == "begun"
        id = add(client, "ticketed", type="ssh", host="ticketed.example")
        assert socket.line()["connection"] == id
    with pytest.raises(NotUpgradedError) as refused:
        ListeningSocket(watched.url, None, ticket=ticket)
    assert refused.value.answer.code == "invalid_token"
    terminal = client.post("/terminal/open", connection=LOCAL, command="read line")["terminal"]
    other = client.post("/terminal/ticket", terminal=terminal)["ticket"]
    with pytest.raises(NotUpgradedError):
        ListeningSocket(watched.url, None, ticket=other)
    client.post("/terminal/close", terminal=terminal)


def test_a_token_has_a_share_of_the_streams(watched: Daemon) -> None:
    holder = create(watched, "connection.read")
    many = [listening(holder) for _ in range(64)]
    try:
        assert holder.refused("/event/stream") == "stream_limit"
        with Listening(watched.url, token_of(watched)):
            pass
    finally:
        for one in many:
            one.close()


def test_a_token_hears_of_the_runs_of_its_own_and_below(watched: Daemon, client: Client) -> None:
    holder = create(watched, "shell.any", "token.create", "connection.read")
    with listening(holder, kinds=["run", "connection"]) as heard:
        client.post("/run/start", connections=[LOCAL], command="true")
        below = holder.create("shell.any")
        own = below.ok("/run/start", connections=[LOCAL], command="true", name="own")["run"]
        told = heard.lines_until("run", "done", id=own)
        assert {line["id"] for line in told} == {own}
        assert told[0].items() >= {"change": "pending", "name": "own", "token": below.id}.items()
        eventually(lambda: client.post("/run/info", run=own)["ended"], "the run goes on")
        client.post("/run/remove", run=own)
        # Its last change may be told once more before.
        assert {line["id"] for line in heard.lines_until("run", "removed", id=own)} == {own}
