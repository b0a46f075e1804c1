"""The Python client's iteration of events, over restarts and ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from connmgr.client import Client, ClientError, Event
from connmgr.events import Events
from tests.api.wire import add, client_of
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.rights.wire import create


def begun(client: Client, kind: str) -> tuple[Iterator[Event], Event]:
    """Return an iteration that listens, and its first event."""
    events = client.events([kind])
    first = next(events)
    assert (first.kind, first.change) == ("stream", "begun")
    return events, first


def test_events_are_iterated_and_read_on(daemon: Daemon) -> None:
    with client_of(daemon) as listener, client_of(daemon) as client:
        events, first = begun(listener, "connection")
        id = add(client, "iterated", type="ssh", host="iterated.example")
        event = next(events)
        assert (event.kind, event.change, event.connection, event.name) == ("connection", "added", id, "iterated")
        assert event.number > first.number
        events.close()  # type: ignore[attr-defined]
        client.connection.remove([id])
        later = listener.events(["connection"], after=event.number)
        assert [next(later).change, next(later).change] == ["begun", "removed"]
        later.close()  # type: ignore[attr-defined]
        # The connection serves other requests again.
        assert listener.connection.query("local machine")


def test_a_stream_begins_a_while_ago(daemon: Daemon) -> None:
    with client_of(daemon) as listener, client_of(daemon) as client:
        id = add(client, "before", type="ssh", host="before.example")
        events = listener.events(["connection"], ago=60)
        told = next(one for one in events if one.connection == id)
        assert (told.kind, told.change) == ("connection", "added")
        events.close()  # type: ignore[attr-defined]
        with pytest.raises(ClientError) as refused:
            next(listener.events(["connection"], 1, ago=1))
        assert refused.value.code == "invalid_request"
    kept = Events(3)
    first = kept.last
    assert kept.number_at(0) == first
    for name in "abcde":
        kept.publish("link", name)
    happened = kept.after(first + 2)
    assert happened is not None
    assert [one.change for one in happened] == ["c", "d", "e"]
    assert (kept.number_at(0), kept.number_at(happened[-1].time + 1)) == (first + 2, first + 5)
    assert kept.number_at(happened[1].time) == next(one.number for one in happened if one.time >= happened[1].time) - 1


def test_a_restart_is_survived_and_told(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with client_of(daemon) as listener:
        events, first = begun(listener, "connection")
        daemon.stop()
        again = start_daemon("--port", daemon.url.rpartition(":")[2], home=daemon.home)
        missed = next(events)
        assert (missed.kind, missed.change) == ("stream", "missed")
        assert missed.number > first.number
        with client_of(again) as client:
            id = add(client, "after", type="ssh", host="after.example")
        assert next(events).connection == id
        events.close()  # type: ignore[attr-defined]


def test_a_revoked_token_ends_the_iteration(daemon: Daemon) -> None:
    holder = create(daemon, "connection.read")
    with closing(Client(daemon.url, token=holder.secret)) as listener:
        events, _ = begun(listener, "connection")
        daemon.client.token.revoke(holder.id)
        with pytest.raises(ClientError) as ended:
            next(events)
        assert ended.value.code == "token_revoked"


def test_no_daemon_is_an_error_after_a_while(own_daemon: Daemon) -> None:
    with client_of(own_daemon) as listener:
        events = listener.events(retry_timeout=0.0)
        next(events)
        own_daemon.stop()
        with pytest.raises(ClientError) as ended:
            next(events)
        assert ended.value.code == "stopping"


def test_a_lacking_scope_is_an_error_at_once(daemon: Daemon) -> None:
    holder = create(daemon, "connection.read")
    with closing(Client(daemon.url, token=holder.secret)) as listener, pytest.raises(ClientError) as refused:
        next(listener.events(["job"]))
    assert refused.value.code == "scope_denied"
