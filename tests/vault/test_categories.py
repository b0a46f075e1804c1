"""Categories on both databases."""

from __future__ import annotations

import pytest

from connmgr.errors import CategoryExists, InvalidRequest, ProtectedEntry, UnknownCategory
from connmgr.vault import Vault
from connmgr.vault.names import ALL_CONNECTIONS, DEFAULT, LOCAL
from tests.api.wire import NOBODY
from tests.vault.conftest import Add


def test_a_new_vault_has_the_well_known_ones(vault: Vault) -> None:
    root, default = vault.categories.infos([ALL_CONNECTIONS, DEFAULT])
    assert (root.path, root.parent, root.config) == (("all connections",), None, {})
    assert (default.path, default.parent) == (("all connections", "default"), ALL_CONNECTIONS)
    assert vault.categories.query() == [ALL_CONNECTIONS, DEFAULT]


def test_the_same_name_under_the_same_parent_is_the_same_category(vault: Vault) -> None:
    team = vault.categories.add("Team A/B", ALL_CONNECTIONS)
    assert vault.categories.add("team a_b", ALL_CONNECTIONS) == team
    below = vault.categories.add("Team A/B", team)
    assert below != team
    info = vault.categories.infos([below])[0]
    assert (info.path, info.parent) == (("all connections", "team a_b", "team a_b"), team)
    assert info.created == info.last_used == info.last_modified
    with pytest.raises(UnknownCategory, match=NOBODY):
        vault.categories.add("x", NOBODY)
    with pytest.raises(UnknownCategory, match=NOBODY):
        vault.categories.infos([team, NOBODY])
    with pytest.raises(InvalidRequest, match="255"):
        vault.categories.add("x" * 256, team)


def test_a_filter_matches_with_and_without_the_root(vault: Vault, add: Add) -> None:
    team = vault.categories.add("Team", ALL_CONNECTIONS)
    web = vault.categories.add("Web", team)
    for filter in ("team/web", "all connections/team/web", "*/WEB", "**/web", "te*/w?b", "team/**b"):
        assert vault.categories.query(filter) == [web], filter
    for filter in ("team/**", "all connections/team/**", "{team,team/web}"):
        assert vault.categories.query(filter) == [team, web], filter
    assert vault.categories.query("**") == [ALL_CONNECTIONS, DEFAULT, team, web]
    assert vault.categories.query("web") == []
    id = add("one", category=web)
    assert vault.connections.query("team/**") == [id]
    assert vault.connections.query("team") == []
    assert vault.connections.query("default") == [LOCAL]


def test_contents_that_stay_move_to_the_default_category(vault: Vault, add: Add) -> None:
    team = vault.categories.add("Team", ALL_CONNECTIONS)
    web = vault.categories.add("Web", team)
    in_team, in_web = add("a", category=team), add("b", category=web)
    assert vault.categories.remove([team]).connections == []
    assert vault.categories.infos([web])[0].path == ("all connections", "web")
    assert vault.connections.get(in_team).category == DEFAULT
    assert vault.connections.get(in_web).category == web


def test_children_and_contents_go_where_asked(vault: Vault, add: Add) -> None:
    team = vault.categories.add("Team", ALL_CONNECTIONS)
    web = vault.categories.add("Web", team)
    in_web = add("a", category=web)
    over_it = add("b", {"host": in_web}, parent=in_web)
    vault.connections.update(LOCAL, category=web)
    assert set(vault.categories.remove([team], children=True, contents=True).connections) == {in_web, over_it}
    assert vault.categories.query() == [ALL_CONNECTIONS, DEFAULT]
    assert vault.connections.query() == [LOCAL]
    assert vault.connections.get(LOCAL).category == DEFAULT


def test_children_move_past_ancestors_that_go_as_well(vault: Vault) -> None:
    a = vault.categories.add("a", ALL_CONNECTIONS)
    b = vault.categories.add("b", a)
    c = vault.categories.add("c", b)
    d = vault.categories.add("d", c)
    vault.categories.remove([b, a])
    assert [info.path[1:] for info in vault.categories.infos([c, d])] == [("c",), ("c", "d")]


def test_a_child_may_take_the_name_of_what_goes_but_not_of_what_stays(vault: Vault) -> None:
    x = vault.categories.add("x", ALL_CONNECTIONS)
    inner = vault.categories.add("x", x)
    vault.categories.remove([x])
    assert vault.categories.infos([inner])[0].path == ("all connections", "x")
    other = vault.categories.add("other", ALL_CONNECTIONS)
    clash = vault.categories.add("x", other)
    with pytest.raises(CategoryExists, match="other/x cannot move up: there is a category all connections/x already"):
        vault.categories.remove([other])
    assert vault.categories.infos([other])
    assert vault.categories.infos([clash])[0].path == ("all connections", "other", "x")


def test_protected_and_unknown_categories_prevent_removing(vault: Vault) -> None:
    team = vault.categories.add("Team", ALL_CONNECTIONS)
    for protected in (ALL_CONNECTIONS, DEFAULT):
        with pytest.raises(ProtectedEntry):
            vault.categories.remove([team, protected], children=True)
    with pytest.raises(UnknownCategory, match=NOBODY):
        vault.categories.remove([team, NOBODY])
    assert vault.categories.infos([team])


def test_many_contents_move_at_once(vault: Vault, add: Add, small_chunks: None) -> None:
    team = vault.categories.add("Team", ALL_CONNECTIONS)
    ids = [add(f"n{n}", category=team) for n in range(11)]
    vault.categories.remove([team])
    assert {found.category for found in vault.connections.infos(ids)} == {DEFAULT}
