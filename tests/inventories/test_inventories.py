"""Inventories: connections that follow a list, what becomes of hosts that are no longer there, and bad sources."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connmgr.client import Client, ClientError
from connmgr.contract.inventory import HostDefaults
from connmgr.contract.message import time_from_json
from connmgr.errors import InventoryFailed
from connmgr.inventories import sources
from connmgr.inventories.inventories import Inventories, plan_changes
from connmgr.inventories.sources import HostSource, listed
from connmgr.vault.batch import Batch, Change
from connmgr.vault.documents import Document
from tests.cli.program import CommandLine
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.rights.wire import create

if TYPE_CHECKING:
    from connmgr.vault import Vault


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    running = Daemon(tmp_path_factory.mktemp("inventories"))
    yield running
    running.stop()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A client of a daemon without inventories, and without connections of one."""
    yield daemon.client
    for one in daemon.client.inventories.query():
        daemon.client.inventories.remove(one.name)
    if ids := found(daemon.client, "inventory"):
        daemon.client.connection.remove(ids)


def found(client: Client, where: str) -> list[str]:
    return list(client.connection.query(where=where))


def labels(client: Client, where: str) -> dict[str, dict[str, str]]:
    return {one.name[-1]: dict(one.labels) for one in client.connection.info(found(client, where))}


def test_connections_follow_a_file(client: Client, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("[web]\nweb1 ansible_host=10.0.0.1\nadmin@web2:2222\n[db]\ndb[1:2]\n# a comment\n")
    first = client.inventories.add("fleet", file=str(hosts))
    assert (first.hosts, first.added, first.left_out) == (4, ["web1", "web2", "db1", "db2"], [])
    assert labels(client, "inventory=fleet")["web2"] == {
        "inventory": "fleet",
        "inventory-host": "web2",
        "group-web": "",
    }
    [web2] = client.connection.info(found(client, "inventory-host=web2"))
    assert (web2.raw_data["host"], web2.raw_data["user"], web2.raw_data["port"]) == ("web2", "admin", 2222)
    assert list(web2.category) == ["default", "fleet"] or list(web2.category) == ["fleet"]

    hosts.write_text("[web]\nweb1 ansible_host=10.0.0.9\n[db]\ndb1\ndb3\n")
    shown = client.inventories.renew("fleet", dry_run=True)
    assert found(client, "vanished") == []
    second = client.inventories.renew("fleet")
    assert second == shown
    assert (second.added, second.changed, second.vanished) == (["db3"], ["web1"], ["db2", "web2"])
    assert set(labels(client, "inventory=fleet and vanished")) == {"web2", "db2"}
    [web1] = client.connection.info(found(client, "inventory-host=web1"))
    assert web1.raw_data["host"] == "10.0.0.9"
    # What has vanished is marked once, and it comes back.
    assert client.inventories.renew("fleet").vanished == []
    hosts.write_text("[web]\nweb1 ansible_host=10.0.0.9\n[db]\ndb1\ndb2\ndb3\n")
    assert client.inventories.renew("fleet").returned == ["db2"]
    assert set(labels(client, "vanished")) == {"web2"}
    [info] = client.inventories.query()
    assert (info.hosts, info.vanished, info.error, info.next) == (4, 1, None, None)


def test_what_the_source_does_not_say_is_the_user_s(client: Client, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("web1\n")
    client.inventories.add("fleet", file=str(hosts), defaults=HostDefaults(user="deploy", key_file="/srv/key"))
    [id] = found(client, "inventory=fleet")
    [info] = client.connection.info([id])
    assert (info.raw_data["user"], info.raw_data["identity"]) == ("deploy", {"file": "/srv/key"})
    data = {
        "type": "ssh",
        "host": "web1",
        "password": "correct horse",
        "port": 22,
        "user": "deploy",
        "identity": {"file": "/srv/key"},
    }
    client.post("/connection/update", connection=id, name="renamed", data={**data, "connectTimeout": 7})
    client.post("/connection/label", connections=[id], labels={"env": "prod"})
    assert client.inventories.renew("fleet").changed == []
    hosts.write_text("web1 ansible_port=2222\n")
    assert client.inventories.renew("fleet").changed == ["web1"]
    [info] = client.connection.info([id])
    assert (info.name[-1], info.raw_data["port"], info.raw_data["connectTimeout"]) == ("renamed", 2222, 7)
    assert "encryptedToken" in info.raw_data["password"]
    assert info.labels["env"] == "prod"


def test_connections_that_were_there_are_adopted_and_others_left_alone(client: Client, tmp_path: Path) -> None:
    own = client.connection.add("mine", {"type": "ssh", "host": "web1.example"})
    hosts = tmp_path / "hosts"
    hosts.write_text("web1.example\nweb2.example\nalias ansible_host=web2.example\n")
    first = client.inventories.add("one", file=str(hosts))
    assert (first.hosts, first.added, first.changed) == (2, ["web2.example"], ["web1.example"])
    assert [one.host for one in first.left_out] == ["alias"]
    assert found(client, "inventory-host=web1.example") == [own]
    second = client.inventories.add("two", file=str(hosts))
    assert (second.hosts, second.added) == (0, [])
    assert "A connection of one has the same data." in {one.reason for one in second.left_out}


def test_a_program_prints_what_inventory_scripts_print(client: Client, tmp_path: Path) -> None:
    printed = {
        "_meta": {"hostvars": {"a": {"ansible_host": "10.0.0.1", "ansible_password": "secret"}, "lonely": {}}},
        "all": {"children": ["eu"], "vars": {"ansible_user": "ops"}},
        "eu": {"hosts": ["a"], "children": ["Vienna 1"]},
        "Vienna 1": ["b"],
        "windows": {"hosts": ["w"], "vars": {"ansible_connection": "winrm"}},
    }
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ncat <<'E'\n{json.dumps(printed)}\nE\n")
    script.chmod(0o755)
    changes = client.inventories.add("cloud", command=[str(script), "--list"])
    assert set(changes.added) == {"a", "b", "lonely"}
    assert [(one.host, one.reason) for one in changes.left_out] == [
        ("w", "ansible_connection=winrm has no counterpart.")
    ]
    assert set(labels(client, "group-eu")) == {"a", "b"}
    assert set(labels(client, "group-vienna-1")) == {"b"}
    [a] = client.connection.info(found(client, "inventory-host=a"))
    assert (a.raw_data["user"], a.raw_data.get("password")) == ("ops", None)


@pytest.mark.skipif(
    not (Path(sys.executable).parent / "ansible-inventory").exists(), reason="ansible-core is not installed"
)
def test_a_source_of_ansible_is_read_by_ansible(client: Client, tmp_path: Path) -> None:
    inventory = tmp_path / "fleet.yml"
    groups = {"web": {"hosts": {"web[1:2].example": {}}}}
    inventory.write_text(json.dumps({"all": {"vars": {"ansible_user": "ops"}, "children": groups}}))
    changes = client.inventories.add("by-ansible", ansible=str(inventory))
    assert changes.added == ["web1.example", "web2.example"]
    assert set(labels(client, "group-web")) == {"web1.example", "web2.example"}


def test_an_inventory_renews_itself_also_after_a_restart(start_daemon: StartDaemon, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a\n")
    first = start_daemon(home=tmp_path / "home")
    first.client.inventories.add("fleet", file=str(hosts), every=1)
    hosts.write_text("a\nb\n")
    eventually(lambda: len(found(first.client, "inventory=fleet")) == 2, "it does not renew itself")
    first.leave_client()
    first.stop()
    second = start_daemon(home=tmp_path / "home")
    hosts.write_text("c\n")
    eventually(lambda: len(found(second.client, "vanished")) == 2, "it does not renew itself after a restart")
    [info] = second.client.inventories.query()
    assert info.next is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "ansible: Give one of ansible, command and file."),
        ({"file": "/a", "command": ["a"]}, "ansible: Give one of ansible, command and file."),
        ({"file": "hosts"}, "file: Not an absolute path."),
        (
            {"file": "/nowhere/hosts"},
            "/nowhere/hosts cannot be read on the daemon's machine: No such file or",
        ),
        ({"file": "/dev/zero"}, "/dev/zero is not a regular file on the daemon's machine."),
        ({"ansible": "/nowhere/aws_ec2.yml"}, ""),
        ({"command": ["/nowhere/program"]}, "/nowhere/program cannot be run on the daemon's machine: No such file"),
        ({"command": ["sh", "-c", "echo no key >&2; exit 3"]}, "sh exited with 3: no key"),
        ({"command": ["sh", "-c", "sleep 60 & sleep 60"], "timeout": 0.2}, "sh took longer than 0.2 s and was ended"),
        ({"command": ["true"]}, "The source lists no host at all, so nothing was changed."),
        ({"command": ["echo", "{}"]}, "The source lists no host at all, so nothing was changed."),
        ({"command": ["echo", "{"]}, "The source is not an inventory: the source: it is not JSON"),
        ({"command": ["echo", '{"web": 1}']}, "The source is not an inventory: the source: it is JSON, but not what"),
        ({"command": ["echo", '{"web": {"hosts": [1]}}']}, "The source is not an inventory: the source: `hosts` and"),
        ({"command": ["echo", "web[1"]}, "The source is not an inventory: line:1: web[1: a range is written as"),
        ({"command": ["echo", "$ANSIBLE_VAULT;1.1"]}, "The source is encrypted by ansible-vault"),
        ({"every": 0, "command": ["true"]}, "every: Must be greater than or equal to 1 "),
        ({"command": ["echo", "a"], "defaults": {"gateway": "00000000-0000-0000-0000-000000000001"}}, ""),
    ],
)
def test_a_bad_source_is_told_and_nothing_stored(client: Client, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientError) as refused:
        client.post("/inventory/add", name="bad", **fields)
    assert refused.value.message.startswith(said)
    assert client.inventories.query() == []
    assert found(client, "inventory") == []


def test_a_source_that_fails_later_changes_nothing_and_says_so(client: Client, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\n")
    client.inventories.add("fleet", file=str(hosts))
    hosts.write_text("")
    with pytest.raises(ClientError, match="lists no host at all") as refused:
        client.inventories.renew("fleet")
    assert refused.value.code == "inventory_failed"
    [info] = client.inventories.query()
    assert (info.hosts, info.vanished) == (2, 0)
    assert "lists no host at all" in str(info.error)
    assert found(client, "vanished") == []
    hosts.write_text("a\n")
    client.inventories.renew("fleet")
    [info] = client.inventories.query()
    assert (info.hosts, info.vanished, info.error) == (1, 1, None)


def test_a_program_that_prints_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 1 << 20)
    with pytest.raises(Exception, match="yes printed more than 1 MiB and was ended"):
        HostSource(command=["yes"]).read(60)


def test_a_program_does_not_get_the_daemon_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CONNMGR_DATABASE_URL", "postgresql://me:secret@host/vault")
    assert "secret" not in HostSource(command=["env"]).read(60)


def test_hosts_that_the_vault_would_refuse_do_not_keep_out_the_others() -> None:
    said = listed(
        "good\nbad\x07 ansible_host=a\n-o ansible_host=b\nport ansible_port=70000\nlocal ansible_connection=local\n"
        f"long ansible_port={'9' * 5000}\n"
    )
    assert [one.name for one in said.hosts] == ["good"]
    assert [host for host, _ in said.left_out] == ["bad\x07", "-o", "port", "local", "long"]


def test_a_host_in_many_groups_says_which_became_labels() -> None:
    groups = "".join(f"[g{n}]\nhost\n" for n in range(60))
    said = listed(groups)
    assert len(said.hosts[0].labels) == 48
    assert said.left_out == [("host", "Of its 60 groups only 48 became labels.")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (1_000_000 * "x", "line:1: The line has more than 16,384 characters"),
        (17 * "[0:0]", "line:1: a name has more than 16 ranges"),
        (9 * "[0:9999]", "line:1: more than 20,000 hosts"),
        (f"[{4000 * '0'}:9999]", "line:1: a range has a number of more than 20 digits"),
        (3_000_000 * "ok\n", "more than 8 MiB of lines"),
        (5_000 * "[" + 5_000 * "]", "line:1: "),
        (5_000 * '{"all":{"children":' + "{}" + 5_000 * "}}", "it is not JSON: maximum recursion depth"),
    ],
    ids=["a long line", "many ranges", "many names", "long numbers", "many lines", "depth", "depth of JSON"],
)
def test_a_hostile_list_is_refused_at_once(text: str, said: str) -> None:
    """It would take hours, or more memory than there is."""
    with pytest.raises(InventoryFailed, match=said) as refused:
        listed(text)
    assert len(refused.value.message) < 1000


def test_twenty_thousand_hosts_are_planned_at_once() -> None:
    said = listed("host[00001:20000]\n")
    spec = {"category": ["fleet"], "defaults": {}}
    changes = plan_changes("fleet", spec, said, [], datetime.now(timezone.utc))
    assert (changes.hosts, len(changes.add)) == (20_000, 20_000)


def test_only_the_owner_has_inventories(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a\n")
    client.inventories.add("fleet", file=str(hosts))
    holder = create(daemon, "connection.read", "connection.write", "category.write", "shell.any")
    for path, fields in [
        ("/inventory/add", {"name": "mine", "file": "/etc/passwd"}),
        ("/inventory/renew", {"name": "fleet"}),
        ("/inventory/query", {}),
        ("/inventory/remove", {"name": "fleet"}),
    ]:
        assert holder.refused(path, **fields) == "scope_denied"
    entries = client.post("/audit/query", limit=1000)["entries"]
    [added] = [one for one in entries if one.get("action") == "inventory.add" and one.get("name") == "fleet"][:1]
    assert (added["client"], added["added"]) == ("connmgr client", 1)
    by_inventory = [one for one in entries if one.get("client") == "inventory fleet"]
    assert {one["action"] for one in by_inventory} == {"connection.apply"}
    assert "a" in [one.get("name") for one in by_inventory]


def test_the_command_line_has_them(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    connmgr = CommandLine(daemon)
    hosts = tmp_path / "hosts"
    hosts.write_text("[web]\nweb1\nweb2\n")
    shown = connmgr("inventory", "add", "fleet", "--file", str(hosts), "--user", "ops", "--dry-run")
    assert shown.output == "added  web1, web2\n"
    assert client.inventories.query() == []
    connmgr("inventory", "add", "fleet", "--file", str(hosts), "--user", "ops", "--every", "15m")
    assert connmgr("inventory", "ls").output.startswith("fleet  2 hosts  renewed ")
    hosts.write_text("web1\n")
    assert "vanished  web2" in connmgr("inventory", "renew", "fleet").output
    assert "fleet  1 host, 1 vanished  " in connmgr("inventory", "ls").output
    connmgr("inventory", "add", "told", "--", "echo", "web9")
    assert [one.command for one in client.inventories.query("told")] == [["echo", "web9"]]
    connmgr("inventory", "rm", "fleet", "told")
    assert connmgr("inventory", "ls").output == ""
    assert "Unknown inventory: fleet" in connmgr("inventory", "renew", "fleet", code=5).errors


def test_a_renewal_that_waited_reads_the_list_by_which_the_inventory_was_replaced(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_text(f"{name}1\n")
    spec = {"ansible": None, "command": None, "category": ["fleet"], "every": None, "timeout": 10.0, "defaults": {}}
    document = Document(key="fleet", body={**spec, "daemon": "here", "file": str(tmp_path / "old")})
    assert vault.inventories.add(document, most=1)
    inventories = Inventories(vault, "here")
    alone = inventories._alone

    def replaced() -> Any:
        """Replace the inventory as the renewal begins to wait for its turn."""
        body = {**document.body, "file": str(tmp_path / "new")}
        vault.inventories.change(document.id, lambda stored: replace(stored, body=body))
        return alone()

    monkeypatch.setattr(inventories, "_alone", replaced)
    changes = inventories.renew("fleet", dry_run=True)
    assert [row["name"] for row in changes.add] == ["new1"]


def test_no_token_has_a_renewal_lead_a_secret_elsewhere(client: Client, daemon: Daemon, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("web1 ansible_host=10.0.0.1\n")
    client.inventories.add("fleet", file=str(hosts))
    [web1] = found(client, "inventory-host=web1")
    own = client.connection.add("db", {"type": "ssh", "host": "10.9.9.9", "password": "theirs"})
    token = create(daemon, "connection.read", "connection.write")
    mine = {"inventory": "fleet", "inventory-host": "theirs"}
    new = {"type": "ssh", "host": "10.6.6.6", "user": "x"}
    attempts: list[tuple[str, dict[str, Any]]] = [
        ("/connection/label", {"connections": [own], "labels": mine}),
        ("/connection/label", {"connections": [web1], "remove": ["inventory-host"]}),
        ("/connection/update", {"connection": own, "labels": mine}),
        ("/connection/update", {"connection": web1, "labels": {}}),
        ("/connection/add", {"name": "web9", "data": new, "labels": mine}),
        ("/connection/apply", {"add": [{"name": "web9", "data": new, "labels": mine}]}),
        ("/connection/apply", {"change": [{"connection": own, "labels": mine}]}),
    ]
    for path, members in attempts:
        assert token.send(path, **members).code == "scope_denied", (path, members)
    # Other labels are the token's to set, also on what follows the list.
    kept = {**labels(client, "inventory-host=web1")["web1"], "tier": "front"}
    assert token.send("/connection/update", connection=web1, labels=kept).status == 200
    assert token.send("/connection/label", connections=[own], labels={"tier": "back"}).status == 200
    hosts.write_text("web1 ansible_host=10.0.0.1\ntheirs ansible_host=10.6.6.6\n")
    assert client.inventories.renew("fleet").added == ["theirs"]
    [stored] = client.connection.info([own])
    assert stored.raw_data["host"] == "10.9.9.9"
    client.connection.remove([own])


def test_a_renewal_does_not_vouch_for_what_a_token_has_set(client: Client, daemon: Daemon, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("web1 ansible_host=10.0.0.1\n")
    client.inventories.add("fleet", file=str(hosts))
    [web1] = found(client, "inventory-host=web1")
    token = create(daemon, "connection.read", "connection.write")
    data = {"type": "ssh", "host": "10.0.0.1", "connectTimeout": 7}
    assert token.send("/connection/update", connection=web1, data=data).status == 200
    hosts.write_text("web1 ansible_host=10.0.0.2\n")
    assert client.inventories.renew("fleet").changed == ["web1"]
    [followed] = client.connection.info([web1])
    assert (followed.raw_data["host"], followed.raw_data["connectTimeout"]) == ("10.0.0.2", 7)
    assert "setByToken" in followed.cache, followed.cache
    # The owner who gives it data has looked at all of them.
    client.connection.update(web1, data={**followed.raw_data, "port": 2222})
    assert "setByToken" not in client.connection.info([web1])[0].cache


def test_a_host_that_no_connection_can_have_leaves_the_others(client: Client, tmp_path: Path) -> None:
    bad: dict[str, dict[str, Any]] = {
        "star*": {},
        "brackets": {"ansible_host": "[::1]"},
        "nul": {"ansible_ssh_private_key_file": "/tmp/\0"},
        "surrogate": {"ansible_ssh_private_key_file": "/tmp/\ud800"},
    }
    hosts = tmp_path / "hosts.json"
    every = {**bad, "good": {"ansible_host": "10.0.0.1"}}
    hosts.write_text(json.dumps({"all": {"hosts": list(every)}, "_meta": {"hostvars": every}}))
    changes = client.inventories.add("fleet", file=str(hosts))
    assert (changes.added, [one.host for one in changes.left_out]) == (["good"], list(bad))
    assert "NUL" in changes.left_out[2].reason


def test_groups_are_few_and_not_deep(client: Client, tmp_path: Path) -> None:
    """Otherwise a list of some kilobytes would keep the daemon busy for minutes."""
    chain = {f"g{n}": {"children": [f"g{n + 1}"]} for n in range(3000)}
    for groups, why in (
        ({**chain, "g3000": {"hosts": ["deep"]}}, "within more than 64 others"),
        ({f"g{n}": {"hosts": ["wide"]} for n in range(5001)}, "5,001 groups"),
    ):
        hosts = tmp_path / "hosts.json"
        hosts.write_text(json.dumps(groups))
        with pytest.raises(ClientError, match=why):
            client.inventories.add("fleet", file=str(hosts))


def test_a_label_that_a_person_sets_during_a_renewal_stays(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("[web]\nweb1\n")
    spec = {"ansible": None, "command": None, "category": ["fleet"], "every": None, "timeout": 10.0, "defaults": {}}
    body = {**spec, "daemon": "here", "file": str(tmp_path / "hosts")}
    assert vault.inventories.add(Document(key="fleet", body=body), most=1)
    data, follows = {"host": "web1"}, {"inventory": "fleet", "inventory-host": "web1", "group-old": ""}
    web1, _ = vault.connections.add("web1", "ssh", data, fingerprint=b"", same=lambda _: True, labels=follows)
    inventories = Inventories(vault, "here")
    persons = [{"env": "prod"}, {"owner": "ops"}]
    requests = list[Any]()

    def request(_name: str, _path: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """Apply what is asked for, after a person has labelled the connection."""
        requests.append(members)
        if persons:
            vault.connections.relabel([web1], persons.pop(0), ())
        [entry] = members["change"]
        change = Change(entry["connection"], labels=entry["labels"], known=time_from_json(entry["lastModified"]))
        vault.batches.apply(Batch(changes=[change]), lambda _: None)
        return {"added": []}

    inventories.request = request
    assert inventories.renew("fleet").changed == ["web1"]
    [row] = vault.connections.infos([web1])
    assert row.labels == {
        "inventory": "fleet",
        "inventory-host": "web1",
        "group-web": "",
        "env": "prod",
        "owner": "ops",
    }
    assert len(requests) == 3
