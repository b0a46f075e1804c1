"""``/connection``: storing and describing connections."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from connmgr.api.app import endpoints
from connmgr.client import Client, ClientError
from tests.api.wire import DEFAULT_CATEGORY, LOCAL, NOBODY, ROOT_CATEGORY, refused
from tests.daemon import Daemon

SH = {"type": "local", "shell": "/bin/sh"}
SSH = {"type": "ssh", "host": "box.example", "user": "root", "password": "hunter2"}
UNREACHABLE = {"type": "ssh", "host": "127.0.0.1", "port": 1, "user": "nobody", "password": "x"}


@pytest.fixture
def client(clean_daemon: Daemon) -> Client:
    return clean_daemon.client


def add(client: Client, name: str, data: dict[str, Any], **fields: Any) -> str:
    return str(client.post("/connection/add", name=name, data=data, **fields)["connection"])


def info(client: Client, id: str) -> Any:
    return client.post("/connection/info", connections=[id])["infos"][0]


def test_the_local_machine_is_there(client: Client) -> None:
    local = info(client, LOCAL)
    keys = "connection category name type rawData usageCategory lastUsed lastModified state cache labels"
    assert set(local) == set(keys.split())
    assert (local["name"], local["category"], local["type"]) == (["local machine"], ["default"], "local")
    assert (local["usageCategory"], local["rawData"]["type"]) == ("shell", "local")


def test_a_connection_is_added_found_and_described(client: Client) -> None:
    category = client.post("/category/add", name="Lab", parent=ROOT_CATEGORY)["category"]
    id = add(client, "Test/Box", SH, category=category)
    described = info(client, id)
    assert (described["name"], described["category"], described["rawData"]) == (["test_box"], ["lab"], SH)
    for filters in (("*", "test_box", "*"), ("lab", "*", "local"), ("all connections/lab", "T*", "LOC*")):
        query = dict(zip(("categoryFilter", "connectionFilter", "typeFilter"), filters, strict=True))
        assert client.post("/connection/query", **query)["found"] == [id]


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_blank_name_is_refused_wherever_one_is_given(client: Client, blank: str) -> None:
    id = add(client, "box", SH)
    before = info(client, id)
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/connection/add", {"name": blank, "data": SSH}),
        ("/connection/add", {"name": blank, "data": SH}),
        ("/connection/add", {"name": blank, "data": SSH, "temporary": True}),
        ("/store/add", {"name": blank, "data": SSH}),
        ("/connection/update", {"connection": id, "name": blank}),
        ("/connection/apply", {"add": [{"name": "good", "data": UNREACHABLE}, {"name": blank, "data": SSH}]}),
        ("/connection/apply", {"change": [{"connection": id, "name": blank}]}),
        ("/category/add", {"name": blank, "parent": ROOT_CATEGORY}),
    ]
    for path, fields in requests:
        error = refused(client, path, **fields)
        assert (error.status, error.code) == (400, "invalid_request"), path
        assert "name: " in error.message, path
    assert info(client, id) == before
    everything = client.post("/connection/query", categoryFilter="*", connectionFilter="*", typeFilter="*")
    assert set(everything["found"]) == {LOCAL, id}


def test_a_connection_named_twice_is_described_twice(client: Client) -> None:
    id = add(client, "box", SH)
    ids = [id, LOCAL, id.upper(), id, LOCAL]
    infos = client.post("/connection/info", connections=ids)["infos"]
    assert [one["connection"] for one in infos] == [one.lower() for one in ids]
    with pytest.raises(ClientError, match=f"Unknown connection: {NOBODY}"):
        client.post("/connection/info", connections=[LOCAL, LOCAL, NOBODY, NOBODY])
    with pytest.raises(ClientError, match=r"connections\.2: Not a valid string"):
        client.post("/connection/info", connections=[LOCAL, LOCAL, 1])
    categories = [DEFAULT_CATEGORY, ROOT_CATEGORY, DEFAULT_CATEGORY.upper()]
    named = client.post("/category/info", categories=categories)["infos"]
    assert [one["category"] for one in named] == [one.lower() for one in categories]


def test_secrets_are_stored_and_told_in_their_encrypted_form_alone(client: Client, clean_daemon: Daemon) -> None:
    id = add(client, "box", SSH)
    told = info(client, id)["rawData"]["password"]
    assert set(told) == {"encryptedToken", "secret"}
    assert client.post("/secret/decrypt", encrypted=told) == {"decrypted": "hunter2"}
    assert "hunter2" not in json.dumps(client.post("/connection/info", connections=[id]))
    assert "hunter2" not in clean_daemon.stderr()


def test_the_answer_says_whether_a_connection_was_added(client: Client) -> None:
    for temporary in (False, True):
        added = [
            client.post("/connection/add", name=name, data=SSH, temporary=temporary)["added"] for name in ("one", "two")
        ]
        assert added == [True, False], f"temporary: {temporary}"


def test_an_equivalent_connection_is_not_added_again(client: Client) -> None:
    id = add(client, "box", SSH)
    sealed = client.post("/secret/encrypt", value="hunter2")["encrypted"]
    for same in (SSH, {**SSH, "port": 22}, {**SSH, "password": sealed}):
        assert add(client, "another name", same) == id
    for other in (
        {**SSH, "password": "hunter3"},
        {**SSH, "port": 23},
        {"type": "ssh", "host": "box.example", "user": "root"},
    ):
        assert add(client, "box", other) != id
    assert info(client, id)["name"] == ["box"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "data.type: Missing"),
        ({"type": 1}, "data.type: Not a valid string"),
        ({"type": None}, "data.type: Missing"),
        ({"type": "ssh"}, "data.host: Missing"),
        ({**SSH, "port": "22"}, "data.port: Not a valid integer"),
        ({**SSH, "port": True}, "data.port: Not a valid integer"),
        ({**SSH, "port": 70000}, "data.port: "),
        ({**SSH, "more": 1}, "data.more: Unknown field"),
        ({**SSH, "password": 1}, "data.password: Neither a string nor an encrypted secret"),
        ({**SSH, "password": {"encryptedToken": {}}}, "data.password.encryptedToken.token: Missing"),
        ({**SSH, "gateway": "x"}, "data.gateway: Not a connection's uuid"),
        ({**SSH, "gateway": {"storeId": NOBODY, "x": 1}}, "data.gateway: "),
        ("local", "data: Not a valid"),
    ],
)
def test_bad_data_names_its_field_and_adds_nothing(daemon: Daemon, data: Any, says: str) -> None:
    everything = {"categoryFilter": "*", "connectionFilter": "*", "typeFilter": "*"}
    before = daemon.client.post("/connection/query", **everything)
    error = refused(daemon.client, "/connection/add", name="x", data=data)
    assert (error.status, error.code) == (400, "invalid_request")
    assert says in error.message
    assert daemon.client.post("/connection/query", **everything) == before


def test_an_unknown_type_category_or_gateway_is_named(client: Client) -> None:
    error = refused(client, "/connection/add", name="x", data={"type": "teapot"})
    assert (error.code, "teapot" in error.message) == ("unknown_type", True)
    assert refused(client, "/connection/add", name="x", data=SH, category=NOBODY).code == "unknown_category"
    assert refused(client, "/connection/add", name="x", data=SH, category="").code == "unknown_category"
    error = refused(client, "/connection/add", name="x", data={**SSH, "gateway": NOBODY})
    assert (error.code, error.message) == ("unknown_connection", f"Unknown connection: {NOBODY}")


def test_a_secret_that_was_changed_is_refused(client: Client) -> None:
    sealed = client.post("/secret/encrypt", value="hunter2")["encrypted"]
    value = sealed["secret"]["encryptedValue"]
    sealed["secret"]["encryptedValue"] = ("B" if value[0] == "A" else "A") + value[1:]
    assert refused(client, "/connection/add", name="x", data={**SSH, "password": sealed}).code == "integrity"


def test_an_unknown_category_is_refused_before_a_machine_is_reached(client: Client) -> None:
    fields = {"name": "x", "data": UNREACHABLE, "validate": True, "category": NOBODY}
    assert refused(client, "/connection/add", **fields).code == "unknown_category"


def test_validation_opens_the_connection_first(client: Client) -> None:
    id = add(client, "sh", SH, validate=True)
    assert info(client, id)["rawData"] == SH
    error = refused(client, "/connection/add", name="dead", data=UNREACHABLE, validate=True)
    assert (error.status, error.code) == (400, "host_refused")
    error = refused(client, "/connection/add", name="x", data={"type": "local", "shell": "/nowhere"}, validate=True)
    assert error.status == 400
    everything = client.post("/connection/query", categoryFilter="*", connectionFilter="*", typeFilter="*")
    assert sorted(everything["found"]) == sorted([LOCAL, id])


def test_an_update_changes_what_it_names(client: Client) -> None:
    id = add(client, "box", SSH)
    sealed = info(client, id)["rawData"]["password"]
    assert client.post("/connection/update", connection=id, name="Other") == {}
    assert (info(client, id)["name"], info(client, id)["rawData"]["host"]) == (["other"], "box.example")
    client.post("/connection/update", connection=id, data={**SSH, "host": "new.example", "password": sealed})
    raw = info(client, id)["rawData"]
    assert (raw["host"], raw["password"]) == ("new.example", sealed)
    category = client.post("/category/add", name="lab", parent=DEFAULT_CATEGORY)["category"]
    client.post("/connection/update", connection=id, category=category)
    assert info(client, id)["category"] == ["default", "lab"]


@pytest.mark.parametrize("way", ["single", "batch"])
def test_connections_live_in_the_category_of_the_one_they_are_in_and_move_with_it(client: Client, way: str) -> None:
    lab = client.category.add("lab", ROOT_CATEGORY)
    over = {"type": "shellEnvironment", "elevated": True}
    if way == "single":
        web = add(client, "web", SSH, category=lab)
        root = add(client, "root", {**over, "host": web})
        www = add(client, "www", {**over, "host": root, "user": "www"})
        other = add(client, "other", {**over, "host": web, "user": "other"}, category=DEFAULT_CATEGORY)
    else:
        entries = [
            {"label": "web", "name": "web", "data": SSH, "category": ["lab"]},
            {"label": "root", "name": "root", "data": {**over, "host": {"label": "web"}}},
            {"name": "www", "data": {**over, "host": {"label": "root"}, "user": "www"}},
            {"name": "other", "data": {**over, "host": {"label": "web"}, "user": "other"}, "category": ["default"]},
        ]
        web, root, www, other = (id for id, _ in client.connection.apply(add=entries).added)
    found = {one: info(client, one)["category"] for one in (web, root, www, other)}
    assert found == {web: ["lab"], root: ["lab"], www: ["lab"], other: ["default"]}
    if way == "single":
        client.connection.update(web, category=client.category.add("attic", ROOT_CATEGORY), name="old")
    else:
        client.connection.apply(change=[{"connection": web, "category": ["attic"], "name": "old"}])
    found = {one: info(client, one)["category"] for one in (web, root, www, other)}
    assert found == {web: ["attic"], root: ["attic"], www: ["attic"], other: ["default"]}
    assert info(client, www)["name"] == ["old", "root", "www"]


def test_an_update_of_what_somebody_has_changed_since_is_refused(client: Client) -> None:
    web = client.connection.add("web", {"type": "ssh", "host": "web.example"})
    [read] = client.connection.info([web])
    client.connection.update(web, labels={"env": "prod"}, last_modified=read.last_modified)
    with pytest.raises(ClientError) as caught:
        client.connection.update(web, name="mine", labels={"tier": "1"}, last_modified=read.last_modified)
    assert (caught.value.code, caught.value.status) == ("connection_changed", 409)
    assert caught.value.message.startswith("web was changed at 20")
    [after] = client.connection.info([web])
    assert (after.name, after.labels) == (("web",), {"env": "prod"})


def test_an_update_at_fault_changes_nothing(client: Client) -> None:
    id = add(client, "box", SSH)
    before = info(client, id)
    for fields, code in (
        ({"name": "x", "data": SH}, "invalid_request"),
        ({"name": "x", "data": {**SSH, "port": 0}}, "invalid_request"),
        ({"name": "x", "category": NOBODY}, "unknown_category"),
        ({"name": "x", "data": {**SSH, "gateway": id}}, "connection_cycle"),
        ({"name": "x", "data": UNREACHABLE, "validate": True}, "host_refused"),
    ):
        assert refused(client, "/connection/update", connection=id, **fields).code == code
    assert refused(client, "/connection/update", connection=NOBODY, name="x").code == "unknown_connection"
    assert info(client, id) == before


def test_changed_data_ends_the_shell_and_a_new_name_does_not(client: Client) -> None:
    id = add(client, "sh", SH)
    client.post("/shell/start", connection=id)
    client.post("/connection/update", connection=id, name="other")
    assert client.post("/shell/exec", connection=id, command="echo on")["stdout"] == "on"
    client.post("/connection/update", connection=id, data={"type": "local", "shell": "/bin/bash"})
    assert refused(client, "/shell/exec", connection=id, command="true").code == "no_shell"
    assert client.post("/shell/start", connection=id)["shellDialect"] == 1


def test_removal_takes_along_what_runs_over_it_and_its_shell(client: Client) -> None:
    gateway = add(client, "gateway", SSH)
    behind = add(client, "behind", {**SSH, "host": "inner.example", "gateway": {"storeId": gateway}})
    shell = add(client, "sh", SH)
    client.post("/shell/start", connection=shell)
    assert info(client, behind)["rawData"]["gateway"] == gateway
    assert client.post("/connection/remove", connections=[gateway, shell]) == {}
    for id in (gateway, behind, shell):
        assert refused(client, "/connection/info", connections=[id]).code == "unknown_connection"
    assert refused(client, "/shell/exec", connection=shell, command="true").code == "unknown_connection"


def test_removal_fails_as_a_whole(client: Client) -> None:
    id = add(client, "sh", SH)
    assert refused(client, "/connection/remove", connections=[id, NOBODY]).code == "unknown_connection"
    assert refused(client, "/connection/remove", connections=[id, LOCAL]).code == "protected_entry"
    assert info(client, id)["rawData"] == SH


def test_a_refresh_stores_what_it_found(client: Client) -> None:
    assert client.post("/connection/refresh", connection=LOCAL) == {"added": [], "gone": [], "skipped": []}
    assert info(client, LOCAL)["state"]["osType"] == "linux"
    dead = add(client, "dead", UNREACHABLE)
    error = refused(client, "/connection/refresh", connection=dead)
    assert (error.status, error.code) == (500, "host_refused")
    assert refused(client, "/connection/refresh", connection=NOBODY).code == "unknown_connection"


def test_the_types_are_described_by_schemas_that_their_examples_and_stored_data_satisfy(daemon: Daemon) -> None:
    answer = daemon.client.post("/connection/types")
    assert answer["problems"] == []
    types = {entry["type"]: entry for entry in answer["types"]}
    assert {"local", "ssh"} <= set(types)
    for name, entry in types.items():
        assert set(entry) == {"type", "usageCategory", "description", "distribution", "toggled", "version", "schema"}
        assert entry["distribution"] == "connmgr"
        validator = jsonschema_rs.Draft202012Validator(entry["schema"])
        for example in entry["schema"]["examples"]:
            assert example["type"] == name
            validator.validate(example)
    ssh = jsonschema_rs.Draft202012Validator(types["ssh"]["schema"])
    sealed = daemon.client.post("/secret/encrypt", value="x")["encrypted"]
    assert ssh.is_valid({**SSH, "password": sealed, "gateway": {"storeId": NOBODY}})
    for wrong in ({**SSH, "port": "22"}, {**SSH, "more": 1}, {"type": "ssh"}, {**SSH, "type": "local"}):
        assert not ssh.is_valid(wrong)


def test_environment_of_several_refuses_what_is_not_a_uuid_and_skips_removed_ones(client: Client) -> None:
    removed = "00000000-0000-4000-8000-000000000000"
    assert client.post("/connection/environment", connections=[LOCAL, removed]) == client.post(
        "/connection/environment", connections=[LOCAL]
    )
    with pytest.raises(ClientError) as refused:
        client.post("/connection/environment", connections=[LOCAL, "web1"])
    assert refused.value.code == "unknown_connection"


def test_a_request_about_thousands_of_connections_is_not_too_large(client: Client) -> None:
    short = [
        one.path
        for one in endpoints()
        if one.request is not None and "connections" in one.request.fields and not one.has_content
    ]
    assert short == [], "their bodies may have 64 KiB, which are 1,600 uuids"
    many = [LOCAL] * 10_000
    assert client.post("/connection/environment", connections=many) == client.post(
        "/connection/environment", connections=[LOCAL]
    )
