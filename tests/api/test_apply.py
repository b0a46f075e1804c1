"""``/connection/apply``: many changes in one step, each checked, authorised and recorded like a single one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import LOCAL, NOBODY
from tests.conftest import Recorded
from tests.daemon import Daemon


@pytest.fixture
def client(clean_daemon: Daemon) -> Client:
    return clean_daemon.client


def ssh(host: str, **more: Any) -> dict[str, Any]:
    return {"type": "ssh", "host": host, **more}


CHAIN = [
    {"label": "hop", "name": "Hop", "data": ssh("hop.example")},
    {"label": "web", "name": "Web", "data": ssh("web.example", gateway={"label": "hop"}), "category": ["Team", "One"]},
    {"name": "Root", "data": {"type": "shellEnvironment", "host": {"label": "web"}, "elevated": True}},
]


def names(client: Client) -> list[str]:
    return [one.path for one in client.connection.info(client.connection.query()) if one.id != LOCAL]


def refused(client: Client, **fields: Any) -> ClientError:
    with pytest.raises(ClientError) as caught:
        client.connection.apply(**fields)
    return caught.value


def test_entries_refer_to_those_before_them_and_their_categories_are_made(client: Client) -> None:
    applied = client.connection.apply(categories=[["Empty"]], add=CHAIN)
    hop, web, root = client.connection.info([id for id, _ in applied.added])
    assert [one.name for one in (hop, web, root)] == [("hop",), ("web",), ("web", "root")]
    assert (web.data["gateway"], root.data["host"]) == (hop.id, web.id)
    assert [one.category for one in (hop, web)] == [("default",), ("team", "one")]
    paths = ["/".join(one.name[1:]) for one in client.category.info(client.category.query())]
    assert paths == ["", "default", "empty", "team", "team/one"]


def test_existing_connections_and_those_over_them_are_not_added_again(client: Client) -> None:
    first = client.connection.apply(add=CHAIN).added
    again = client.connection.apply(add=CHAIN).added
    assert again == [(id, False) for id, _ in first]
    twice = client.connection.apply(add=[{"name": name, "data": ssh("same.example")} for name in ("a", "b")]).added
    assert [new for _, new in twice] == [True, False]
    assert twice[0][0] == twice[1][0]
    assert names(client) == ["a", "hop", "web", "web/root"]


def test_new_connections_run_over_existing_ones(client: Client) -> None:
    hop, web, root = (id for id, _ in client.connection.apply(add=CHAIN).added)
    behind = {"name": "behind", "data": ssh("db.example", gateway={"label": "web"})}
    inside = {"name": "inside", "data": {"type": "shellEnvironment", "host": {"label": "hop"}, "elevated": True}}
    *same, (new, _), (below, _) = client.connection.apply(add=[*CHAIN, behind, inside]).added
    assert same == [(hop, False), (web, False), (root, False)]
    found = client.connection.info([new, below])
    assert [one.data.get("gateway", one.data.get("host")) for one in found] == [web, hop]


def test_secrets_are_compared_as_one_alone_would_be(client: Client) -> None:
    def added(password: str) -> tuple[str, bool]:
        return client.connection.apply(add=[{"name": "a", "data": ssh("a.example", password=password)}]).added[0]

    one, _ = added("correct horse")
    assert added("correct horse") == (one, False)
    assert added("battery staple")[1]
    assert "encryptedToken" in client.connection.info([one])[0].data["password"]


def test_one_step_adds_changes_and_removes(client: Client) -> None:
    (hop, _), (web, _), (root, _) = client.connection.apply(add=CHAIN).added
    applied = client.connection.apply(
        add=[{"label": "new", "name": "new hop", "data": ssh("hop2.example")}],
        change=[
            {"connection": web, "data": ssh("web.example", gateway={"label": "new"}), "category": ["other"]},
            {"connection": root, "name": "Super"},
        ],
        remove=[hop],
    )
    assert applied.removed == [hop]
    found = {one.path: one for one in client.connection.info(client.connection.query())}
    assert found["web"].data["gateway"] == applied.added[0][0] == found["new hop"].id
    assert (found["web"].category, found["web/super"].id) == (("other",), root)


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"add": [*CHAIN, {"name": "x", "data": ssh("x", port="22")}]}, "invalid_request", "add.3.data.port: "),
        ({"add": [*CHAIN, {"name": "x", "data": {"type": "nothing"}}]}, "unknown_type", "nothing"),
        ({"add": list(reversed(CHAIN))}, "invalid_request", "add.0.data: No entry before this one has the label 'web'"),
        ({"add": [CHAIN[0], CHAIN[0]]}, "invalid_request", "same label"),
        ({"add": [*CHAIN, {"name": "x", "data": ssh("x", gateway=NOBODY)}]}, "unknown_connection", NOBODY),
        ({"add": CHAIN, "change": [{"connection": NOBODY, "name": "x"}]}, "unknown_connection", NOBODY),
        ({"add": CHAIN, "change": [{"connection": LOCAL}] * 2}, "invalid_request", "same connection"),
        ({"add": CHAIN, "change": [{"connection": LOCAL, "data": ssh("x")}]}, "invalid_request", "type"),
        ({"add": CHAIN, "remove": [NOBODY]}, "unknown_connection", NOBODY),
        ({"add": CHAIN, "remove": [LOCAL]}, "protected_entry", "local machine"),
        ({"add": [*CHAIN, {"name": "x" * 256, "data": ssh("x")}]}, "invalid_request", "add.3.name"),
        ({"add": [*CHAIN, {"name": "x", "data": ssh("x"), "category": [""]}]}, "invalid_request", "add.3.category.0"),
    ],
)
def test_one_faulty_entry_prevents_the_whole_batch(
    daemon: Daemon, fields: dict[str, Any], code: str, message: str
) -> None:
    before = daemon.client.connection.query()
    error = refused(daemon.client, categories=[["made"]], **fields)
    assert (error.code, message in error.message) == (code, True), error.message
    assert daemon.client.connection.query() == before
    assert daemon.client.category.query("made") == []


def test_a_circle_is_refused_and_new_data_ends_shells(client: Client) -> None:
    inner, outer = (
        client.connection.apply(add=[{"name": name, "data": data}]).added[0][0]
        for name, data in (
            ("a", {"type": "local", "shell": "/bin/sh"}),
            ("b", {"type": "shellEnvironment", "host": LOCAL}),
        )
    )
    client.shell.start(inner)
    circle = {"type": "shellEnvironment", "host": outer}
    assert refused(client, change=[{"connection": outer, "data": circle}]).code == "connection_cycle"
    assert [shell.status.connection for shell in client.shell.list()] == [inner]
    client.connection.apply(change=[{"connection": inner, "data": {"type": "local"}}])
    assert client.shell.list() == []


def test_each_connection_has_an_entry_in_the_audit_log_without_a_value(
    clean_daemon: Daemon, recorded: Recorded
) -> None:
    client = clean_daemon.client
    secret = [{"name": "s", "data": ssh("canary.example", password="canary"), "category": ["team"]}]
    (hop, web, _) = (id for id, _ in client.connection.apply(add=[*CHAIN, *secret]).added[:3])
    client.connection.apply(change=[{"connection": hop, "name": "h", "data": ssh("other.example")}], remove=[web])
    entries = recorded()
    made = [entry for entry in entries if entry.get("added") is True]
    assert [entry["name"] for entry in made] == ["Team", "Team/One", "Hop", "Web", "Root", "s"]
    assert [entry["connection"] for entry in made if "connection" in entry][:2] == [hop, web]
    (changed,) = (entry for entry in entries if entry.get("connection") == hop and "changed" in entry)
    assert changed["changed"] == ["name", "data.host"]
    assert len([entry for entry in entries if entry.get("removed") is True]) == 2
    assert "canary" not in json.dumps(entries)


def test_a_thousand_entries_are_one_request_and_there_is_a_limit(client: Client) -> None:
    add = [{"name": f"n{number}", "data": ssh(f"n{number}.example")} for number in range(1000)]
    assert all(new for _, new in client.connection.apply(add=add).added)
    assert refused(client, remove=[NOBODY] * 20_001).code == "invalid_request"


def test_a_change_of_what_somebody_has_changed_since_is_refused_whole(client: Client) -> None:
    [(hop, _), (web, _)] = client.connection.apply(add=CHAIN[:2]).added
    known = {one.id: one.last_modified.isoformat() for one in client.connection.info([hop, web])}
    client.connection.label([web], {"env": "prod"})
    changes = [{"connection": id, "labels": {"tier": "1"}, "lastModified": known[id]} for id in (hop, web)]
    caught = refused(client, change=changes, categories=[["New"]])
    assert (caught.code, caught.status) == ("connection_changed", 409)
    assert caught.message.startswith("web was changed at 20")
    assert [one.labels for one in client.connection.info([hop, web])] == [{}, {"env": "prod"}]
    assert not any(one.name[-1] == "new" for one in client.category.info(client.category.query()))
    client.connection.apply(change=changes[:1])
    assert client.connection.info([hop])[0].labels == {"tier": "1"}
