"""``connmgr import-ansible-inventory``: how hosts, groups and variables are imported, and what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.vault import VaultLib, VaultSecret

from connmgr.ansible_inventory import Lineage
from connmgr.cli.declarative.imports import read
from connmgr.cli.exits import Failure
from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine

INI = """
# everywhere
lone.example ansible_user=joe
[web]
web[01:03].example:2201 ansible_user="deploy"  # three of them
app[a:c:2] ansible_password=canary
[db]
db1 ansible_host=db1.internal ansible_ssh_private_key_file=~/.ssh/db
web01.example
[eu:children]
web
[eu:vars]
ansible_user = europe
ansible_become=yes
[world:children]
eu
db
[all:vars]
ansible_port=2222
"""

YAML = """
all:
  vars: {ansible_port: 2222}
  hosts:
    lone.example: {ansible_user: joe}
  children:
    world:
      children:
        eu:
          vars: {ansible_user: europe, ansible_become: yes}
          children:
            web:
              hosts:
                web[01:03].example:2201: {ansible_user: deploy}
                app[a:c:2]: {ansible_password: canary}
        db:
          hosts:
            db1: {ansible_host: db1.internal, ansible_ssh_private_key_file: ~/.ssh/db}
            web01.example:
"""


def write(tmp_path: Path, text: str, name: str = "hosts") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def told(connmgr: CommandLine, *arguments: str, code: int = 0) -> dict[str, tuple[str, str]]:
    rows = connmgr("import-ansible-inventory", *arguments, "--json", code=code).json
    return {one["name"]: (one["outcome"], one["note"]) for one in rows}


def stored(connmgr: CommandLine) -> dict[str, Any]:
    return {"/".join(one["name"]): one for one in connmgr("ls", "--json").json if one["type"] != "local"}


@pytest.mark.parametrize(("text", "name"), [(INI, "hosts"), (YAML, "hosts.yml")], ids=["ini", "yaml"])
def test_hosts_become_connections_and_groups_categories(
    clean_connmgr: CommandLine, tmp_path: Path, text: str, name: str
) -> None:
    file = write(tmp_path, text, name)
    hosts = {"lone.example", "web01.example", "web02.example", "web03.example", "appa", "appc", "db1"}
    elevated = {f"{host}/root" for host in hosts - {"lone.example", "db1"}}
    planned = told(clean_connmgr, file)
    assert (set(planned), {outcome for outcome, _ in planned.values()}) == (hosts | elevated, {"new"})
    assert "also in db" in planned["web01.example"][1]
    assert "connmgr edit appa --secret password" in planned["appa"][1]
    assert stored(clean_connmgr) == {}
    assert {outcome for outcome, _ in told(clean_connmgr, file, "--apply").values()} == {"added"}
    found = {path: (one["category"], one["rawData"]) for path, one in stored(clean_connmgr).items()}
    assert set(found) == hosts | elevated
    category, data = found["web01.example"]
    assert (category, data["port"], data["user"]) == (["world", "eu", "web"], 2201, "deploy")
    category, data = found["appc"]
    assert (data["host"], data["port"], data["user"], "password" in data) == ("appc", 2222, "europe", False)
    category, data = found["db1"]
    assert (category, data["host"], data["identity"]) == (["world", "db"], "db1.internal", {"file": "~/.ssh/db"})
    assert found["lone.example"][0] == ["default"]
    category, data = found["appa/root"]
    assert (category, data["user"], data["method"], data["elevated"]) == (["world", "eu", "web"], "root", "sudo", True)
    assert {outcome for outcome, _ in told(clean_connmgr, file, "--apply", "--update").values()} == {"there already"}
    assert "canary" not in (clean_connmgr.daemon.data_dir / "audit.log").read_text()


def test_entries_without_counterpart_are_left_out_and_reported(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
all:
  hosts:
    here: {ansible_connection: local, ansible_become: true, ansible_become_method: doas, ansible_become_user: www}
    windows: {ansible_connection: winrm}
    encrypted:
      ansible_host: !vault |
        $ANSIBLE_VAULT;1.1;AES256
        6162
    template: {ansible_host: "{{ inventory_hostname }}.example"}
    odd: {ansible_become: true, ansible_become_method: runas, ansible_ssh_private_key_file: keys/id}
    hop: {ansible_ssh_common_args: -J bastion, ansible_become: true, ansible_become_pass: canary}
    six: {ansible_host: "2001:db8::1"}
""",
        "hosts.yaml",
    )
    (tmp_path / "group_vars").mkdir()
    assert "group_vars is not read" in clean_connmgr("import-ansible-inventory", file).errors
    rows = told(clean_connmgr, file, "--apply")
    assert {name: outcome for name, (outcome, _) in rows.items()} == {
        "here": "there already",
        "here/www": "added",
        "windows": "left out",
        "encrypted": "left out",
        "template": "left out",
        "odd": "added",
        "odd/become": "left out",
        "hop": "added",
        "hop/root": "added",
        "six": "added",
    }
    assert "winrm" in rows["windows"][1]
    assert "ansible-vault" in rows["encrypted"][1]
    assert "template" in rows["template"][1]
    assert "keys/id is not taken" in rows["odd"][1]
    assert "gateway=" in rows["hop"][1]
    assert "edit hop/root --secret password" in rows["hop/root"][1]
    assert clean_connmgr("info", "www", "--json").json["name"] == ["local machine", "www"]


def vaulted(secret: str, password: str, label: str | None = None) -> str:
    """Return a value as ansible-vault encrypts it, by Ansible's own library."""
    library = VaultLib([(label or "default", VaultSecret(password.encode()))])
    return str(library.encrypt(secret, vault_id=label).decode())


def test_what_ansible_vault_has_encrypted_is_read_with_its_password(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    def value(text: str) -> str:
        return "!vault |\n" + "".join(f"            {line}\n" for line in text.splitlines())

    file = write(
        tmp_path,
        f"""
all:
  hosts:
    one:
      ansible_host: {value(vaulted("one.example", "first"))}
      ansible_password: {value(vaulted("canary one", "second", "prod"))}
      ansible_become: true
      ansible_become_password: {value(vaulted("canary root", "first"))}
    two:
      ansible_ssh_private_key_file: ~/.ssh/two
      ansible_ssh_private_key_passphrase: {value(vaulted("canary two", "first"))}
      ansible_password: {value(vaulted("canary three", "third"))}
    damaged:
      ansible_password: {value(vaulted("canary", "first")[:-9])}
""",
        "hosts.yml",
    )
    for number, password in enumerate(("first", "second"), 1):
        (tmp_path / f"password{number}").write_text(f"{password}\n")
    given = [f"--vault-password-file={tmp_path}/password{number}" for number in (1, 2)]
    rows = told(clean_connmgr, file, *given, "--apply")
    assert {name: outcome for name, (outcome, _) in rows.items()} == {
        "one": "added",
        "one/root": "added",
        "two": "added",
        "damaged": "added",
    }
    assert "canary" not in str(rows)
    assert "ansible_password is not read" in rows["two"][1]
    assert "ansible_password is not read" in rows["damaged"][1]
    found, client = stored(clean_connmgr), clean_connmgr.daemon.client
    plain = {}
    for name in ("one", "one/root", "two", "damaged"):
        data = client.connection.info([found[name]["connection"]])[0].data
        sealed = data.get("password") or data.get("identity", {}).get("passphrase")
        plain[name] = sealed and client.post("/secret/decrypt", encrypted=sealed)["decrypted"]
    assert plain == {"one": "canary one", "one/root": "canary root", "two": "canary two", "damaged": None}
    assert client.connection.info([found["one"]["connection"]])[0].data["host"] == "one.example"
    assert {outcome for outcome, _ in told(clean_connmgr, file, *given, "--apply", "--update").values()} == {
        "there already"
    }
    whole = write(tmp_path, vaulted("[web]\nthree.example ansible_user=joe\n", "first"), "whole")
    assert "give its password" in clean_connmgr("import-ansible-inventory", whole, code=None).errors
    wrong = f"--vault-password-file={tmp_path}/password2"
    assert "no given password opens it" in clean_connmgr("import-ansible-inventory", whole, wrong, code=None).errors
    assert told(clean_connmgr, whole, *given, "--apply")["three.example"][0] == "added"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[web]\nok\nweb[1-3]\n", "hosts:3: web[1-3]: a range is written as [01:20]"),
        ("web[c:a]\n", "hosts:1: [c:a] is not a range"),
        ("web ansible_password=a secret\n", "hosts:1: a word is not of the form name=value; put a value with spaces"),
        ('web a="b\n', "hosts:1: No closing quotation"),
        ("w[1:99]-[1:99]-[1:99]\n", "hosts:1: more than 20,000 hosts"),
        ("---\nall: [a]\n", "hosts: the group all must be a mapping"),
        ("---\nall: {\n", "hosts:3 is not valid YAML"),
        ("---\nx: !!python/object/apply:os.system [touch ran]\n", "hosts:2 is not valid YAML"),
        ("$ANSIBLE_VAULT;1.1;AES256\n6162\n", "is encrypted by ansible-vault: give its password"),
    ],
)
def test_a_file_at_fault_is_refused_by_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Failure) as caught:
        read(Path(write(tmp_path, text)))
    told = caught.value.message.replace(f"{tmp_path}/", "")
    assert message in told
    assert "secret" not in told


def test_addresses_ranges_and_circles_are_read_as_ansible_does(tmp_path: Path) -> None:
    text = "h[08:10]\n[::1]:22\n2001:db8::2\nn[1:5:2]x[a:b]\n[a:children]\nb\n[b:children]\na\n[b]\nlast:99\n"
    inventory = read(Path(write(tmp_path, text)))
    expected = ["h08", "h09", "h10", "::1", "2001:db8::2", "n1xa", "n1xb", "n3xa", "n3xb", "n5xa", "n5xb", "last"]
    assert list(inventory.hosts) == expected
    assert (inventory.hosts["::1"], inventory.hosts["last"]) == ({"ansible_port": 22}, {"ansible_port": 99})
    assert Lineage(inventory).path("b") == ("a", "b")


@pytest.mark.needs("sshd")
def test_an_imported_host_works(clean_connmgr: CommandLine, start_sshd: StartSshd, tmp_path: Path) -> None:
    server = start_sshd()
    (clean_connmgr.daemon.home / ".ssh").mkdir(mode=0o700)
    (clean_connmgr.daemon.home / ".ssh" / "known_hosts").write_text(server.known_hosts())
    line = f"box ansible_host=127.0.0.1 ansible_port={server.port} ansible_user={server.user}"
    file = write(tmp_path, f"[team]\n{line} ansible_ssh_private_key_file={server.client_key}\n")
    clean_connmgr("import-ansible-inventory", "--apply", file)
    assert clean_connmgr("exec", "team/box", "--", "echo $SSH_CONNECTION").output.startswith("127.0.0.1 ")
