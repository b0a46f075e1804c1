"""Temporary connections are kept while they have a link, and not much longer."""

from __future__ import annotations

import pytest

from connmgr.errors import TemporaryLimit, UnknownConnection
from connmgr.vault import Vault, unstored
from connmgr.vault.unstored import TemporaryConnections
from tests.clock import Clock


@pytest.fixture
def clock(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(unstored, "time", clock)
    return clock


def add(kept: TemporaryConnections, host: str = "a") -> str:
    data = {"host": host}
    return kept.add(host, "ssh", data, fingerprint=host.encode(), same=lambda other: other == data)[0]


def test_a_temporary_connection_lasts_as_long_as_its_link_and_a_minute(clock: Clock) -> None:
    kept = TemporaryConnections()
    id = add(kept)
    clock.now += 59
    kept.hold(id, id)
    clock.now += 10_000
    assert kept.get(id) is not None
    kept.leave(id, id)
    clock.now += 59
    assert add(kept) == id
    clock.now += 59
    assert kept.get(id) is not None
    clock.now += 2
    assert kept.get(id) is None
    kept.hold(id, id)
    assert kept.get(id) is None, "what is gone stays gone"
    assert add(kept) != id


def test_a_temporary_connection_lasts_as_long_as_anybody_holds_it(clock: Clock) -> None:
    kept = TemporaryConnections()
    id = add(kept)
    kept.hold(id, id)
    kept.hold(id, "elevated")
    kept.leave(id, id)
    clock.now += 10_000
    assert kept.get(id) is not None
    kept.leave(id, "elevated")
    clock.now += 61
    assert kept.get(id) is None


def test_there_is_a_limit_which_those_that_are_over_do_not_count_against(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unstored, "MAX_TEMPORARY", 2)
    kept = TemporaryConnections()
    ids = [add(kept, host) for host in "ab"]
    with pytest.raises(TemporaryLimit):
        add(kept, "c")
    assert add(kept, "a") == ids[0]
    clock.now += 61
    add(kept, "c")


def test_the_vault_treats_it_as_a_connection_and_stores_nothing(vault: Vault) -> None:
    connections = vault.connections
    id = add(connections.temporary)
    assert connections.get(id).path == ("a",)
    assert [one.id for one in connections.infos([id])] == [id]
    assert set(connections.each([id, "nowhere"])) == {id}
    assert connections.unchanged(id, {"host": "a"}, "")
    assert not connections.unchanged(id, {"host": "b"}, "")
    connections.touch(id)
    connections.set_state(id, {"osName": "Plan 9"})
    assert connections.get(id).state == {"osName": "Plan 9"}
    assert connections.with_carriers([id]) == [id]
    assert id not in connections.query()
    assert connections.remove([id]).connections == [id]
    with pytest.raises(UnknownConnection):
        connections.get(id)
    with pytest.raises(UnknownConnection):
        connections.remove([id])
