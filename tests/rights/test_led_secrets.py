"""Secrets that a token may not open, and that changes of its own would lead to a host of its choice."""

from __future__ import annotations

from typing import Any

import pytest

from connmgr.client import Client, ClientError
from connmgr.vault import Vault
from connmgr.vault.names import Elevation
from tests.api.wire import DEFAULT_CATEGORY, ROOT_CATEGORY, add
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.rights.wire import Holder, create

WRITES = ("connection.read", "connection.write")
EVIL = {"type": "ssh", "host": "evil.example", "user": "x"}
PASSPHRASE = "a long passphrase"


@pytest.fixture
def gateway(clean_daemon: Daemon) -> str:
    return add(clean_daemon.client, "gateway", type="ssh", host="gateway.example", user="ci")


def applied(holder: Holder, *, add: Any = (), change: Any = ()) -> Any:
    return holder.send("/connection/apply", add=list(add), change=list(change), remove=[])


def requires_decrypting(daemon: Daemon, connection: str, data: dict[str, Any]) -> None:
    """Assert that only a token with ``secret.decrypt`` gives a connection these data."""
    holder = create(daemon, *WRITES)
    path = {"path": "/connection/update", "request": {"connection": connection, "data": data}}
    assert holder.ok("/token/check", **path)["effect"] == "deny"
    assert holder.refused("/connection/update", connection=connection, data=data) == "scope_denied"
    assert applied(holder, change=[{"connection": connection, "data": data}]).code == "scope_denied"
    [info] = daemon.client.post("/connection/info", connections=[connection])["infos"]
    assert info["rawData"]["host"] == "gateway.example"
    create(daemon, *WRITES, "secret.decrypt").ok("/connection/update", connection=connection, data=data)


def test_a_connection_below_a_sealed_secret_is_not_led_elsewhere(clean_daemon: Daemon, gateway: str) -> None:
    over = {"type": "shellEnvironment", "elevated": True, "host": {"storeId": gateway}, "password": "typed there"}
    add(clean_daemon.client, "root", **over)
    requires_decrypting(clean_daemon, gateway, EVIL)


@pytest.mark.parametrize("of", ["connection", "category"])
def test_a_connection_below_a_password_for_sudo_is_not_led_elsewhere(
    clean_daemon: Daemon, gateway: str, of: str
) -> None:
    client = clean_daemon.client
    prod = client.category.add("prod", ROOT_CATEGORY)
    box = add(client, "box", prod, type="docker", host={"storeId": gateway}, containerName="box")
    client.post("/secret/sudo", **{of: {"connection": box, "category": prod}[of]}, password="typed there")
    requires_decrypting(clean_daemon, gateway, EVIL)


def test_a_name_and_data_without_a_secret_above_need_no_more_than_writing(clean_daemon: Daemon, gateway: str) -> None:
    holder = create(clean_daemon, *WRITES)
    add(clean_daemon.client, "box", type="docker", host={"storeId": gateway}, containerName="box")
    holder.ok("/connection/update", connection=gateway, data=EVIL)
    over = {"type": "shellEnvironment", "elevated": True, "host": {"storeId": gateway}, "password": "typed there"}
    add(clean_daemon.client, "root", **over)
    holder.ok("/connection/update", connection=gateway, name="another name")


def test_a_connection_gets_no_password_by_what_it_is_in(clean_daemon: Daemon) -> None:
    """Without a category it gets that of the connection that it is in."""
    client = clean_daemon.client
    prod = client.category.add("prod", ROOT_CATEGORY)
    web = add(client, "web", prod, type="ssh", host="web.example", user="ci")
    client.post("/secret/sudo", category=prod, password="of prod")
    within = {"type": "chroot", "host": {"storeId": web}, "directory": "/home/attacker"}
    holder = create(clean_daemon, *WRITES, "shell.any")
    assert holder.refused("/connection/add", name="x", data=within, validate=False) == "scope_denied"
    assert applied(holder, add=[{"name": "x", "data": within}]).code == "scope_denied"
    labelled = {"type": "shellEnvironment", "host": {"label": "l"}}
    both = [{"label": "l", "name": "x", "data": within}, {"name": "y", "data": labelled}]
    assert applied(holder, add=both).code == "scope_denied"
    holder.ok("/connection/add", name="x", data=within, category=DEFAULT_CATEGORY, validate=False)


def test_removing_a_category_moves_no_connection_under_a_password(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    holder = create(clean_daemon, *WRITES, "category.write")
    mine = holder.ok("/category/add", name="mine", parent=ROOT_CATEGORY)["category"]
    evil = holder.ok("/connection/add", name="evil", data=EVIL, category=mine, validate=False)["connection"]
    client.post("/secret/sudo", category=DEFAULT_CATEGORY, password="of default")
    try:
        body = {"categories": [mine], "removeChildrenCategories": True}
        assert holder.refused("/category/remove", **body, removeContents=False) == "scope_denied"
        assert client.post("/secret/sudo", connection=evil) == {}
        holder.ok("/category/remove", **body, removeContents=True)
    finally:
        client.post("/secret/sudo", category=DEFAULT_CATEGORY, password=None)


def test_the_password_of_a_category_is_set_by_who_sees_everything(clean_daemon: Daemon) -> None:
    client = clean_daemon.client
    prod = client.category.add("prod", ROOT_CATEGORY)
    web = add(client, "web", prod, type="ssh", host="web.example", user="ci")
    add(client, "db", prod, type="ssh", host="db.example", user="ci")
    holder = create(clean_daemon, *WRITES, connections=["web"])
    for category in (prod, ROOT_CATEGORY):
        for password in ("mine", None):
            assert holder.refused("/secret/sudo", category=category, password=password) == "scope_denied"
    assert holder.ok("/secret/sudo", category=prod) == {}
    assert holder.ok("/secret/sudo", connection=web, password="mine") == {"connection": web}
    assert create(clean_daemon, *WRITES).ok("/secret/sudo", category=prod, password="x") == {"category": prod}


@pytest.mark.parametrize("below", [True, False])
def test_whoever_has_unlocked_nothing_leads_no_password_for_sudo_elsewhere(
    start_daemon: StartDaemon, below: bool
) -> None:
    daemon = start_daemon()
    client = daemon.client
    gateway = add(client, "gateway", type="ssh", host="gateway.example", user="ci")
    box = add(client, "box", type="docker", host={"storeId": gateway}, containerName="box")
    client.post("/secret/sudo", connection=box if below else gateway, password="typed there")
    client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
    change = {"connection": gateway, "data": EVIL}
    with Client(daemon.url, auth_file=daemon.auth_file) as locked:
        for path, body in (
            ("/connection/update", change),
            ("/connection/apply", {"add": [], "remove": [], "change": [change]}),
        ):
            with pytest.raises(ClientError) as error:
                locked.post(path, **body)
            assert error.value.code == "secret_locked"
            assert "password for sudo" in error.value.message
        locked.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
        locked.post("/connection/apply", add=[], remove=[], change=[change])


def test_a_given_password_ends_with_the_way_that_it_was_given_for(vault: Vault) -> None:
    def stored(name: str, references: list[str]) -> str:
        id, _ = vault.connections.add(
            name, "test", {"name": name}, fingerprint=name.encode(), same=lambda _: False, references=references
        )
        return id

    gateway = stored("gateway", [])
    web = Elevation(stored("web", [gateway]), "owner", "root")
    sealed = {"encryptedToken": {"token": "any"}}
    vault.connections.give_sudo_password(web, sealed, same=lambda _: False)
    assert vault.connections.get(web.id).data["password"] == sealed
    moved = {"data": {"name": "elsewhere"}, "fingerprint": b"x", "references": [], "parent": None}
    vault.connections.update(gateway, **moved, permits=lambda _: None)
    assert vault.connections.get(web.id).data["password"] is None


def test_passwords_given_by_a_token_displace_its_own(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connmgr.vault.unstored.MAX_GIVEN", 3)
    id, _ = vault.connections.add("web", "test", {}, fingerprint=b"f", same=lambda _: False)
    sealed = {"encryptedToken": {"token": "any"}}
    owner = Elevation(id, "owner", "root")
    for elevation in (owner, *(Elevation(id, "token", f"user{number}") for number in range(5))):
        vault.connections.give_sudo_password(elevation, sealed, same=lambda _: False)
    assert vault.connections.get(owner.id).data["password"] == sealed
