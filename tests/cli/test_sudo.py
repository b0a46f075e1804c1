"""``--sudo`` of ``connmgr exec`` and ``connmgr cp``, and ``connmgr sudo-password``, over SSH to several users."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.program import CommandLine, finish
from tests.plugins.machine import Inhabitant, Machine
from tests.plugins.machine_fixtures import home_of_the_daemon, places, running_machine  # noqa: F401 - fixtures
from tests.plugins.places import Places, ssh_fields
from tests.plugins.sshd import keygen

pytestmark = pytest.mark.needs("machine", "sshd", "sudo")

HOSTS = 3
PASSWORD = "correct horse battery"
WITHOUT = "without-sudo"


@pytest.fixture
def users(clean_connmgr: CommandLine, running_machine: Machine, places: Places) -> dict[str, Inhabitant]:  # noqa: F811
    """Users by the names of connections to them; all may become root with a password, except the last."""
    names = [*(f"host{number}" for number in range(1, HOSTS + 1)), WITHOUT]
    found = {name: running_machine.add_user(password=PASSWORD) for name in names}
    running_machine.allow(*(f"{user.name} ALL=(ALL) ALL" for name, user in found.items() if name != WITHOUT))
    clean_connmgr("category", "add", "hosts")
    for name, user in found.items():
        data = {"type": "ssh", **ssh_fields(places.sshd, user.name)}
        category = clean_connmgr.daemon.client.category.query("hosts")[0]
        clean_connmgr.daemon.client.connection.add(name, data, category=category)
    return found


def test_without_anybody_to_ask_the_error_says_what_to_do(
    clean_connmgr: CommandLine, users: dict[str, Inhabitant]
) -> None:
    done = clean_connmgr("exec", "host1", "--sudo", "--", "id", code=125)
    assert f"host1: sudo wants the password of {users['host1'].name} to run as root, and none is stored" in done.errors
    assert "`connmgr sudo-password host1`" in done.errors
    copied = clean_connmgr("cp", "--sudo", "host1:/etc/hostname", "-", code=1)
    assert "host1: sudo wants the password" in copied.errors


def test_a_stored_password_serves_commands_sessions_jobs_and_copies(
    clean_connmgr: CommandLine,
    users: dict[str, Inhabitant],
    running_machine: Machine,  # noqa: F811
) -> None:
    clean_connmgr("sudo-password", "host1", stdin=f"{PASSWORD}\n")
    assert clean_connmgr("sudo-password", "--show", "host1").output == "connection hosts/host1\n"
    assert clean_connmgr("sudo-password", "--show", "host2").output == "none\n"
    assert clean_connmgr("exec", "--sudo", "host1", "--", "cd /etc; id -un").output == "root\n"
    assert clean_connmgr("exec", "host1", "--sudo=root", "--", "pwd").output == "/etc\n"
    assert clean_connmgr("exec", "host1", "--", "id -un").output == f"{users['host1'].name}\n"
    assert clean_connmgr("exec", "--sudo", "--cwd", "/usr", "--fresh", "host1", "--", "pwd").output == "/usr\n"
    assert clean_connmgr("exec", "--sudo", "--session", "s", "host1", "--", "pwd").output == f"{users['host1'].home}\n"
    other = users["host2"].name
    assert clean_connmgr("exec", f"--sudo={other}", "host1", "--", "id -un").output == f"{other}\n"
    assert clean_connmgr("exec", "--sudo", "--json", "host1", "--argv", "--", "id", "-u").json["stdout"] == "0"
    job = clean_connmgr("exec", "--sudo", "--detach", "host1", "--", "id -un").output.strip()
    clean_connmgr("job", "wait", job)
    assert clean_connmgr("job", "logs", job).output == "root\n"
    assert "host1/root" in clean_connmgr("job", "ls").output
    assert clean_connmgr("exec", "--sudo", "--dry-run", "host1", "--", "id").output == "It would run\n"
    running_machine.write("/root/secret", "content", 0o600)
    refused = clean_connmgr("cp", "host1:/root/secret", "-", code=1)
    assert "content" not in refused.output
    assert clean_connmgr("cp", "--sudo", "host1:/root/secret", "-").output == "content"
    clean_connmgr("cp", "-q", "--sudo", "-", "host1:/root/new", stdin="more")
    assert running_machine.path("/root/new").read_text() == "more"
    ended = clean_connmgr("disconnect", "host1").output.removeprefix("host1: 4 shells ended: ").strip()
    shells = ["s as root", "the shared shell", "the shared shell as root", f"the shared shell as {other}"]
    assert sorted(ended.split(", ")) == sorted(shells)
    assert clean_connmgr.daemon.client.shell.list() == []
    clean_connmgr("sudo-password", "--remove", "host1")
    assert "sudo wants the password" in clean_connmgr("exec", "host1", "--sudo", "--", "id", code=125).errors


def test_on_a_terminal_it_is_asked_for_and_kept_while_the_shell_is_open(
    clean_connmgr: CommandLine, users: dict[str, Inhabitant]
) -> None:
    assert users
    terminal = clean_connmgr.on_terminal("exec", "--sudo", "host1", "--", "cd /etc; echo user is $(id -un)")
    terminal.expect_exact("host1: sudo wants the password of")
    terminal.expect_exact("Password for sudo to root: ")
    terminal.sendline("wrong")
    terminal.expect_exact("sudo refused the password")
    terminal.expect_exact("Password for sudo to root: ")
    terminal.sendline(PASSWORD)
    code, rest = finish(terminal)
    assert code == 0, rest
    assert "user is root" in rest
    assert PASSWORD not in rest
    assert clean_connmgr("exec", "--sudo", "host1", "--", "pwd").output == "/etc\n"
    log = clean_connmgr("audit", "--json").output
    assert "host1/root" in log
    assert PASSWORD not in log


def test_many_hosts_share_the_password_of_their_category(
    clean_connmgr: CommandLine, users: dict[str, Inhabitant], tmp_path: Path
) -> None:
    clean_connmgr("sudo-password", "--category", "hosts", stdin=PASSWORD)
    assert clean_connmgr("sudo-password", "--show", "host2").output == "category hosts\n"
    done = clean_connmgr("exec", "--all", "--sudo", "hosts/*", "--", "id -un", code=1)
    rule = "-" * 15
    lines = done.output.splitlines()
    assert lines[:4] == [rule, f"host[1-{HOSTS}] ({HOSTS})", rule, "root"], done.output
    assert lines[4].startswith(f"{WITHOUT}: elevation_failed: {WITHOUT}: sudo to root: "), done.output
    assert re.search(rf": {HOSTS} ok, 1 elevation_failed\n", done.errors)
    outcomes = clean_connmgr("exec", "--all", "--sudo", "--json", "hosts/*", "--", "id -un", code=1).output
    [failed] = [one for one in map(json.loads, outcomes.splitlines()) if "error" in one]
    assert (failed["name"], failed["connection"]) == (f"hosts/{WITHOUT}", _id(clean_connmgr, WITHOUT))
    log = tmp_path / "outcomes"
    log.write_text(outcomes)
    assert clean_connmgr("ls", "--format", "names", "--failed", str(log)).output == f"hosts/{WITHOUT}\n"
    (tmp_path / "file").write_text("content")
    (tmp_path / "script").write_text("id -un\n")
    scripts = clean_connmgr("exec", "--all", "--sudo", "hosts/host*", "--script", f"{tmp_path}/script")
    assert scripts.output.splitlines() == [rule, f"host[1-{HOSTS}] ({HOSTS})", rule, "root"], scripts.output
    copied = clean_connmgr("cp", "--all", "hosts/*", "-j", "1", "--sudo", f"{tmp_path}/file", ":/root/file", code=1)
    # They are one machine, but each is copied to, one after the other.
    assert copied.output.splitlines()[:4] == [rule, f"host[1-{HOSTS}] ({HOSTS})", rule, "1 file, 7 B"], copied.output
    as_json = clean_connmgr(
        "cp", "--all", "hosts/*", "-j", "1", "--sudo", "--json", f"{tmp_path}/file", ":/root/file", code=1
    )
    verdicts = [json.loads(line) for line in as_json.output.splitlines()]
    assert sorted(one.get("exitCode", 99) for one in verdicts) == [0] * HOSTS + [99]
    assert users[WITHOUT].name


def test_on_a_terminal_one_password_is_asked_for_all(
    clean_connmgr: CommandLine, users: dict[str, Inhabitant], tmp_path: Path
) -> None:
    assert users
    terminal = clean_connmgr.on_terminal("exec", "--all", "--sudo", "hosts/host*", "--", "echo user is $(id -un)")
    terminal.expect_exact("sudo wants a password on ")
    terminal.expect_exact("(empty for none): ")
    terminal.sendline(PASSWORD)
    code, rest = finish(terminal)
    assert code == 0, rest
    assert f"host[1-{HOSTS}] ({HOSTS})" in rest
    assert "user is root" in rest
    (tmp_path / "file").write_text("content")
    silent = clean_connmgr("cp", "--all", "hosts/host*", "-j", "1", "--sudo", f"{tmp_path}/file", ":/root/file")
    assert f": {HOSTS} ok" in silent.errors


def test_on_a_terminal_a_script_for_all_asks_for_one_password(
    clean_connmgr: CommandLine, users: dict[str, Inhabitant], tmp_path: Path
) -> None:
    assert users
    (tmp_path / "script").write_text("#!/bin/sh\nid -un\n")
    script = str(tmp_path / "script")
    terminal = clean_connmgr.on_terminal("exec", "--all", "--sudo", "--script", script, "hosts/host*", "--")
    terminal.expect_exact("sudo wants a password on ")
    terminal.expect_exact("(empty for none): ")
    terminal.sendline(PASSWORD)
    code, rest = finish(terminal)
    assert code == 0, rest
    assert re.search(rf"host\[1-{HOSTS}\] \({HOSTS}\)\s+-+\s+root\s", rest), rest


def _id(connmgr: CommandLine, name: str) -> str:
    return connmgr.daemon.client.connection.query(name)[0]


def test_advice_names_the_connection_that_is_stored(
    clean_connmgr: CommandLine,
    users: dict[str, Inhabitant],
    places: Places,  # noqa: F811
    tmp_path: Path,
) -> None:
    wanted = clean_connmgr("exec", "host1", "--sudo", "--", "id", code=125).errors
    assert "`connmgr sudo-password host1` stores it" in wanted
    clean_connmgr("sudo-password", "host1", stdin="wrong")
    refused = clean_connmgr("exec", "host1", "--sudo", "--", "id", code=125).errors
    assert "`connmgr sudo-password --show host1` prints" in refused
    other = keygen(tmp_path / "other").with_suffix(".pub").read_text().split()
    data = {"type": "ssh", **ssh_fields(places.sshd, "nobody", hostKey=" ".join(other[:2]))}
    clean_connmgr.daemon.client.connection.add("changed", data)
    changed = clean_connmgr("exec", "changed", "--sudo", "--", "id", code=125).errors
    assert "`connmgr edit NAME hostKey=SHA256:" in changed
    empty = clean_connmgr("exec", "host1", "--sudo=", "--", "id", code=125).errors
    assert "no user is named; --sudo alone means root" in empty


def test_a_user_without_a_login_shell_runs_commands(
    clean_connmgr: CommandLine,
    users: dict[str, Inhabitant],
    running_machine: Machine,  # noqa: F811
) -> None:
    service = running_machine.add_user(shell="/usr/sbin/nologin").name
    clean_connmgr("sudo-password", "host1", stdin=PASSWORD)
    done = clean_connmgr("exec", f"--sudo={service}", "host1", "--", "id -un; echo $SHELL")
    assert done.output == f"{service}\n/bin/sh\n"
    shells = clean_connmgr("info", "host1").output
    assert f"shell as {service}" in shells
    assert clean_connmgr("disconnect", "host1").output == f"host1: 1 shell ended: the shared shell as {service}\n"
