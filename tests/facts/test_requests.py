"""Labels, facts and conditions at a daemon: in requests, for tokens, with plugins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connmgr.client import Client, ClientError
from tests.api.wire import LOCAL, NOBODY
from tests.daemon import Daemon
from tests.plugins.strangers import install
from tests.rights.wire import create

PLUGIN = """
import os
from connmgr.plugin import FactProgram, hookimpl

@hookimpl
def connmgr_fact_programs():
    script = "echo role=db; echo files=3"
    if os.path.exists(os.environ["HOME"] + "/floods"):
        script = "yes a=b"
    if os.path.exists(os.environ["HOME"] + "/much"):
        script = "seq 3500 | while read -r n; do echo k$n=" + 200 * "x" + "; done"
    return [FactProgram("acme", script)]
"""
SH = {"type": "local", "shell": "/bin/sh"}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with a plugin that gathers facts."""
    site, home = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("told")
    install(site, PLUGIN, "connmgr-acme")
    daemon = Daemon(home, environment={"PYTHONPATH": str(site)})
    daemon.client.fact.gather([LOCAL])
    yield daemon
    daemon.stop()


def found(client: Client, where: str) -> list[str]:
    return client.connection.query(where=where)


def test_facts_are_gathered_stored_and_chosen_by(told: Daemon) -> None:
    [one] = told.client.fact.query([LOCAL])
    assert one.name == ["local machine"]
    assert {"os.id", "arch", "memory.total", "acme.role"} < one.facts.keys()
    assert one.gathered.keys() == {"system", "package", "acme"}
    assert not any(name.startswith("package.") for name in one.facts)
    assert (one.facts["acme.role"], one.facts["acme.files"]) == ("db", 3)
    assert found(told.client, f"os.id={one.facts['os.id']} and acme.files>2 and memory.total>1M") == [LOCAL]
    assert found(told.client, "acme.files>=3 and not acme.role~d?") == []
    [chosen] = told.client.fact.query(where="acme.role=db", names=["acme.*", "os.id"])
    assert chosen.facts.keys() == {"acme.role", "acme.files", "os.id"}


def test_an_answer_with_many_facts_ends_before_it_is_too_large(told: Daemon) -> None:
    ids = [
        told.client.connection.add(f"many{number}", {**SH, "shell": f"/bin{'/.' * number}/sh"}) for number in range(16)
    ]
    (told.home / "much").touch()
    try:
        assert all(one.error is None for one in told.client.fact.gather(ids, parts=["acme"]))
        answer = told.client.post("/fact/query", connections=ids, names=["acme.k*"])
        assert (answer["total"], len(answer["machines"])) == (16, 12)
        assert [one.connection for one in told.client.fact.query(ids, names=["acme.k*"])] == ids
        assert len(told.client.post("/fact/query", connections=ids, names=["acme.k1"])["machines"]) == 16
    finally:
        (told.home / "much").unlink()
        told.client.connection.remove(ids)


def test_a_part_that_fails_leaves_what_was_known(told: Daemon) -> None:
    (told.home / "floods").touch()
    try:
        [outcome] = told.client.fact.gather([LOCAL], parts=["acme"])
        [other] = told.client.fact.gather([LOCAL], parts=["system"])
    finally:
        (told.home / "floods").unlink()
    assert outcome.facts is None
    assert outcome.error is not None
    assert outcome.error["code"] == "facts_failed"
    assert "printed more than 1 MiB" in outcome.error["message"]
    assert other.error is None
    assert found(told.client, "acme.role=db") == [LOCAL]


def test_machines_that_cannot_be_asked_have_an_error(told: Daemon, closed_port: int) -> None:
    client = told.client
    away = client.connection.add("away", {"type": "ssh", "host": "127.0.0.1", "port": closed_port, "user": "nobody"})
    box = client.connection.add("box", SH)
    outcomes = {one.connection: one for one in client.fact.gather([away, box, NOBODY], parts=["system"])}
    errors = {id: one.error and one.error["code"] for id, one in outcomes.items()}
    assert errors == {away: "host_refused", box: None, NOBODY: "unknown_connection"}
    temporary = client.connection.add("temporary", {"type": "local"}, temporary=True)
    [outcome] = client.fact.gather([temporary])
    assert outcome.error is not None
    assert outcome.error["code"] == "invalid_request"
    with pytest.raises(ClientError, match="Unknown part 'nothing'; the parts are system, package, acme"):
        client.fact.gather([box], parts=["nothing"])
    with pytest.raises(ClientError, match=f"Unknown connection: {NOBODY}"):
        client.fact.query([NOBODY])


def test_labels_go_through_every_request(told: Daemon) -> None:
    client = told.client
    id = client.connection.add("labelled", {**SH, "shell": "/bin/dash"}, labels={"env": "prod", "note": 'a "b" c'})
    assert client.connection.info([id])[0].labels == {"env": "prod", "note": 'a "b" c'}
    assert found(client, "env=prod and note='a \"b\" c'") == [id]
    assert client.connection.label([id, LOCAL], {"tier": "1"}, ["note"]) == [id, LOCAL]
    client.connection.label([LOCAL], remove=["tier"])
    client.connection.update(id, name="renamed")
    assert client.connection.info([id])[0].labels == {"env": "prod", "tier": "1"}
    lines = list(client.shell.broadcast("echo $((6 * 7))", where="env=prod and tier>=1"))
    assert [(one.connection, one.result.stdout) for one in lines if one.result] == [(id, "42")]
    added = client.connection.apply(
        add=[{"name": "applied", "data": {**SH, "shell": "/bin/bash"}, "labels": {"env": "test"}}],
        change=[{"connection": id, "labels": {}}],
    ).added
    assert client.connection.info([id])[0].labels == {}
    assert found(client, "env") == [added[0][0]]
    with pytest.raises(ClientError, match=r"labels\.Env: Not 1 to 63 of the letters"):
        client.connection.label([id], {"Env": "prod"})
    with pytest.raises(ClientError, match=r"labels\.env: Has control characters"):
        client.connection.label([id], {"env": "a\nb"})
    with pytest.raises(ClientError, match="remove: env is also among `labels`"):
        client.connection.label([id], {"env": "a"}, ["env"])
    with pytest.raises(ClientError, match="where: At character 5: Expected a value"):
        client.connection.query(where="env=")


def test_a_token_sees_labels_and_facts_of_what_it_sees(told: Daemon) -> None:
    client = told.client
    mine = client.connection.add("mine", {**SH, "shell": "/usr/bin/sh"}, labels={"owner": "me"})
    theirs = client.connection.add("theirs", {**SH, "shell": "/usr/bin/bash"}, labels={"owner": "me"})
    client.fact.gather([mine, theirs], parts=["system"])
    reader = create(told, "connection.read", connections=["mine"])
    assert reader.ok("/connection/query", categoryFilter="*", connectionFilter="*", typeFilter="*", where="owner=me")[
        "found"
    ] == [mine]
    answer = reader.ok("/fact/query", where="owner=me and arch")
    assert [one["connection"] for one in answer["machines"]] == [mine]
    assert answer["total"] == 1
    assert reader.refused("/fact/query", connections=[theirs]) == "unknown_connection"
    assert reader.refused("/fact/gather", connections=[mine]) == "scope_denied"
    assert reader.refused("/connection/label", connections=[mine], labels={"a": "b"}) == "scope_denied"
    writer = create(told, "connection.write", connections=["mine"])
    assert writer.refused("/connection/label", connections=[theirs], labels={"a": "b"}) == "unknown_connection"
    assert writer.ok("/connection/label", connections=[mine], labels={"a": "b"}) == {"changed": [mine]}
    assert [one["facts"] > 5 for one in writer.ok("/fact/gather", where="owner", parts=["system"])["gathered"]] == [
        True
    ]


def test_facts_end_when_the_connection_may_lead_elsewhere(told: Daemon) -> None:
    client = told.client
    id = client.connection.add("moving", {**SH, "shell": "/usr/bin/dash"})
    client.fact.gather([id], parts=["system"])
    client.connection.update(id, name="moved")
    assert client.fact.query([id])[0].facts
    client.connection.update(id, data={**SH, "shell": "/usr//bin/dash"})
    assert client.fact.query([id])[0].facts == {}
