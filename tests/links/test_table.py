"""The table of open links: each is opened once, shared while allowed, and closed after its last lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from connmgr.errors import ConnectTimeout, HostRefused, SecretLocked, UnknownConnection
from connmgr.links.link import Lease
from connmgr.links.table import LinkTable
from connmgr.plugin import Channel, ConnectionType, Pty, Schema, Secret, Text, Transport
from connmgr.registry import Registered, Registry
from connmgr.secrets.principals import Access
from connmgr.vault import Vault
from connmgr.vault.connection_rows import fingerprint
from tests.deadlines import DEADLINE_SECONDS

ANYONE = Access()


class Way(Transport):
    """A link to nowhere, alive until it is closed or ``alive`` is changed."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.lost = False
        self.closed = threading.Event()

    @property
    def alive(self) -> bool:
        return not self.lost

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        raise HostRefused("There is nothing here.")

    def close(self) -> None:
        self.closed.set()


class WaySchema(Schema):
    to = Text()
    password = Secret()


class Ways(ConnectionType):
    """Opens ways after calling ``meanwhile``, and records them in ``opened``."""

    name = "way"
    usage_category = "shell"
    description = "A way of a test."
    schema = WaySchema

    def __init__(self) -> None:
        self.opened: list[Way] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def open(self, data: Mapping[str, Any], via: Transport | None, *, timeout: float) -> Transport:
        self.meanwhile()
        self.opened.append(Way(data))
        return self.opened[-1]


@pytest.fixture
def ways() -> Ways:
    return Ways()


@pytest.fixture
def table(vault: Vault, ways: Ways) -> LinkTable:
    return LinkTable(vault, Registry([Registered(ways, "tests", "0")]))


def added(vault: Vault, **data: Any) -> str:
    return vault.connections.add("one", "way", data, fingerprint=fingerprint(data), same=lambda _: False)[0]


def changed(vault: Vault, connection: str, to: str) -> None:
    data = {"to": to}
    vault.connections.update(connection, data=data, fingerprint=fingerprint(data))


@pytest.fixture
def connection(vault: Vault) -> str:
    return added(vault, to="here")


def test_leases_share_one_link_which_closes_after_the_last(table: LinkTable, ways: Ways, connection: str) -> None:
    leases = [table.lease(connection, ANYONE, DEADLINE_SECONDS) for _ in range(3)]
    (way,) = ways.opened
    assert {lease.link for lease in leases} == {leases[0].link}
    assert [lease.opener for lease in leases] == [True, False, False]
    for lease in leases[:2]:
        lease.release()
        lease.release()
    assert not way.closed.is_set()
    leases[2].release()
    assert way.closed.is_set()
    assert table.peek(connection) is None
    table.lease(connection, ANYONE, DEADLINE_SECONDS).release()
    assert len(ways.opened) == 2


def test_peek_leases_an_open_link_and_opens_none(table: LinkTable, ways: Ways, connection: str) -> None:
    assert table.peek(connection) is None
    assert not ways.opened
    lease = table.lease(connection, ANYONE, DEADLINE_SECONDS)
    found = table.peek(connection)
    assert found is not None
    lease.release()
    assert not ways.opened[0].closed.is_set(), "what was found is no lease"
    found.release()
    assert ways.opened[0].closed.is_set()


def test_each_connection_has_its_own_link(table: LinkTable, ways: Ways, vault: Vault, connection: str) -> None:
    other = added(vault, to="there")
    leases = [table.lease(one, ANYONE, DEADLINE_SECONDS) for one in (connection, other)]
    assert [lease.link.target.data["to"] for lease in leases] == ["here", "there"]
    assert len(ways.opened) == 2


def test_a_lost_link_is_not_leased(table: LinkTable, ways: Ways, connection: str) -> None:
    old = table.lease(connection, ANYONE, DEADLINE_SECONDS)
    ways.opened[0].lost = True
    assert table.peek(connection) is None
    new = table.lease(connection, ANYONE, DEADLINE_SECONDS)
    assert new.link is not old.link
    assert not ways.opened[0].closed.is_set()
    old.release()
    assert ways.opened[0].closed.is_set()
    shared = table.peek(connection)
    assert shared is not None
    assert shared.link is new.link


def test_an_excluded_link_is_not_leased(table: LinkTable, ways: Ways, connection: str) -> None:
    first = table.lease(connection, ANYONE, DEADLINE_SECONDS)
    second = table.lease(connection, ANYONE, DEADLINE_SECONDS, [first.link])
    assert len(ways.opened) == 2
    third = table.lease(connection, ANYONE, DEADLINE_SECONDS, [second.link])
    assert third.link is first.link


@pytest.mark.parametrize("told", [True, False], ids=["by this daemon", "by another"])
def test_a_link_by_old_data_of_a_connection_is_not_leased(
    table: LinkTable, ways: Ways, vault: Vault, connection: str, *, told: bool
) -> None:
    old = table.lease(connection, ANYONE, DEADLINE_SECONDS)
    changed(vault, connection, "there")
    if told:
        table.forget([connection])
    new = table.lease(connection, ANYONE, DEADLINE_SECONDS)
    assert new.link.target.data["to"] == "there"
    assert new.link is not old.link
    old.release()
    assert [way.closed.is_set() for way in ways.opened] == [True, False]


def test_a_link_whose_connection_changes_while_it_opens_is_opened_again(
    table: LinkTable, ways: Ways, vault: Vault, connection: str
) -> None:
    def change_once() -> None:
        ways.meanwhile = lambda: None
        changed(vault, connection, "there")
        table.forget([connection])

    ways.meanwhile = change_once
    lease = table.lease(connection, ANYONE, DEADLINE_SECONDS)
    assert lease.link.target.data["to"] == "there"
    assert [way.closed.is_set() for way in ways.opened] == [True, False]


def test_no_link_of_a_removed_connection_is_leased(table: LinkTable, ways: Ways, vault: Vault, connection: str) -> None:
    def remove() -> None:
        vault.connections.remove([connection])
        table.forget([connection])

    ways.meanwhile = remove
    with pytest.raises(UnknownConnection):
        table.lease(connection, ANYONE, DEADLINE_SECONDS)
    assert [way.closed.is_set() for way in ways.opened] == [True]
    assert table.peek(connection) is None


def test_a_link_is_shared_only_with_callers_who_may_open_its_secrets(
    table: LinkTable, ways: Ways, vault: Vault
) -> None:
    alice = Access()
    vault.principals.add_user(alice, "alice", "a long passphrase")
    vault.principals.unlock(alice, "alice", "a long passphrase")
    connection = added(vault, to="here", password=vault.principals.seal("secret", alice))
    lease = table.lease(connection, alice, DEADLINE_SECONDS)
    with pytest.raises(SecretLocked):
        table.lease(connection, ANYONE, DEADLINE_SECONDS)
    assert lease.link.lease_count == 1, "who was refused keeps the link open"
    assert ways.opened[0].data["password"] == "secret"
    lease.release()
    assert ways.opened[0].closed.is_set()


def at_once(number: int, act: Callable[[], Lease]) -> list[Lease]:
    """Call ``act`` in several threads at once, and return their leases."""
    ready, leases = threading.Barrier(number), list[Lease]()

    def run() -> None:
        ready.wait(DEADLINE_SECONDS)
        leases.append(act())

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    return leases


def test_simultaneous_leases_open_one_link(table: LinkTable, ways: Ways, connection: str) -> None:
    leases = at_once(16, lambda: table.lease(connection, ANYONE, DEADLINE_SECONDS))
    assert len(leases) == 16
    assert len(ways.opened) == 1
    for lease in leases:
        lease.release()
    assert ways.opened[0].closed.is_set()


def test_a_thread_that_waits_for_another_to_open_the_link_keeps_its_timeout(
    table: LinkTable, ways: Ways, connection: str
) -> None:
    begun, go_on, leases = threading.Event(), threading.Event(), list[Lease]()

    def wait() -> None:
        begun.set()
        assert go_on.wait(DEADLINE_SECONDS)

    ways.meanwhile = wait
    opener = threading.Thread(target=lambda: leases.append(table.lease(connection, ANYONE, DEADLINE_SECONDS)))
    opener.start()
    assert begun.wait(DEADLINE_SECONDS)
    with pytest.raises(ConnectTimeout, match="still being opened"):
        table.lease(connection, ANYONE, 0.1)
    go_on.set()
    opener.join(DEADLINE_SECONDS)
    assert len(leases) == 1
    assert table.lease(connection, ANYONE, DEADLINE_SECONDS).link is leases[0].link


def test_after_a_failure_the_next_lease_tries_again(table: LinkTable, ways: Ways, connection: str) -> None:
    def fail() -> None:
        raise HostRefused("Not now.")

    ways.meanwhile = fail
    with pytest.raises(HostRefused):
        table.lease(connection, ANYONE, DEADLINE_SECONDS)
    ways.meanwhile = lambda: None
    assert table.lease(connection, ANYONE, DEADLINE_SECONDS).opener


def test_links_are_closed_only_after_their_last_lease(table: LinkTable, ways: Ways, connection: str) -> None:
    wrong: list[str] = []

    def use() -> None:
        for _ in range(50):
            lease = table.lease(connection, ANYONE, DEADLINE_SECONDS)
            if not lease.link.alive:
                wrong.append("a lessee has a link that was closed")
            lease.release()

    users = [threading.Thread(target=use) for _ in range(8)]
    for user in users:
        user.start()
    for user in users:
        user.join(DEADLINE_SECONDS)
    assert not wrong
    assert all(way.closed.is_set() for way in ways.opened)
    assert table._by_connection == {}, "closed links are kept"
