"""Unreachable hosts, failing tasks and Ansible's messages about them; and the inventory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.deadlines import eventually
from tests.fleet import PROGRAMS, Fleet, hosts_of, recap
from tests.ports import reserved_port

PLAYBOOK = Path(__file__).parent / "playbooks" / "trouble.yml"
OVER_DAEMON = {"ansible_connection": "connmgr.connmgr.connmgr", "ansible_python_interpreter": sys.executable}

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs("linux", "sshd")]


@pytest.mark.slow
def test_a_host_that_is_away_is_unreachable_and_a_failing_command_failed(fleet: Fleet, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts"
    inventory.write_text(hosts_of(("web1", "web2", "web3", "away", "nobody"), root=tmp_path, **OVER_DAEMON))
    sessions = fleet.daemon.client.daemon.status().clients
    with reserved_port() as closed:
        fleet.add("away", port=closed)
        done = fleet.run("ansible-playbook", "-i", inventory, PLAYBOOK, code=4)
    counted = {
        host: {name for name in ("unreachable", "failed", "ignored") if counts[name]}
        for host, counts in recap(done.stdout).items()
    }
    assert counted == {
        "web1": {"ignored"},
        "web2": {"failed"},
        "web3": {"failed"},
        "away": {"unreachable"},
        "nobody": {"unreachable"},
    }
    # Each host's first task may start a session, which the others continue.
    assert fleet.daemon.client.daemon.status().clients - sessions <= len(counted)
    said = done.stdout + done.stderr
    assert "refused the connection" in said
    assert "No connection is called 'nobody'" in said
    sleeper = int((tmp_path / "pid").read_text())
    eventually(lambda: not Path(f"/proc/{sleeper}").exists(), "what took too long runs on")


def _raw(fleet: Fleet, directory: Path, hosts: str, command: str, *options: str, **more: object) -> str:
    """Run a raw command on hosts by a bare inventory, and return all that Ansible says."""
    inventory = directory / "hosts"
    inventory.write_text(hosts_of([hosts], **OVER_DAEMON))
    done = fleet.run("ansible", "-i", inventory, "fleet", "-m", "raw", "-a", command, *options, **more)  # type: ignore[arg-type]
    return done.stdout + done.stderr


def test_output_without_a_limit_and_of_any_bytes(fleet: Fleet, tmp_path: Path) -> None:
    command = "head -c 17000000 /dev/zero | tr '\\0' x; printf '\\377\\n'"
    shown = _raw(fleet, tmp_path, "web1 ansible_host=web2", command)
    assert shown.count("x") > 17_000_000


def test_without_a_daemon_a_host_is_unreachable_and_what_to_do_is_said(fleet: Fleet, tmp_path: Path) -> None:
    environment = {"CONNMGR_AUTH_FILE": str(tmp_path / "auth")}
    shown = _raw(fleet, tmp_path, "web1", "true", code=4, environment=environment)
    assert "UNREACHABLE" in shown
    assert "`connmgr serve` starts a daemon" in shown


def test_a_connection_is_named_by_its_category_or_uuid_too(fleet: Fleet, tmp_path: Path) -> None:
    hosts = (
        "x ansible_host=fleet/web2",
        f"y connmgr_connection={fleet.connections['web2']}",
        # If no connection has the name of the address, the host's own name is used.
        "web2 ansible_host=192.0.2.1",
    )
    assert _raw(fleet, tmp_path, "\n".join(hosts), "echo here").count("\nhere") == len(hosts)


@pytest.mark.needs("ssh")
def test_the_ssh_plugin_runs_over_connmgr_ssh_as_its_program(fleet: Fleet, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts"
    over_ssh = {
        "ansible_connection": "ssh",
        "ansible_ssh_executable": PROGRAMS / "connmgr-ssh",
        "ansible_ssh_transfer_method": "piped",
        "ansible_python_interpreter": sys.executable,
    }
    inventory.write_text(hosts_of(["web1"], **over_ssh))
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho $1\n")
    done = fleet.run("ansible", "-i", inventory, "web1", "-m", "script", "-a", f"{script} here")
    assert "WARNING" not in done.stdout + done.stderr
    assert '"stdout": "here' in done.stdout


def test_the_inventory_has_the_connections_and_none_of_their_secrets(fleet: Fleet, tmp_path: Path) -> None:
    fleet.add("secret-web", password="correct horse")
    client = fleet.daemon.client
    client.connection.label([fleet.connections["web1"]], {"env": "prod", "note": "{{ 7 * 7 }}"})
    client.fact.gather([fleet.connections["web1"]], parts=["system"])
    source = tmp_path / "fleet.yml"
    source.write_text(
        "plugin: connmgr.connmgr.connmgr\ncategories: [fleet]\nnames: ['web*', '*-web']\n"
        "keyed_groups: [{prefix: type, key: connmgr_type}]\ncompose: {shout: connmgr_name | upper}\n"
    )
    shown = fleet.run("ansible-inventory", "-i", source, "--list").stdout
    found = json.loads(shown)
    assert "correct horse" not in shown
    assert set(found["fleet"]["hosts"]) == {*fleet.connections, "secret-web"}
    assert found["type_ssh"]["hosts"] == found["fleet"]["hosts"]
    # Ansible marks values that are no templates as unsafe.
    assert found["label_env_prod"]["hosts"] == ["web1"]
    assert found["fact_os_id_debian" if "fact_os_id_debian" in found else "fact_os_id_ubuntu"]["hosts"] == ["web1"]
    assert "7 * 7" not in shown
    variables = dict(found["_meta"]["hostvars"]["web1"])
    assert "os.id" in variables.pop("connmgr_facts")
    assert variables.pop("connmgr_labels").keys() == {"env"}
    told = {name: value["__ansible_unsafe"] if isinstance(value, dict) else value for name, value in variables.items()}
    assert told == {
        "ansible_connection": "connmgr.connmgr.connmgr",
        "connmgr_category": "fleet",
        "connmgr_connection": fleet.connections["web1"],
        "connmgr_name": "web1",
        "connmgr_type": "ssh",
        "shout": "WEB1",
    }
    done = fleet.run("ansible", "-i", source, "web1", "-m", "raw", "-a", "echo here")
    assert "here" in done.stdout


def test_no_connection_takes_the_place_of_a_group_or_of_this_machine(fleet: Fleet, tmp_path: Path) -> None:
    client, names = fleet.daemon.client, ("label_env_test", "fleet", "all", "localhost", "type_ssh")
    client.connection.label([fleet.connections["web2"]], {"env": "test"})
    made = [fleet.add(name, host=f"192.0.2.{number}") for number, name in enumerate(names, 1)]
    source = tmp_path / "fleet.yml"
    source.write_text(f"plugin: connmgr.connmgr.connmgr\nnames: [web1, web2, {', '.join(made[:-1])}]\n")
    try:
        for pattern, expected in (
            ("label_env_test", ["web2"]),
            ("fleet", ["web1", "web2", *(f"fleet/{name}" for name in names[:-1])]),
            ("fleet/localhost", ["fleet/localhost"]),
            ("localhost", ["localhost"]),
        ):
            listed = fleet.run("ansible", "-i", source, pattern, "--list-hosts")
            assert sorted(listed.stdout.split()[2:]) == sorted(expected), pattern
            assert "same name" not in listed.stderr
        source.write_text(
            f"plugin: connmgr.connmgr.connmgr\nnames: [web1, {made[-1]}]\n"
            "keyed_groups: [{prefix: type, key: connmgr_type}]\n"
        )
        refused = fleet.run("ansible-inventory", "-i", source, "--list").stderr
        assert "'type_ssh' has the name of a group" in " ".join(refused.split())
    finally:
        client.connection.remove(made)
        client.connection.label([fleet.connections["web2"]], remove=["env"])


def test_a_misspelled_option_of_the_inventory_is_refused_and_does_not_choose_all(fleet: Fleet, tmp_path: Path) -> None:
    source = tmp_path / "fleet.yml"
    source.write_text("plugin: connmgr.connmgr.connmgr\nnams: [web1]\n")
    refused = fleet.run("ansible-inventory", "-i", source, "--graph")
    assert "web1" not in refused.stdout
    assert "has the option 'nams', which this inventory does not know" in " ".join(refused.stderr.split())


def test_no_template_comes_together_from_values_of_others(fleet: Fleet, tmp_path: Path) -> None:
    client, web3, proof = fleet.daemon.client, fleet.connections["web3"], tmp_path / "proof"
    client.connection.label([web3], {"one": "{", "two": f"{{ lookup('pipe', 'touch {proof}') }}}}"})
    source = tmp_path / "fleet.yml"
    source.write_text(
        "plugin: connmgr.connmgr.connmgr\nnames: [web3]\n"
        "compose:\n  both: connmgr_labels['one'] ~ connmgr_labels['two']\n"
    )
    done = fleet.run("ansible", "-i", source, "web3", "-m", "debug", "-a", "msg={{ both }}")
    assert "lookup('pipe'" in done.stdout
    assert not proof.exists()


def _token(fleet: Fleet, directory: Path, *scopes: str, only: str) -> Path:
    """Create a token, and return the file that it is in."""
    made = fleet.daemon.client.token.create("ansible", 600, ["connection.read", *scopes], connections=[only])
    file = directory / f"{only}.token"
    file.write_text(made["token"] + "\n")
    return file


def test_tasks_run_with_the_token_that_is_named_or_not_at_all(fleet: Fleet, tmp_path: Path) -> None:
    one, looks = _token(fleet, tmp_path, "shell.any", only="web1"), _token(fleet, tmp_path, only="web2")
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for environment in ({"CONNMGR_TOKEN_FILE": str(one)}, {"CONNMGR_TOKEN": one.read_text().strip()}):
        assert "\nhere" in _raw(fleet, tmp_path, "web1", "echo here", environment=environment)
        refused = _raw(fleet, tmp_path, "web2", "echo here", code=4, environment=environment)
        assert "No connection is called" in refused
    shown = _raw(fleet, tmp_path, "web2", "echo here", code=4, environment={"CONNMGR_TOKEN_FILE": str(looks)})
    assert "lacks the scope" in shown
    for environment in (
        {"CONNMGR_TOKEN": ""},
        {"CONNMGR_TOKEN_FILE": ""},
        {"CONNMGR_TOKEN_FILE": str(empty)},
        {"CONNMGR_API_KEY_FILE": str(empty)},
        {"CONNMGR_AUTH_FILE": ""},
    ):
        shown = _raw(fleet, tmp_path, "web1", "echo here", code=4, environment=environment)
        assert "UNREACHABLE" in shown, environment
        assert "is empty" in shown, environment
    # Each host with its own, which outranks the variable.
    hosts = f"web1 connmgr_token_file={one}\nweb2 connmgr_token_file={looks}\nweb3 connmgr_token_file={empty}"
    shown = _raw(fleet, tmp_path, hosts, "echo here", code=4, environment={"CONNMGR_TOKEN": "cmgr_unknown"})
    assert shown.count("\nhere") == 1
    assert "lacks the scope" in shown
    assert str(empty) in shown
    shown = _raw(fleet, tmp_path, "web1 connmgr_token_file=''", "echo here", code=4)
    assert "UNREACHABLE" in shown
    shown = _raw(fleet, tmp_path, "web1 connmgr_connection=''", "echo here", code=4)
    assert "No connection is called" in shown


def test_the_inventory_has_what_the_named_token_sees_or_nothing(fleet: Fleet, tmp_path: Path) -> None:
    token, source, empty = _token(fleet, tmp_path, only="web1"), tmp_path / "fleet.yml", tmp_path / "empty"
    empty.write_text("")
    source.write_text("plugin: connmgr.connmgr.connmgr\n")

    def listed(**environment: str) -> tuple[set[str], str]:
        done = fleet.run("ansible-inventory", "-i", source, "--list", environment=environment)
        return set(json.loads(done.stdout)["_meta"]["hostvars"]), done.stderr

    assert listed(CONNMGR_TOKEN_FILE=str(token))[0] == {"web1"}
    assert listed(CONNMGR_TOKEN=token.read_text().strip())[0] == {"web1"}
    for environment in ({"CONNMGR_TOKEN": ""}, {"CONNMGR_TOKEN_FILE": str(empty)}):
        hosts, errors = listed(**environment)
        assert (hosts, "is empty" in errors) == (set(), True), environment
    source.write_text(f"plugin: connmgr.connmgr.connmgr\ntoken_file: {token}\n")
    assert listed()[0] == {"web1"}
    source.write_text(f"plugin: connmgr.connmgr.connmgr\ntoken_file: {empty}\n")
    hosts, errors = listed()
    assert (hosts, "is empty" in errors) == (set(), True)
    source.write_text("plugin: connmgr.connmgr.connmgr\ntoken_file: ''\n")
    assert listed()[0] == set()
