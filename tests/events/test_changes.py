"""Each kind of change is told as it happens, on a real daemon."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from connmgr.client import Client
from connmgr.contract.event import CHANGES
from tests.api.wire import LOCAL, ROOT_CATEGORY, add, token_of
from tests.daemon import Daemon
from tests.events.listening import Line, Listening
from tests.plugins.oneself import ssh_server
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd
from tests.rights.wire import create


@pytest.fixture
def all_events(watched: Daemon) -> Iterator[Listening]:
    with Listening(watched.url, token_of(watched)) as listening:
        yield listening


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    with ssh_server(tmp_path) as running:
        yield running


def test_connections_and_categories(all_events: Listening, client: Client) -> None:
    fields = {"type": "ssh", "host": "host.example"}
    id = add(client, "web", **fields)
    assert (
        all_events.line().items() >= {"kind": "connection", "change": "added", "connection": id, "name": "web"}.items()
    )
    assert client.post("/connection/add", name="same", data=fields)["added"] is False
    root = add(client, "root", type="shellEnvironment", host=id, elevated=True)
    assert all_events.until("connection", "added", connection=root)["name"] == "web/root"
    client.post("/connection/update", connection=id, name="www")
    names = {line["connection"]: line["name"] for line in (all_events.line(), all_events.line())}
    assert names == {id: "www", root: "www/root"}
    category = client.post("/category/add", name="fleet", parent=ROOT_CATEGORY)["category"]
    assert all_events.line().items() >= {"kind": "category", "change": "added", "id": category}.items()
    client.post("/category/add", name="fleet", parent=ROOT_CATEGORY)
    client.post("/connection/update", connection=id, category=category)
    moved = {line["connection"] for line in (all_events.line(), all_events.line()) if line["change"] == "changed"}
    assert moved == {id, root}
    client.post("/category/remove", categories=[category], removeChildrenCategories=False, removeContents=False)
    told = {(line["kind"], line["change"], line["name"]) for line in [all_events.line() for _ in range(3)]}
    assert told == {
        ("category", "removed", "fleet"),
        ("connection", "changed", "www"),
        ("connection", "changed", "www/root"),
    }
    client.post("/connection/remove", connections=[id])
    gone = {line["connection"] for line in (all_events.line(), all_events.line()) if line["change"] == "removed"}
    assert gone == {id, root}


def test_a_batch_tells_each_of_its_changes(all_events: Listening, client: Client) -> None:
    one = add(client, "one", type="ssh", host="one.example")
    all_events.line()
    client.post(
        "/connection/apply",
        categories=[["batch"]],
        add=[{"name": "two", "data": {"type": "ssh", "host": "two.example"}, "category": ["batch"]}],
        change=[{"connection": one, "name": "first"}],
        remove=[],
    )
    told = {(line["kind"], line["change"], line["name"]) for line in [all_events.line() for _ in range(3)]}
    assert told == {
        ("category", "added", "batch"),
        ("connection", "added", "two"),
        ("connection", "changed", "first"),
    }
    client.post("/connection/apply", categories=[], add=[], change=[], remove=[one])
    assert all_events.line().items() >= {"change": "removed", "connection": one}.items()


@pytest.mark.needs("sshd")
def test_a_link_its_loss_and_its_host_key(all_events: Listening, client: Client, server: Sshd) -> None:
    fields = ssh_fields(server, server.user)
    id = client.connection.add("far", {"type": "ssh", **fields})
    client.shell.start(id)
    all_events.until("link", "up", connection=id)
    all_events.until("shell", "started", connection=id)
    server.stop()
    lost = [all_events.line(), all_events.line()]
    assert {(line["kind"], line["change"], line["connection"]) for line in lost} == {
        ("link", "lost", id),
        ("shell", "lost", id),
    }
    server.start()
    assert client.shell.exec(id, "echo back", start=True).stdout == "back"
    told = all_events.lines_until("shell", "started", connection=id)
    assert [(line["kind"], line["change"]) for line in told] == [
        ("shell", "ended"),
        ("link", "up"),
        ("shell", "started"),
    ]
    host = client.post("/connection/info", connections=[id], dialled=True)["infos"][0]["dialled"]["hosts"][0]
    client.post("/shell/stop", connection=id, all=True)
    told = all_events.lines_until("link", "closed", connection=id)
    assert ("shell", "ended") in [(line["kind"], line["change"]) for line in told]
    client.post("/hostkey/forget", connection=id)
    assert all_events.until("hostkey", "forgotten")["connection"] == id
    assert host["port"] == server.port


def test_a_shell_is_busy_while_its_command_takes_long(all_events: Listening, client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client.shell.start(LOCAL, session="long")
    all_events.until("shell", "started", session="long")
    assert client.shell.exec(LOCAL, "echo short", session="long").stdout == "short"
    command = f"until [ -e {gate} ]; do sleep 0.05; done"
    with client.clone() as other, ThreadPoolExecutor(1) as thread:
        running = thread.submit(other.shell.exec, LOCAL, command, session="long")
        all_events.until("shell", "busy", session="long")
        gate.touch()
        all_events.until("shell", "idle", session="long")
        running.result()
    client.post("/shell/stop", connection=LOCAL, session="long")
    all_events.until("shell", "ended", session="long")


def test_the_end_of_a_job_is_told_though_nobody_asks(all_events: Listening, client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    client.shell.start(LOCAL)
    job = client.jobs.start(LOCAL, f"until [ -e {gate} ]; do sleep 0.05; done; exit 3", name="gated")
    started = all_events.until("job", "started", id=job.id)
    assert (started["connection"], started["name"]) == (LOCAL, "gated")
    gate.touch()
    ended = all_events.until("job", "exited", id=job.id)
    assert (ended["state"], ended["exitCode"]) == ("exited", 3)
    job.remove()
    all_events.until("job", "removed", id=job.id)


def test_a_terminal_and_its_clients(all_events: Listening, client: Client) -> None:
    from tests.streams.wire import Stream

    id = client.post("/terminal/open", connection=LOCAL, command="read line; exit 4")["terminal"]
    assert all_events.until("terminal", "opened", id=id).items() >= {"connection": LOCAL, "clients": 0}.items()
    stream = Stream(client.base_url, f"/terminal/attach/{id}", client.session_token)
    assert all_events.until("terminal", "clients", id=id)["clients"] == 1
    stream.close()
    assert all_events.until("terminal", "clients", id=id)["clients"] == 0
    client.post("/terminal/input", terminal=id, data="\r")
    assert all_events.until("terminal", "exited", id=id).items() >= {"state": "exited", "exitCode": 4}.items()


def test_a_tunnel(all_events: Listening, client: Client) -> None:
    id = add(client, "service", type="customService", host=LOCAL, remotePort=1, localPort=0)
    client.connection.toggle(id, True)
    assert [all_events.until("tunnel", state, connection=id)["state"] for state in ("connecting", "open")] == [
        "connecting",
        "open",
    ]
    client.connection.toggle(id, False)
    all_events.until("tunnel", "stopped", connection=id)


def test_an_approval_and_a_token(all_events: Listening, watched: Daemon, client: Client) -> None:
    holder = create(watched, "shell.any", name="asks", rules=[{"effect": "ask", "text": "."}])
    created = all_events.until("token", "created", id=holder.id)
    assert created["name"] == "asks"
    body = {"connection": LOCAL, "command": "echo the secret", "start": True}
    id = holder.send("/shell/exec", **body).json["approval"]
    requested = all_events.until("approval", "requested", id=id)
    assert requested.items() >= {"state": "pending", "connections": [LOCAL], "token": holder.id}.items()
    client.approval.decide(id, "once")
    assert all_events.until("approval", "decided", id=id)["state"] == "once"
    assert holder.ok("/shell/exec", **body)["stdout"] == "the secret"
    assert all_events.until("approval", "used", id=id)["state"] == "used"
    client.token.renew(holder.id, 900)
    assert all_events.until("token", "renewed", id=holder.id)["expires"] > created["expires"]
    client.token.revoke(holder.id)
    all_events.until("token", "revoked", id=holder.id)


def test_no_event_has_a_command_or_a_secret(watched: Daemon, client: Client) -> None:
    with Listening(watched.url, token_of(watched)) as listening:
        client.shell.start(LOCAL)
        id = add(client, "sealed", type="ssh", host="sealed.example", password="hidden-word")
        job = client.jobs.start(LOCAL, ": hidden-word")
        terminal = client.post("/terminal/open", connection=LOCAL, command=": hidden-word")["terminal"]
        client.connection.remove([id])
        lines: list[Line] = listening.lines_until("connection", "removed", connection=id)
    assert {line.get("id") for line in lines} >= {job.id, terminal}
    assert "hidden-word" not in str(lines)
    assert all(line["change"] in CHANGES[line["kind"]] for line in lines)
