"""``/category``: the tree of categories."""

from __future__ import annotations

import re
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import DEFAULT_CATEGORY, NOBODY, ROOT_CATEGORY
from tests.daemon import Daemon

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.fixture
def client(clean_daemon: Daemon) -> Client:
    return clean_daemon.client


def add(client: Client, name: str, parent: str = ROOT_CATEGORY) -> str:
    return str(client.post("/category/add", name=name, parent=parent)["category"])


def remove(client: Client, *ids: str, children: bool = False, contents: bool = False) -> Any:
    return client.post(
        "/category/remove", categories=list(ids), removeChildrenCategories=children, removeContents=contents
    )


def test_the_well_known_categories_are_there(client: Client) -> None:
    infos = client.post("/category/info", categories=[ROOT_CATEGORY, DEFAULT_CATEGORY])["infos"]
    assert [set(info) for info in infos] == [
        {"category", "parentCategory", "name", "lastUsed", "lastModified", "config"}
    ] * 2
    root, default = infos
    assert (root["category"], root["parentCategory"], root["name"]) == (ROOT_CATEGORY, None, ["all connections"])
    assert (default["parentCategory"], default["name"]) == (ROOT_CATEGORY, ["all connections", "default"])
    assert all(TIME.fullmatch(info[key]) for info in infos for key in ("lastUsed", "lastModified"))
    assert client.post("/category/query", filter="*")["found"] == [ROOT_CATEGORY, DEFAULT_CATEGORY]


def test_a_category_is_added_once_and_found_by_its_path(client: Client) -> None:
    customers = add(client, "Customers")
    assert add(client, "customers") == customers
    inner = add(client, "North/West", customers)
    assert client.post("/category/info", categories=[inner])["infos"][0]["name"] == [
        "all connections",
        "customers",
        "north_west",
    ]
    for wanted in ("customers/*", "all connections/customers/*", "CUSTOMERS/north_west", "**/north_west"):
        assert client.post("/category/query", filter=wanted)["found"] == [inner]


def test_unknown_ids_fail_as_a_whole(client: Client) -> None:
    for path, fields in (
        ("/category/info", {"categories": [ROOT_CATEGORY, NOBODY]}),
        ("/category/add", {"name": "x", "parent": NOBODY}),
        (
            "/category/remove",
            {"categories": [NOBODY], "removeChildrenCategories": False, "removeContents": False},
        ),
    ):
        with pytest.raises(ClientError) as caught:
            client.post(path, **fields)
        assert (caught.value.status, caught.value.code) == (400, "unknown_category")
        assert str(caught.value) == f"Unknown category: {NOBODY}"


def test_ids_may_be_written_in_capitals(client: Client) -> None:
    found = client.post("/category/info", categories=[DEFAULT_CATEGORY.upper()])["infos"]
    assert found[0]["category"] == DEFAULT_CATEGORY


def test_the_well_known_categories_cannot_be_removed(client: Client) -> None:
    for id in (ROOT_CATEGORY, DEFAULT_CATEGORY):
        with pytest.raises(ClientError) as caught:
            remove(client, id, children=True, contents=True)
        assert (caught.value.status, caught.value.code) == (400, "protected_entry")


def test_contents_kept_of_a_removed_category_move(client: Client) -> None:
    outer = add(client, "outer")
    inner = add(client, "inner", outer)
    connection = client.post("/connection/add", name="a", data={"type": "local", "shell": "/bin/sh"}, category=outer)
    assert remove(client, outer) == {}
    assert client.post("/category/info", categories=[inner])["infos"][0]["name"] == ["all connections", "inner"]
    moved = client.post("/connection/info", connections=[connection["connection"]])["infos"][0]
    assert moved["category"] == ["default"]


def test_with_contents_the_connections_go_too(client: Client) -> None:
    outer = add(client, "outer")
    inner = add(client, "inner", outer)
    data = {"type": "local", "shell": "/bin/sh"}
    id = client.post("/connection/add", name="a", data=data, category=inner)["connection"]
    client.post("/shell/start", connection=id)
    remove(client, outer, children=True, contents=True)
    for path, fields in (
        ("/connection/info", {"connections": [id]}),
        ("/shell/exec", {"connection": id, "command": ""}),
    ):
        with pytest.raises(ClientError, match=f"Unknown connection: {id}"):
            client.post(path, **fields)
    assert client.post("/category/query", filter="*")["found"] == [ROOT_CATEGORY, DEFAULT_CATEGORY]
