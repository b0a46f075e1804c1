"""A token sees what its filters match; anything else is answered as if it did not exist."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.api.wire import DEFAULT_CATEGORY, LOCAL, NOBODY, ROOT_CATEGORY, add
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.rights.wire import Holder, create

EVERYTHING = {"categoryFilter": "*", "connectionFilter": "*", "typeFilter": "*"}
ALL_OF = (
    "connection.read",
    "connection.write",
    "category.write",
    "shell.any",
    "job",
    "terminal",
    "fs.read",
    "fs.write",
)


@dataclass
class World:
    """A daemon whose vault has ``web``, ``web/root`` over it, and ``db`` in the category ``prod``."""

    daemon: Daemon
    prod: str
    web: str
    root: str
    db: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    daemon = Daemon(tmp_path_factory.mktemp("sight"))
    client = daemon.client
    prod = client.post("/category/add", name="prod", parent=DEFAULT_CATEGORY)["category"]
    web = add(client, "web", type="ssh", host="web.example", user="ci", password="secret of web")
    root = add(client, "root", type="shellEnvironment", elevated=True, host={"storeId": web})
    db = add(client, "db", prod, type="ssh", host="db.example", user="ci")
    yield World(daemon, prod, web, root, db)
    daemon.stop()


def seen(holder: Holder) -> set[str]:
    return set(holder.ok("/connection/query", **EVERYTHING)["found"])


@pytest.mark.parametrize(
    ("members", "names"),
    [
        ({}, {"web", "root", "db", "local"}),
        ({"connections": ["web"]}, {"web"}),
        ({"connections": ["web/root"]}, {"root"}),
        ({"connections": ["web/**"]}, {"web", "root"}),
        ({"connections": ["WEB", "D?"]}, {"web", "db"}),
        ({"connections": []}, set()),
        ({"categories": ["default/prod"]}, {"db"}),
        ({"categories": []}, set()),
        ({"connections": ["web"], "categories": ["default/prod"]}, set()),
    ],
    ids=lambda value: None if isinstance(value, set) else json.dumps(value),
)
def test_queries_return_what_the_filters_match(world: World, members: dict[str, Any], names: set[str]) -> None:
    ids = {"web": world.web, "root": world.root, "db": world.db, "local": LOCAL}
    holder = create(world.daemon, "connection.read", **members)
    assert seen(holder) == {ids[name] for name in names}
    named = holder.ok("/connection/query", **EVERYTHING, names=True)
    assert len(named["names"]) == len(named["found"]) == len(names)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/connection/info", {"connections": ["ID"]}),
        ("/connection/remove", {"connections": ["ID"]}),
        ("/connection/refresh", {"connection": "ID"}),
        ("/connection/update", {"connection": "ID", "name": "x"}),
        ("/connection/add", {"name": "web", "data": {"type": "shellEnvironment", "host": {"storeId": "ID"}}}),
        ("/connection/add", {"name": "web", "data": {"type": "ssh", "host": "h", "gateway": "ID"}}),
        ("/connection/apply", {"add": [], "change": [{"connection": "ID", "name": "x"}], "remove": []}),
        ("/connection/apply", {"add": [], "change": [], "remove": ["ID"]}),
        ("/shell/start", {"connection": "ID"}),
        ("/shell/exec", {"connection": "ID", "command": "true"}),
        ("/shell/broadcast", {"connections": ["ID"], "command": "true"}),
        ("/shell/list", {"connection": "ID"}),
        ("/shell/stop", {"connection": "ID"}),
        ("/terminal/open", {"connection": "ID"}),
        ("/job/start", {"connection": "ID", "command": "true"}),
        ("/job/orphans", {"connection": "ID"}),
        ("/fs/list", {"connection": "ID", "path": "/"}),
        ("/fs/stat", {"connection": "ID", "path": "/"}),
        ("/fs/read", {"connection": "ID", "path": "/"}),
        ("/fs/write", {"connection": "ID", "path": "/", "blob": NOBODY}),
        ("/fs/move", {"connection": "ID", "source": "/", "target": "/"}),
        ("/hostkey/forget", {"connection": "ID"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_connection_out_of_sight_is_answered_as_unknown(world: World, path: str, body: dict[str, Any]) -> None:
    holder = create(world.daemon, *ALL_OF, connections=["web"])
    for hidden in (world.db, world.root):
        answers = []
        for id in (hidden, NOBODY):
            answer = holder.send(path, **json.loads(json.dumps(body).replace("ID", id)))
            answers.append((answer.status, answer.code, answer.message.replace(id, "ID")))
        assert answers[0] == answers[1]
        assert answers[0][:2] == (400, "unknown_connection")


def test_sight_of_a_connection_does_not_include_the_one_that_it_runs_over(world: World) -> None:
    holder = create(world.daemon, "connection.read", "shell.any", connections=["web/root"])
    assert holder.ok("/connection/info", connections=[world.root])
    assert holder.refused("/shell/exec", connection=world.web, command="true") == "unknown_connection"


def test_the_categories_of_visible_connections_are_visible(world: World) -> None:
    everyone = create(world.daemon, "connection.read")
    assert set(everyone.ok("/category/query", filter="*")["found"]) == {ROOT_CATEGORY, DEFAULT_CATEGORY, world.prod}
    web = create(world.daemon, "connection.read", connections=["web"])
    assert set(web.ok("/category/query", filter="*")["found"]) == {ROOT_CATEGORY, DEFAULT_CATEGORY}
    answers = [web.send("/category/info", categories=[id]) for id in (world.prod, NOBODY)]
    assert {answer.code for answer in answers} == {"unknown_category"}
    db = create(world.daemon, "connection.read", categories=["default/prod"])
    assert db.ok("/category/query", filter="*")["found"] == [world.prod]


@pytest.mark.parametrize(
    ("name", "category", "code"),
    [
        ("web2", None, None),
        ("other", None, "scope_denied"),
        ("web3", "prod", "unknown_category"),
        ("web/../db", None, "scope_denied"),
    ],
)
def test_a_connection_is_added_only_within_sight(
    world: World, name: str, category: str | None, code: str | None
) -> None:
    holder = create(world.daemon, "connection.write", "connection.read", connections=["web?"])
    members = {"category": world.prod} if category else {}
    body = {"name": name, "data": {"type": "ssh", "host": f"{name}.example"}, "validate": False, **members}
    if code:
        assert holder.refused("/connection/add", **body) == code
        applied = {"name": name, "data": body["data"], **({"category": ["default", "prod"]} if category else {})}
        assert holder.refused("/connection/apply", add=[applied], change=[], remove=[]) in (code, "scope_denied")
        return
    made = holder.ok("/connection/add", **body)["connection"]
    assert seen(holder) == {made}
    assert holder.refused("/connection/update", connection=made, name="db2") == "scope_denied"
    assert holder.refused("/connection/update", connection=made, category=world.prod) == "unknown_category"
    holder.ok("/connection/remove", connections=[made])


def test_a_connection_below_another_is_judged_by_the_category_that_it_gets(world: World) -> None:
    holder = create(world.daemon, "connection.write", "connection.read", "shell.any", categories=["default/prod"])
    body = {"name": "root", "data": {"type": "shellEnvironment", "elevated": True, "host": world.db}}
    below = holder.ok("/connection/add", **body, validate=False)["connection"]
    try:
        assert seen(holder) == {world.db, below}
        # The category holds for both, so moving the lower one out of sight is refused with it.
        narrow = create(
            world.daemon,
            "connection.write",
            "connection.read",
            "shell.any",
            connections=["db", "db/*"],
            categories=["**"],
        )
        narrow.ok("/connection/update", connection=world.db, category=world.prod)
        stays = create(world.daemon, "connection.write", "connection.read", "shell.any", categories=["default/prod"])
        assert stays.refused("/connection/update", connection=world.db, category=DEFAULT_CATEGORY) == "unknown_category"
    finally:
        world.daemon.client.post("/connection/remove", connections=[below])


def test_adding_a_connection_does_not_reveal_an_equal_one_out_of_sight(world: World) -> None:
    holder = create(world.daemon, "connection.write", "connection.read", connections=["mine"])
    data = {"type": "ssh", "host": "db.example", "user": "ci"}
    made = holder.ok("/connection/add", name="mine", data=data, validate=False)["connection"]
    assert made != world.db
    world.daemon.client.post("/connection/remove", connections=[made])


@pytest.mark.parametrize("kind", ["add", "apply", "temporary"])
def test_an_equal_connection_in_sight_is_found_behind_an_older_one_out_of_sight(world: World, kind: str) -> None:
    data = {"type": "ssh", "host": f"{kind}.example", "user": "ci"}
    entry = {"name": "mine", "data": data, "validate": False, **({"temporary": True} if kind == "temporary" else {})}
    theirs = world.daemon.client.post("/connection/add", **{**entry, "name": "theirs"})["connection"]
    holder = create(world.daemon, "connection.write", "connection.read", connections=["mine"])

    def add_again() -> tuple[str, bool]:
        if kind == "apply":
            [made] = holder.ok("/connection/apply", add=[{"name": "mine", "data": data}])["added"]
        else:
            made = holder.ok("/connection/add", **entry)
        return made["connection"], made["added"]

    mine, added = add_again()
    try:
        assert (mine == theirs, added) == (False, True)
        assert add_again() == (mine, False)
    finally:
        world.daemon.client.post("/connection/remove", connections=[mine, theirs])


def test_applying_and_temporary_connections_do_not_reveal_an_equal_one_out_of_sight(world: World) -> None:
    client = world.daemon.client
    data = {"type": "ssh", "host": "db.example", "user": "ci"}
    holder = create(world.daemon, "connection.write", "connection.read", connections=["mine*"])
    entries = [{"name": "mine", "data": data}, {"name": "mine again", "data": data}]
    first, second = holder.ok("/connection/apply", add=entries)["added"]
    assert first["connection"] != world.db
    assert (first["added"], second) == (True, {"connection": first["connection"], "added": False})
    client.post("/connection/remove", connections=[first["connection"]])
    kept = {"name": "theirs", "data": {**data, "port": 2222}, "temporary": True, "validate": False}
    theirs = client.post("/connection/add", **kept)["connection"]
    mine = holder.ok("/connection/add", **{**kept, "name": "mine"})
    assert (mine["added"], mine["connection"] == theirs) == (True, False)


@pytest.mark.parametrize(
    "sight", [{"connections": ["mine", "web"]}, {"categories": ["default"]}], ids=["connections", "categories"]
)
def test_applying_does_not_tell_a_category_out_of_sight_from_one_that_does_not_exist(
    world: World, sight: dict[str, list[str]]
) -> None:
    holder = create(world.daemon, "connection.write", "connection.read", "category.write", **sight)
    data = {"type": "ssh", "host": "mine.example", "user": "ci"}

    def answers(category: list[str]) -> list[Any]:
        bodies: list[dict[str, Any]] = [
            {"categories": [category]},
            {"add": [{"name": "mine", "data": data, "category": category}]},
            {"change": [{"connection": world.web, "category": category}]},
        ]
        sent = [holder.send("/connection/apply", **body) for body in bodies]
        return [(answer.status, answer.json) for answer in sent]

    for below in ([], ["lower"]):
        hidden, missing = answers(["default", "prod", *below]), answers(["default", "none", *below])
        assert hidden == missing
        assert {status for status, _ in hidden} == {403}
    made = holder.ok("/connection/apply", add=[{"name": "mine", "data": data, "category": ["default"]}])["added"]
    world.daemon.client.post("/connection/remove", connections=[made[0]["connection"]])


def test_the_audit_log_does_not_tell_a_token_the_names_of_what_it_named_and_does_not_see(world: World) -> None:
    holder = create(world.daemon, "shell.any", "connection.write", "audit.read", connections=["web"])
    for id in (world.db, world.root, NOBODY):
        assert holder.refused("/shell/exec", connection=id, command="echo a guess") == "unknown_connection"
        assert holder.refused("/connection/remove", connections=[id, world.web]) == "unknown_connection"
        assert holder.refused("/job/start", connection=id, command="id") == "scope_denied"
    assert holder.refused("/connection/update", connection=world.web, category=world.prod) == "unknown_category"
    holder.send("/shell/exec", connection=world.web, command="id")
    entries = holder.ok("/audit/query", token=holder.id)["entries"]
    names = {"connectionName", "connectionNames", "categoryName", "command"}
    told = [(entry.get("connection"), sorted(names & entry.keys())) for entry in entries]
    assert told[0] == (world.web, ["command", "connectionName"])
    assert {tuple(each) for _, each in told[1:]} == {()}
    steps = holder.ok("/audit/record", token=holder.id)["steps"]
    assert {name for step in steps for name in step["where"]} == {"web", world.web, world.db, world.root, NOBODY}
    of_the_owner = world.daemon.client.post("/audit/query", token=holder.id)["entries"]
    assert {entry.get("connectionName") for entry in of_the_owner} >= {"db", "web/root", "web"}


def test_a_connection_that_others_out_of_sight_run_over_is_not_removed(world: World) -> None:
    holder = create(world.daemon, "connection.write", connections=["web"])
    assert holder.refused("/connection/remove", connections=[world.web]) == "scope_denied"
    assert world.daemon.client.post("/connection/info", connections=[world.web, world.root])


def test_a_sealed_secret_is_sent_nowhere_else(world: World) -> None:
    reading = create(world.daemon, "connection.read", "connection.write")
    data = reading.ok("/connection/info", connections=[world.web])["infos"][0]["rawData"]
    assert "secret of web" not in json.dumps(data)
    thief = {**data, "host": "127.0.0.1"}
    assert reading.refused("/connection/add", name="thief", data=thief, validate=False) == "scope_denied"
    assert reading.refused("/connection/update", connection=world.web, data=thief) == "scope_denied"
    changed = [{"connection": world.web, "data": thief}]
    assert reading.refused("/connection/apply", add=[], change=changed, remove=[]) == "scope_denied"


def test_a_token_that_may_run_nothing_reaches_no_jobs_or_terminals_of_others(own_daemon: Daemon) -> None:
    client = own_daemon.client
    client.post("/shell/start", connection=LOCAL)
    job = client.post("/job/start", connection=LOCAL, command="cat", stdin="open")["job"]
    terminal = client.post("/terminal/open", connection=LOCAL)["terminal"]
    bound = create(own_daemon, "job", "terminal", "shell.argv")
    unbound = create(own_daemon, "job", "terminal", "shell.any")
    for id in (job, NOBODY):
        assert bound.refused("/job/input", job=id, data="x") == "unknown_job"
        assert bound.refused("/job/output", job=id, stdout=0, stderr=0) == "unknown_job"
    for id in (terminal, NOBODY):
        assert bound.refused("/terminal/input", terminal=id, data="id\n") == "unknown_terminal"
        assert bound.refused("/terminal/screen", terminal=id) == "unknown_terminal"
    assert bound.ok("/job/query", connectionFilter="*")["jobs"] == []
    assert bound.ok("/terminal/query")["terminals"] == []
    assert bound.refused("/terminal/open", connection=LOCAL) == "scope_denied", "a login shell runs anything"
    assert bound.refused("/job/orphans", connection=LOCAL) == "scope_denied"
    own = bound.ok("/job/start", connection=LOCAL, argv=["/bin/sleep", "600"])["job"]
    assert [one["job"] for one in bound.ok("/job/query", connectionFilter="*")["jobs"]] == [own]
    assert {one["job"] for one in unbound.ok("/job/query", connectionFilter="*")["jobs"]} == {job, own}
    assert unbound.ok("/terminal/query")["terminals"][0]["terminal"] == terminal
    for id in (job, own):
        client.post("/job/kill", job=id, signal="KILL")


def test_work_on_a_hidden_connection_is_answered_as_unknown_work(world: World) -> None:
    client = world.daemon.client
    client.post("/shell/start", connection=LOCAL)
    job = client.post("/job/start", connection=LOCAL, command="true")["job"]
    terminal = client.post("/terminal/open", connection=LOCAL, command="exec sleep 1000")["terminal"]
    holder = create(world.daemon, *ALL_OF, connections=["web"])
    for kind, id, paths in (
        ("job", job, ("info", "output", "wait", "kill", "remove")),
        ("terminal", terminal, ("screen", "output", "close", "ticket")),
    ):
        for path in paths:
            hidden, unknown = (holder.send(f"/{kind}/{path}", **{kind: one}) for one in (id, NOBODY))
            assert (hidden.status, hidden.code) == (unknown.status, f"unknown_{kind}")
            assert LOCAL not in json.dumps(hidden.json)


def test_limits_of_signers_are_told_for_visible_categories_alone(own_daemon: Daemon) -> None:
    owner = own_daemon.client
    owner.post("/ca/init", name="team")
    seen, hidden = (owner.post("/category/add", name=name, parent=ROOT_CATEGORY)["category"] for name in ("a", "b"))
    for category in (seen, hidden):
        owner.post("/ca/limit", name="team", category=category, principals=["a-name-of-a-person"])
    holder = create(own_daemon, "connection.read", categories=["a"])

    def categories(answer: Any) -> set[str | None]:
        return {limit["category"] for limit in answer["signers"][0]["limits"]}

    assert categories(owner.post("/ca/query")) == {None, seen, hidden}
    assert categories(holder.ok("/ca/query")) == {None, seen}


def test_an_error_on_the_way_names_nothing_out_of_sight(world: World, closed_port: int) -> None:
    client = world.daemon.client
    gateway = add(client, "far gateway", type="ssh", host="127.0.0.9", port=closed_port, user="ci")
    behind = add(client, "behind", type="ssh", host="behind.example", user="ci", gateway=gateway)
    ported = add(client, "ported", type="sshLocalTunnel", host=behind, remotePort=1)
    try:
        scopes = ("shell.any", "connection.read", "connection.write", "fs.read", "tunnel")
        blind = create(world.daemon, *scopes, connections=["behind/**"])
        seeing = create(world.daemon, *scopes, connections=["behind/**", "far gateway"])

        def texts(holder: Holder) -> list[str]:
            command = {"connection": behind, "command": "id", "start": True}
            bodies = {
                "/shell/exec": command,
                "/connection/login": {"connection": behind},
                "/shell/broadcast": {"connections": [behind], "command": "id", "start": True},
                "/fact/gather": {"connections": [behind]},
            }
            answers = [holder.send(path, **body).body.decode() for path, body in bodies.items()]
            run = holder.ok("/run/start", connections=[behind], command="id")["run"]
            holder.ok("/run/wait", run=run, wait=20)
            holder.ok("/connection/toggle", connection=ported, state=True)
            fault = eventually(
                lambda: holder.ok("/tunnel/query", connections=[ported])["tunnels"][0]["lastError"],
                "the tunnel tells no error",
            )
            holder.ok("/connection/toggle", connection=ported, state=False)
            return [
                *answers,
                str(fault),
                *(holder.send(path, run=run).body.decode() for path in ("/run/targets", "/run/output")),
            ]

        for text in texts(blind):
            assert "host_refused" in text
            assert [word for word in ("far gateway", "127.0.0.9", gateway) if word in text] == []
        assert all("far gateway: 127.0.0.9" in text for text in texts(seeing))
        assert "far gateway: 127.0.0.9" in str(client.post("/fact/gather", connections=[behind]))
    finally:
        client.post("/connection/remove", connections=[gateway])
