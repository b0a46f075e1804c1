"""Connections on both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from connmgr.errors import ConnectionCycle, InvalidRequest, ProtectedEntry, UnknownCategory, UnknownConnection
from connmgr.vault import Vault, connections
from connmgr.vault.batch import Batch
from connmgr.vault.connection_rows import fingerprint
from connmgr.vault.connections import without_access
from connmgr.vault.names import ALL_CONNECTIONS, DEFAULT, LOCAL
from tests.api.wire import NOBODY
from tests.vault.conftest import Add


def test_a_new_vault_knows_the_local_machine(vault: Vault) -> None:
    local = vault.connections.get(LOCAL)
    assert (local.name, local.path, local.type, local.data) == ("local machine", ("local machine",), "local", {})
    assert local.category == DEFAULT
    assert vault.connections.query() == [LOCAL]


def test_added_connections_are_read_back(vault: Vault) -> None:
    data = {"host": "a\u0000😀é", "port": 22, "deep": {"list": [1, None, 1.5, True]}}
    before = datetime.now(timezone.utc)
    id, created = vault.connections.add("Web/Server Ä", "ssh", data, fingerprint=fingerprint(data), same=bool)
    found = vault.connections.get(id)
    assert created
    assert (found.id, found.name, found.path) == (id, "Web/Server Ä", ("web_server ä",))
    assert (found.type, found.data, found.category) == ("ssh", data, DEFAULT)
    assert (found.state, found.cache) == ({}, {})
    assert before <= found.created <= before + timedelta(minutes=1)
    assert found.created == found.last_used == found.last_modified
    assert found.created.tzinfo is timezone.utc


def test_times_keep_their_microseconds(vault: Vault, add: Add) -> None:
    times = {vault.connections.get(add(f"host{n}")).created for n in range(20)}
    assert any(time.microsecond % 1000 for time in times)


def test_an_equivalent_connection_is_not_added_again(vault: Vault, add: Add) -> None:
    first = add("one", {"host": "h", "password": "A"}, fingerprint=fingerprint({"host": "h"}))
    seen: list[object] = []

    def same(data: object) -> bool:
        seen.append(data)
        return True

    options = {"fingerprint": fingerprint({"host": "h"}), "same": same}
    assert vault.connections.add("two", "ssh", {"host": "h", "password": "B"}, **options) == (first, False)
    assert seen == [{"host": "h", "password": "A"}]
    assert vault.connections.add("two", "other", {"host": "h", "password": "B"}, **options)[1]


def test_of_candidates_the_one_with_the_same_secrets_is_equivalent(vault: Vault, add: Add) -> None:
    print_ = fingerprint({"host": "h"})
    ids = [add(secret, {"host": "h", "password": secret}, fingerprint=print_, same=lambda _: False) for secret in "abc"]
    found = add("x", {"host": "h", "password": "b"}, fingerprint=print_, same=lambda data: data["password"] == "b")
    assert found == ids[1]


def test_the_local_machine_is_equivalent_to_a_plain_local_connection(add: Add) -> None:
    assert add("here", {}, type="local") == LOCAL
    assert add("here", {"shell": None}, type="local") == LOCAL
    assert add("here", {"shell": "bash"}, type="local") != LOCAL


def test_unknown_references_and_invalid_names_prevent_adding(vault: Vault, add: Add) -> None:
    with pytest.raises(UnknownConnection, match=f"Unknown connection: {NOBODY}"):
        add("a", references=[NOBODY])
    with pytest.raises(UnknownConnection):
        add("a", parent=NOBODY)
    with pytest.raises(UnknownCategory, match=f"Unknown category: {NOBODY}"):
        add("a", category=NOBODY)
    with pytest.raises(InvalidRequest, match="255"):
        add("a" * 256)
    assert vault.connections.query() == [LOCAL]


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_a_blank_name_of_an_older_version_stays_and_no_new_one_is_accepted(
    vault: Vault, add: Add, monkeypatch: pytest.MonkeyPatch, blank: str
) -> None:
    with monkeypatch.context() as older:
        older.setattr(connections, "check_name", lambda _: None)
        old = add(blank, {"host": "old.example"})
        inside = add("inside", {"over": old}, references=[old], parent=old)
    named = add("named", {"host": "named.example"})
    vault.connections.update(old, name=blank, labels={"env": "prod"})
    assert [vault.connections.get(id).name for id in (old, inside)] == [blank, "inside"]
    for attempt in (
        lambda: add(blank),
        lambda: vault.connections.temporary.add(blank, "ssh", {}, fingerprint=b"", same=lambda _: False),
        lambda: vault.connections.update(named, name=blank),
        lambda: vault.categories.add(blank, ALL_CONNECTIONS),
        lambda: vault.batches.apply(Batch(categories=[("above", blank)]), without_access),
    ):
        with pytest.raises(InvalidRequest, match="name: Blank"):
            attempt()
    assert vault.connections.get(named).name == "named"
    assert len(vault.categories.query()) == 2
    vault.connections.update(old, name="new")
    assert vault.connections.get(inside).path == ("new", "inside")
    vault.connections.remove([old])


def test_infos_come_in_the_order_asked_for(vault: Vault, add: Add, small_chunks: None) -> None:
    ids = [add(f"n{n}") for n in range(11)]
    wanted = [*reversed(ids), ids[3]]
    assert [found.id for found in vault.connections.infos(wanted)] == wanted
    with pytest.raises(UnknownConnection, match=NOBODY):
        vault.connections.infos([ids[0], NOBODY])
    assert vault.connections.infos([]) == []


def test_a_connection_is_removed_with_all_that_run_over_it(vault: Vault, add: Add) -> None:
    gateway = add("gateway")
    through = add("through", references=[gateway])
    elevated = add("root", {"host": through}, parent=through)
    other = add("other")
    assert set(vault.connections.remove([gateway]).connections) == {gateway, through, elevated}
    assert set(vault.connections.query()) == {LOCAL, other}


def test_an_unknown_or_protected_connection_prevents_removing(vault: Vault, add: Add) -> None:
    one = add("one")
    with pytest.raises(UnknownConnection, match=NOBODY):
        vault.connections.remove([one, NOBODY])
    with pytest.raises(ProtectedEntry):
        vault.connections.remove([one, LOCAL])
    assert vault.connections.get(one)


def test_many_are_removed_at_once(vault: Vault, add: Add, small_chunks: None) -> None:
    gateway = add("gateway")
    ids = [add(f"n{n}", parent=gateway) for n in range(11)]
    assert set(vault.connections.remove([gateway]).connections) == {gateway, *ids}


def test_a_wrapper_follows_the_path_of_its_host(vault: Vault, add: Add) -> None:
    host = add("Host")
    root = add("Root", {"host": host}, parent=host)
    inner = add("In/ner", {"host": root}, parent=root)
    twin = add("host", {"twin": 1})
    below_twin = add("root", {"host": twin}, parent=twin)
    assert vault.connections.get(inner).path == ("host", "root", "in_ner")
    vault.connections.update(host, name="Renamed/host")
    assert vault.connections.get(root).path == ("renamed_host", "root")
    assert vault.connections.get(inner).path == ("renamed_host", "root", "in_ner")
    assert vault.connections.get(below_twin).path == ("host", "root")
    vault.connections.update(root, references=[twin], parent=twin)
    assert vault.connections.get(inner).path == ("host", "root", "in_ner")
    assert vault.connections.query("*", "host/root/*") == [inner]
    vault.connections.update(root, references=[], parent=None)
    assert vault.connections.get(inner).path == ("root", "in_ner")
    assert set(vault.connections.remove([twin, host]).connections) == {twin, host, below_twin}


def test_an_update_changes_what_is_given_alone(vault: Vault, add: Add) -> None:
    id = add("one", {"host": "h"})
    before = vault.connections.get(id)
    category = vault.categories.add("Team", DEFAULT)
    vault.connections.update(id, category=category)
    after = vault.connections.get(id)
    assert after.category == category
    assert (after.name, after.data, after.created, after.last_used) == (
        "one",
        {"host": "h"},
        before.created,
        before.last_used,
    )
    assert after.last_modified > before.last_modified
    vault.connections.update(id, data={"host": "i"}, fingerprint=fingerprint({"host": "i"}))
    assert vault.connections.get(id).data == {"host": "i"}
    assert add("again", {"host": "i"}) == id
    assert add("again", {"host": "h"}) != id
    with pytest.raises(UnknownConnection):
        vault.connections.update(NOBODY, name="x")
    with pytest.raises(UnknownCategory):
        vault.connections.update(id, category=NOBODY)
    with pytest.raises(UnknownConnection):
        vault.connections.update(id, references=[NOBODY], parent=None)


def test_a_connection_cannot_come_to_run_over_itself(vault: Vault, add: Add) -> None:
    first = add("first")
    second = add("second", references=[first])
    third = add("third", {"host": second}, parent=second)
    for target in (first, second, third):
        with pytest.raises(ConnectionCycle, match=first):
            vault.connections.update(first, references=[target], parent=None)
        with pytest.raises(ConnectionCycle, match=first):
            vault.connections.update(first, references=[], parent=target)
    vault.connections.update(third, references=[first], parent=None)
    assert set(vault.connections.remove([second]).connections) == {second}


def test_use_is_noted_once_a_minute(vault: Vault, add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    id = add("one")
    made = vault.connections.get(id)
    vault.connections.touch(id)
    first = vault.connections.get(id)
    assert first.last_used > made.last_used
    assert first.last_modified == made.last_modified
    assert vault.categories.infos([DEFAULT])[0].last_used == first.last_used
    vault.connections.touch(id)
    assert vault.connections.get(id).last_used == first.last_used
    monkeypatch.setattr("connmgr.vault.connections.TOUCH_SECONDS", 0.0)
    vault.connections.touch(id)
    assert vault.connections.get(id).last_used > first.last_used
    vault.connections.touch(NOBODY)


def test_state_is_stored(vault: Vault, add: Add) -> None:
    id = add("one")
    vault.connections.set_state(id, {"osType": "linux"})
    found = vault.connections.get(id)
    assert found.state == {"osType": "linux"}
    assert found.last_modified == found.created
    with pytest.raises(UnknownConnection):
        vault.connections.set_state(NOBODY, {})


def test_everything_outlasts_the_vault_object(
    url: str, vault: Vault, add: Add, open_vault: Callable[..., Vault]
) -> None:
    id = add("one", category=vault.categories.add("Team", DEFAULT))
    expected = vault.connections.get(id)
    vault.close()
    assert open_vault(url).connections.get(id) == expected


def test_equal_connections_added_at_once_become_one(url: str, vault: Vault, open_vault: Callable[..., Vault]) -> None:
    others = [open_vault(url) for _ in range(3)]
    barrier = threading.Barrier(8)
    found: list[set[tuple[str, str]]] = []

    def run(number: int) -> None:
        mine = [vault, *others][number % 4]
        barrier.wait()
        entries = {(name, Add(mine)(name, {"host": name})) for name in "abcdef"}
        entries |= {(name, mine.categories.add(name, DEFAULT)) for name in "ghi"}
        found.append(entries)

    threads = [threading.Thread(target=run, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert all(entries == found[0] for entries in found)
    assert len(vault.connections.query()) == 7
    assert len(vault.categories.query()) == 5


def test_data_and_removal_count_as_changes_and_a_rename_does_not(vault: Vault, add: Add) -> None:
    host = add("host")
    over = add("over it", {"host": host}, references=[host])
    held = {id: (found.data, found.dependency_digest) for id in (host, over) for found in [vault.connections.get(id)]}

    def unchanged() -> list[bool]:
        return [vault.connections.unchanged(id, *held[id]) for id in (host, over)]

    vault.connections.update(host, name="renamed")
    vault.connections.set_state(host, {"osType": "linux"})
    assert unchanged() == [True, True]
    data = {"host": "another"}
    vault.connections.update(host, data=data, fingerprint=fingerprint(data))
    assert unchanged() == [False, False], "what runs over a changed connection runs on other data too"
    data = held[host][0]
    vault.connections.update(host, data=data, fingerprint=fingerprint(data))
    assert unchanged() == [True, True]
    vault.connections.remove([host])
    assert unchanged() == [False, False]
