"""Secrets from elsewhere as an attacker with a token would use them: to run commands, and to read what others may."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import ClientError
from connmgr.rights.scopes import SCOPES
from tests.api.wire import add
from tests.daemon import Daemon
from tests.rights.wire import Holder, create

DAEMON_MACHINE = "f0ec68aa-63f5-405c-b178-9a4454556d6b"
EVIL = {"type": "ssh", "host": "127.0.0.1", "port": 9, "user": "x"}


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A file that is there once a command was run."""
    return tmp_path / "was-run"


def reference(trap: Path) -> dict[str, Any]:
    return {"from": {"source": "command", "argv": ["sh", "-c", f"touch {trap}; echo hunter2"]}}


def forms(trap: Path) -> list[dict[str, Any]]:
    """Return data with a command: as a password, within a field, within another source, in another type."""
    within = {"from": {"source": "vault", "url": "https://127.0.0.1:9", "path": "a", "token": reference(trap)}}
    return [
        {**EVIL, "password": reference(trap)},
        {**EVIL, "identity": {"key": reference(trap)}},
        {**EVIL, "password": within},
        {"type": "shellEnvironment", "host": DAEMON_MACHINE, "elevated": True, "password": reference(trap)},
        {**EVIL, "password": {"from": {"source": "envFile", "file": "/root/.env", "name": "A"}}},
        {**EVIL, "password": {"from": {"source": "pass", "entry": "a"}}},
    ]


def everything(daemon: Daemon) -> Holder:
    return create(daemon, *SCOPES)


def test_no_token_stores_a_secret_from_elsewhere(clean_daemon: Daemon, trap: Path) -> None:
    holder = everything(clean_daemon)
    below = holder.create(*SCOPES)
    victim = add(clean_daemon.client, "victim", **EVIL)
    for data in forms(trap):
        for who in (holder, below):
            ways: list[tuple[str, Mapping[str, Any]]] = [
                ("/connection/add", {"name": "evil", "data": data}),
                ("/connection/add", {"name": "evil", "data": data, "validate": True}),
                ("/connection/add", {"name": "evil", "data": data, "temporary": True}),
                ("/connection/apply", {"add": [{"name": "evil", "data": data}], "change": [], "remove": []}),
            ]
            if data["type"] == "ssh":
                ways += [
                    ("/connection/update", {"connection": victim, "data": data}),
                    ("/connection/update", {"connection": victim, "data": data, "validate": True}),
                    (
                        "/connection/apply",
                        {"add": [], "change": [{"connection": victim, "data": data}], "remove": []},
                    ),
                ]
            for path, body in ways:
                assert who.refused(path, **body) == "scope_denied", (path, body)
        checked = holder.ok("/token/check", path="/connection/add", request={"name": "evil", "data": data})
        assert checked["effect"] == "deny"
    assert not trap.exists()
    [info] = clean_daemon.client.post("/connection/info", connections=[victim])["infos"]
    assert "password" not in info["rawData"]


def test_no_token_leads_a_fetched_secret_to_a_host_of_its_own(clean_daemon: Daemon, trap: Path) -> None:
    """Not even one that may decrypt what the vault keeps."""
    client, holder = clean_daemon.client, everything(clean_daemon)
    gateway = add(client, "gateway", type="ssh", host="gateway.example", user="ci")
    add(client, "root", type="shellEnvironment", elevated=True, host=gateway, password=reference(trap))
    target = add(client, "target", type="ssh", host="target.example", user="ci", password=reference(trap))
    evil = {"connection": gateway, "data": EVIL}
    assert holder.refused("/connection/update", **evil) == "scope_denied"
    assert holder.refused("/connection/apply", add=[], change=[evil], remove=[]) == "scope_denied"
    # Of the connection itself it may replace all data, and then the reference is gone; it cannot send it back.
    shown = holder.ok("/connection/info", connections=[target])["infos"][0]["rawData"]
    assert shown["password"] == reference(trap)
    led = {**shown, "host": "127.0.0.1"}
    assert holder.refused("/connection/update", connection=target, data=led) == "scope_denied"
    holder.ok("/connection/update", connection=target, data={name: led[name] for name in led if name != "password"})
    shown = client.post("/connection/info", connections=[target])["infos"][0]["rawData"]
    assert shown.get("password") is None
    assert not trap.exists()


def test_a_name_needs_no_more_than_before(clean_daemon: Daemon, trap: Path) -> None:
    holder = create(clean_daemon, "connection.read", "connection.write")
    target = add(clean_daemon.client, "target", type="ssh", host="target.example", password=reference(trap))
    holder.ok("/connection/update", connection=target, name="renamed")
    holder.ok("/connection/remove", connections=[target])
    assert not trap.exists()


def test_a_token_learns_nothing_of_the_daemon_s_machine_by_a_failure(clean_daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "secret-directory" / "a.env"
    data = {**EVIL, "password": {"from": {"source": "envFile", "file": str(file), "name": "A"}}}
    target = add(clean_daemon.client, "target", **data)
    refused = create(clean_daemon, "connection.read", "shell.any").send("/shell/start", connection=target)
    assert (refused.status, refused.code) == (500, "secret_unavailable")
    assert "envFile" in refused.json["error"]["message"]
    assert "secret-directory" not in refused.body.decode()
    with pytest.raises(ClientError, match=r"cannot open .*secret-directory.*No such file"):
        clean_daemon.client.post("/shell/start", connection=target)


def test_the_owner_s_own_data_are_checked_when_they_are_stored(clean_daemon: Daemon) -> None:
    for source, why in [
        ({"source": "nonesuch"}, "data.password.from: Unknown secret source|Unknown secret source: nonesuch"),
        ({"source": "command", "argv": "id"}, "argv"),
        ({"source": "pass"}, "entry"),
    ]:
        with pytest.raises(ClientError, match=why) as refusal:
            clean_daemon.client.post("/connection/add", name="a", data={**EVIL, "password": {"from": source}})
        assert refusal.value.code == "invalid_request"


def test_a_token_for_a_server_is_sealed_and_never_shown(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    source = {"source": "vault", "url": "https://127.0.0.1:9", "path": "a", "token": "hvs.hunter2"}
    data = {**EVIL, "password": {"from": source}}
    target = add(client, "target", **data)
    [info] = client.post("/connection/info", connections=[target])["infos"]
    stored = info["rawData"]["password"]["from"]
    assert stored["token"].keys() == {"encryptedToken", "secret"}
    assert "hunter2" not in str(info)
    # The same data are the same connection, which takes opening the token within; a token may not find out.
    assert client.post("/connection/add", name="again", data=data)["connection"] == target
    other = {**data, "password": {"from": {**source, "token": "hvs.other"}}}
    assert client.post("/connection/add", name="other", data=other)["connection"] != target
