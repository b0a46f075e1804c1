"""Host keys at the first connection, and after a reinstallation."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine, finish
from tests.plugins.sshd import Sshd, keygen

pytestmark = pytest.mark.needs("sshd", "ssh")


def fingerprint(server: Sshd) -> str:
    argv = ["ssh-keygen", "-l", "-f", f"{server.host_keys[0]}.pub"]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20).stdout.split()[1]


def add(connmgr: CommandLine, name: str, server: Sshd, *fields: str) -> str:
    data = [f"port={server.port}", f"user={server.user}", f"identity.file={server.client_key}"]
    connmgr("add", "ssh", name, "host=127.0.0.1", *data, *fields)
    return name


def with_new_key(server: Sshd) -> Sshd:
    server.stop()
    server.host_keys = [keygen(server.directory / "new")]
    server.start()
    return server


def own_known_hosts(connmgr: CommandLine) -> Path:
    (found,) = connmgr.daemon.home.glob("**/connmgr/known_hosts")
    return found


def test_on_a_terminal_an_unknown_key_is_shown_and_asked_about(connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    name = add(connmgr, "met", server)
    terminal = connmgr.on_terminal("exec", name, "--", "echo", "in", "side")
    terminal.expect_exact(f"ssh-ed25519 {fingerprint(server)}")
    terminal.expect_exact("Trust this host?")
    terminal.sendline("perhaps")
    terminal.expect_exact("Trust this host?")
    terminal.sendline("yes")
    code, rest = finish(terminal)
    assert code == 0
    assert "in side" in rest
    assert connmgr("exec", name, "--", "echo again").output == "again\n"


def test_answering_no_refuses_the_login_and_stores_nothing(connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    name = add(connmgr, "refused", server)
    terminal = connmgr.on_terminal("exec", name, "--", "true")
    terminal.expect_exact("Trust this host?")
    terminal.sendline("no")
    code, rest = finish(terminal)
    assert code == 125
    assert "is not known" in rest
    assert "connmgr trust" in connmgr("exec", name, "--", "true", code=125).errors


def test_the_fingerprint_is_an_answer(connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    name = add(connmgr, "typed", server)
    terminal = connmgr.on_terminal("trust", name)
    terminal.expect_exact("Trust this host?")
    terminal.sendline(fingerprint(server))
    assert finish(terminal)[0] == 0
    assert "trusted already" in connmgr("trust", name).output


def test_a_script_names_the_fingerprint(connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server, other = start_sshd(), start_sshd()
    name = add(connmgr, "scripted", server)
    refused = connmgr("trust", name, "--fingerprint", fingerprint(other), code=1).errors
    assert fingerprint(server) in refused
    assert "trusted" in connmgr("trust", name, "--fingerprint", fingerprint(server)).errors
    assert connmgr("exec", name, "--", "echo in").output == "in\n"


def test_each_unknown_host_on_the_way_is_asked_about(connmgr: CommandLine, start_sshd: StartSshd) -> None:
    gateway, server = start_sshd(), start_sshd()
    add(connmgr, "gate", gateway)
    name = add(connmgr, "behind", server, "gateway=gate")
    connmgr("trust", name, "--fingerprint", fingerprint(gateway), code=1)
    told = connmgr("trust", name, "--fingerprint", fingerprint(gateway), "--fingerprint", fingerprint(server)).errors
    assert fingerprint(server) in told
    assert connmgr("exec", name, "--", "echo in").output == "in\n"


def test_a_changed_key_is_forgotten_where_it_stands(connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    name = add(connmgr, "anew", server)
    known = connmgr.daemon.home / ".ssh" / "known_hosts"
    known.parent.mkdir(mode=0o700, exist_ok=True)
    before = f"# mine\nother.example {server.known_hosts().split(None, 1)[1]}{server.known_hosts()}"
    known.write_text(before)
    try:
        assert connmgr("exec", name, "--", "echo in").output == "in\n"
        former = fingerprint(server)
        connmgr("rm", "--yes", name)
        add(connmgr, name, with_new_key(server))
        changed = connmgr("exec", name, "--", "true", code=125).errors
        assert "~/.ssh/known_hosts, line 3" in changed
        assert "connmgr trust --forget" in changed
        assert f"{former} (~/.ssh/known_hosts, line 3)" in connmgr("trust", "--forget", name).output
        assert known.read_text() == before.replace(server.known_hosts("\0").partition(" ")[0], "\0").rpartition("[")[0]
        assert known.with_name("known_hosts.old").read_text() == before
        assert "No key" in connmgr("trust", "--forget", name).output
        connmgr("trust", name, "--fingerprint", fingerprint(server))
        assert connmgr("exec", name, "--", "echo in").output == "in\n"
    finally:
        known.unlink()


def test_no_key_is_forgotten_where_the_connection_s_own_hostkey_is_another(
    connmgr: CommandLine, start_sshd: StartSshd
) -> None:
    """The key in the file is that of the host, and serves other connections and ssh."""
    server = start_sshd()
    name = add(connmgr, "pinned", server, f"hostKey=SHA256:{'x' * 43}")
    known = connmgr.daemon.home / ".ssh" / "known_hosts"
    known.parent.mkdir(mode=0o700, exist_ok=True)
    known.write_text(server.known_hosts())
    try:
        for words, code in ((("exec", name, "--", "true"), 125), (("trust", "--forget", name), 1)):
            errors = connmgr(*words, code=code).errors
            assert f"`connmgr edit NAME hostKey={fingerprint(server)}` has it accepted" in errors
            assert "trust --forget" not in errors
        assert known.read_text() == server.known_hosts()
        connmgr("edit", name, f"hostKey={fingerprint(server)}")
        assert connmgr("exec", name, "--", "echo in").output == "in\n"
    finally:
        known.unlink()


def test_the_changed_key_of_a_gateway_is_the_one_forgotten(connmgr: CommandLine, start_sshd: StartSshd) -> None:
    gateway, server = start_sshd(), start_sshd()
    add(connmgr, "gate2", gateway)
    name = add(connmgr, "behind2", server, "gateway=gate2")
    former = fingerprint(gateway)
    connmgr("trust", name, "--fingerprint", former, "--fingerprint", fingerprint(server))
    with_new_key(gateway)
    assert former in connmgr("trust", "--forget", name).output
    assert f"[127.0.0.1]:{server.port}" in own_known_hosts(connmgr).read_text()


def test_a_pattern_is_not_removed(connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    name = add(connmgr, "pattern", server)
    known = connmgr.daemon.home / ".ssh" / "known_hosts"
    known.parent.mkdir(mode=0o700, exist_ok=True)
    known.write_text(server.known_hosts("[127.0.0.*]:*"))
    try:
        assert "speaks of other hosts" in connmgr("trust", "--forget", name, code=1).errors
        assert known.exists()
    finally:
        known.unlink()


class TestMany:
    """The keys of a fleet in one table, with one question; a changed key is never among them."""

    @pytest.fixture
    def fleet(self, clean_connmgr: CommandLine, start_sshd: StartSshd) -> tuple[CommandLine, dict[str, Sshd]]:
        servers = {"web1": start_sshd(), "web2": start_sshd()}
        for name, server in servers.items():
            add(clean_connmgr, name, server)
        return clean_connmgr, servers

    def test_one_question_covers_all_hosts(self, fleet: tuple[CommandLine, dict[str, Sshd]]) -> None:
        connmgr, servers = fleet
        assert "Give --yes" in connmgr("trust", "web*", code=2).errors
        shown = connmgr("trust", "web*", "--dry-run").output
        for name, server in servers.items():
            assert f"{name}        [127.0.0.1]:{server.port}  ssh-ed25519  {fingerprint(server)}\n" in shown
        assert "is not known" in connmgr("exec", "web1", "--", "true", code=125).errors
        terminal = connmgr.on_terminal("trust", "web*")
        for server in servers.values():
            terminal.expect_exact(fingerprint(server))
        terminal.expect_exact("Trust 2 keys?")
        terminal.sendline("y")
        code, rest = finish(terminal)
        assert code == 0
        assert "2 keys trusted; 2 connections, 2 known" in rest
        assert connmgr("exec", "web2", "--", "echo in").output == "in\n"

    def test_answering_no_trusts_no_host(self, fleet: tuple[CommandLine, dict[str, Sshd]]) -> None:
        terminal = fleet[0].on_terminal("trust", "web*")
        terminal.expect_exact("Trust 2 keys?")
        terminal.sendline("n")
        assert finish(terminal)[0] == 1
        for name in fleet[1]:
            assert "is not known" in fleet[0]("exec", name, "--", "true", code=125).errors

    def test_a_changed_key_is_loud_and_never_accepted(
        self, fleet: tuple[CommandLine, dict[str, Sshd]], start_sshd: StartSshd
    ) -> None:
        connmgr, servers = fleet
        assert "2 keys trusted" in connmgr("trust", "web*", "--yes").output
        with_new_key(servers["web2"])
        connmgr("disconnect", "web*", "--yes")
        third = add(connmgr, "web3", start_sshd())
        done = connmgr("trust", "web*", "--yes", code=1)
        assert "web2: THE KEY HAS CHANGED, and was not accepted." in done.errors
        assert "1 key trusted; 3 connections, 2 known, 1 changed" in done.output
        assert connmgr("exec", third, "--", "echo in").output == "in\n"
        assert "connmgr trust --forget" in connmgr("exec", "web2", "--", "true", code=125).errors
        connmgr("trust", "--forget", "web2", "web3", "--yes")
        assert "1 key trusted" in connmgr("trust", "web2", "--yes").output

    def test_hosts_behind_an_unknown_gateway_come_next(
        self, fleet: tuple[CommandLine, dict[str, Sshd]], start_sshd: StartSshd
    ) -> None:
        connmgr, _ = fleet
        add(connmgr, "behind", start_sshd(), "gateway=web1")
        assert "3 keys trusted; 3 connections, 3 known" in connmgr("trust", "web*", "behind", "--yes").output

    def test_fingerprints_choose_keys(self, fleet: tuple[CommandLine, dict[str, Sshd]]) -> None:
        connmgr, servers = fleet
        done = connmgr("trust", "web*", "--fingerprint", fingerprint(servers["web1"]), code=1)
        assert "1 key trusted; 2 connections, 1 known, 1 failed" in done.output
        assert f"web2: {fingerprint(servers['web2'])}" in done.errors
