"""Plugins that authorise requests and ship the audit log are called for every endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from connmgr.api.app import GROUPS
from connmgr.client import LOCAL_MACHINE, Client, ClientError
from tests.api.wire import add, refused
from tests.daemon import Daemon
from tests.plugins.strangers import install

SOURCE = """
import json, os
from connmgr.errors import PolicyDenied
from connmgr.plugin import hookimpl

SEEN = os.environ["HOME"] + "/seen"

def note(kind, value):
    with open(SEEN, "a") as file:
        print(json.dumps([kind, value]), file=file)

@hookimpl
def connmgr_authorise(caller, action, subjects):
    about = sorted(subjects.connections), sorted(subjects.categories), list(map(str, subjects.paths))
    note("asked", [caller.name, action, *about, subjects.session])
    if os.path.exists(os.environ["HOME"] + "/raise"):
        raise ZeroDivisionError
    if action in open(os.environ["HOME"] + "/denied").read().split():
        raise PolicyDenied(f"{action} is not for you.")

@hookimpl
def connmgr_audit(entry):
    note("entry", entry)
    if entry["path"] == "/vault/lock":
        raise OSError("the collector is away")
"""

SSH = {"type": "ssh", "host": "build.example", "user": "ci"}
SUDO = {"type": "shellEnvironment", "elevated": True}


class Guarded:
    """A daemon with a plugin that refuses the actions named in a file, and records its hooks' arguments."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.client: Client = daemon.client
        self.deny()

    def deny(self, *actions: str) -> None:
        (self.daemon.home / "denied").write_text(" ".join(actions))
        (self.daemon.home / "seen").write_text("")

    def seen(self, kind: str) -> list[Any]:
        lines = map(json.loads, (self.daemon.home / "seen").read_text().splitlines())
        return [value for found, value in lines if found == kind]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    site, home = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("guarded")
    install(site, SOURCE, "connmgr-guard")
    (home / "denied").touch()
    running = Daemon(home, environment={"PYTHONPATH": str(site)})
    yield Guarded(running)
    running.stop()


def test_an_action_that_a_plugin_refuses_has_no_effect(guarded: Guarded) -> None:
    guarded.client.shell.start(LOCAL_MACHINE)
    guarded.deny("shell.exec")
    marker = guarded.daemon.home / "marker"
    assert (
        refused(guarded.client, "/shell/exec", connection=LOCAL_MACHINE, command=f"touch {marker}").code
        == "policy_denied"
    )
    assert not marker.exists()
    (entry,) = guarded.seen("entry")
    assert (entry["path"], entry["status"], entry["code"]) == ("/shell/exec", 403, "policy_denied")
    guarded.deny()
    assert guarded.client.shell.exec(LOCAL_MACHINE, "echo yes").stdout == "yes"


def test_a_plugin_is_given_the_session_name(guarded: Guarded) -> None:
    guarded.deny()
    guarded.client.shell.start(LOCAL_MACHINE, session="build")
    guarded.client.fs.list(LOCAL_MACHINE, "/", session="build")
    guarded.client.shell.stop(LOCAL_MACHINE, all=True)
    assert [(asked[1], asked[-1]) for asked in guarded.seen("asked")] == [
        ("shell.start", "build"),
        ("fs.list", "build"),
        ("shell.stop", None),
    ]
    assert [entry.get("shell") for entry in guarded.seen("entry")] == ["build", "build", None]


def test_a_terminal_is_authorised_as_its_connection(guarded: Guarded) -> None:
    guarded.deny()
    terminal = guarded.client.terminal.open(LOCAL_MACHINE, command="cat")
    guarded.deny("terminal.input", "terminal.screen", "terminal.attach")
    assert refused(guarded.client, "/terminal/input", terminal=terminal, data="x").code == "policy_denied"
    assert refused(guarded.client, "/terminal/screen", terminal=terminal).code == "policy_denied"
    with pytest.raises(ClientError) as denied:
        guarded.client.terminal.attach(terminal)
    assert denied.value.code == "policy_denied"
    assert [asked[2] for asked in guarded.seen("asked")] == [[LOCAL_MACHINE]] * 3
    guarded.deny()
    guarded.client.terminal.close(terminal)


def test_subjects_include_every_connection_of_the_chain(guarded: Guarded) -> None:
    gateway = add(guarded.client, "gateway", **SSH)
    host = add(guarded.client, "host", **{**SSH, "host": "inner.example", "gateway": gateway})
    root = add(guarded.client, "root", **SUDO, host=host)
    guarded.deny("fs.write", "connection.add")
    assert refused(guarded.client, "/fs/write", connection=root, blob=root, path="/etc/motd").code == "policy_denied"
    (asked,) = guarded.seen("asked")
    assert asked[1:] == ["fs.write", sorted([gateway, host, root]), [], ["b'/etc/motd'"], None]
    guarded.deny("connection.add")
    data = {**SUDO, "host": {"storeId": host.upper()}}
    assert refused(guarded.client, "/connection/add", name="x", data=data, validate=False).code == "policy_denied"
    assert guarded.seen("asked")[0][2] == sorted([gateway, host])


def test_a_broadcast_is_authorised_once_as_a_whole(
    guarded: Guarded,
) -> None:
    client, marker = guarded.client, guarded.daemon.home / "ran"
    guarded.deny()
    inner = [
        add(client, f"many{number}", type="shellEnvironment", host=LOCAL_MACHINE, commands=[f"N={number}"])
        for number in range(3)
    ]
    subjects = sorted([LOCAL_MACHINE, *inner])
    for selection in ({"connectionFilter": "**/many?"}, {"connections": [*inner, inner[0]]}):
        guarded.deny("shell.broadcast")
        assert refused(client, "/shell/broadcast", **selection, command=f"touch {marker}").code == "policy_denied"
        assert [asked[1:3] for asked in guarded.seen("asked")] == [["shell.broadcast", subjects]]
        (entry,) = guarded.seen("entry")
        assert (entry["code"], entry["connections"][:3]) == ("policy_denied", inner)
    assert not marker.exists()
    guarded.deny()
    assert len(list(client.shell.broadcast("true", inner))) == 3
    assert [asked[1:3] for asked in guarded.seen("asked")] == [["shell.broadcast", subjects]]


def test_the_second_vocabulary_is_authorised_too(guarded: Guarded) -> None:
    guarded.deny("connection.info")
    assert refused(guarded.client, "/store/info", stores=[LOCAL_MACHINE]).code == "policy_denied"
    assert guarded.seen("asked")[0][2] == [LOCAL_MACHINE]


def test_any_exception_of_a_plugin_refuses_the_request(guarded: Guarded) -> None:
    broken = guarded.daemon.home / "raise"
    broken.touch()
    try:
        assert refused(guarded.client, "/daemon/version").code == "internal"
    finally:
        broken.unlink()
    assert guarded.client.daemon.version().build


def test_a_plugin_that_fails_at_an_audit_entry_does_not_stop_the_answer(guarded: Guarded) -> None:
    guarded.client.post("/vault/lock")
    assert "failed to take note of entry" in guarded.daemon.stderr()


OF_OTHERS = {
    "/fs/archive": "fs.read",
    "/fs/checksum": "fs.read",
    "/fs/search": "fs.read",
    "/fs/extract": "fs.write",
    "/fs/upload": "fs.write",
    "/fs/glob": "fs.list",
    "/fs/ticket": "fs.read",
    "/fs/download": "fs.read",
}
"""Endpoints whose action is named after another endpoint, because they do the same in another way."""


def test_every_endpoint_s_action_is_named_after_it_or_after_what_it_does() -> None:
    for group in GROUPS:
        for endpoint in group.endpoints:
            named = endpoint.path.partition("/<")[0].strip("/").replace("/", ".")
            assert endpoint.action.name in {named, f"{named}.read", OF_OTHERS.get(endpoint.path)}, endpoint.path


def test_a_batch_is_authorised_by_entry_and_one_refusal_stores_nothing(guarded: Guarded) -> None:
    client = guarded.client
    guarded.deny()
    gateway = add(client, "batch gateway", **{**SSH, "host": "batch.example"})
    over = {**SSH, "host": "hop.example", "gateway": gateway}
    batch = {
        "add": [
            {"label": "hop", "name": "batch hop", "data": over, "category": ["batch"]},
            {"name": "batch root", "data": {**SUDO, "host": {"label": "hop"}}},
        ],
        "change": [{"connection": gateway, "name": "renamed"}],
        "remove": [gateway],
    }
    root = client.category.query("*")[0]
    for action in ("connection.apply", "category.add", "connection.add", "connection.update", "connection.remove"):
        guarded.deny(action)
        assert refused(client, "/connection/apply", **batch).code == "policy_denied"
        assert client.connection.query("batch*") == [gateway]
    assert client.category.query("batch") == []
    assert [asked[1:4] for asked in guarded.seen("asked")] == [
        ["connection.apply", [], []],
        ["category.add", [], [root]],
        ["connection.add", [gateway], [root]],
        ["connection.add", [gateway], []],
        ["connection.update", [gateway], []],
        ["connection.remove", [gateway], []],
        ["connection.query", [], []],
        ["category.query", [], []],
    ]
