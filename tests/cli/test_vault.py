"""Secrets and vault users from the command line."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from connmgr.client import Client
from tests.api.wire import LOCAL
from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine, finish
from tests.conftest import StartDaemon

PASSPHRASE = "four words or more"
OTHER = "four other words or more"


def test_a_value_is_encrypted_and_decrypted(connmgr: CommandLine) -> None:
    encrypted = connmgr("encrypt", stdin="two\nlines\n").output
    assert json.loads(encrypted)["secret"]["type"] == "locked"
    assert connmgr("decrypt", stdin=encrypted).output == "two\nlines\n"
    terminal = connmgr.on_terminal("encrypt")
    terminal.expect("Value: ")
    terminal.sendline("hunter2")
    code, shown = finish(terminal)
    assert code == 0
    assert "hunter2" not in shown
    assert connmgr("decrypt", stdin=shown.strip()).output == "hunter2\n"


@pytest.mark.parametrize("garbage", ["", "no json", "[]"])
def test_decrypting_plain_text_is_refused(connmgr: CommandLine, garbage: str) -> None:
    assert "Standard input is not" in connmgr("decrypt", stdin=garbage, code=2).errors


def test_users_lock_the_vault_and_commands_share_what_is_unlocked(own_connmgr: CommandLine) -> None:
    connmgr = own_connmgr
    assert connmgr("vault", "status").output.startswith("users     none")
    for_all = connmgr("encrypt", stdin="for all").output
    warned = connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n").errors
    assert "must unlock" in warned, "nobody is told that scripts need to unlock from now on"

    refusal = connmgr("decrypt", stdin=for_all, code=4).errors
    assert "connmgr vault unlock" in refusal
    assert connmgr("vault", "status", "--json").json == {
        "hasUsers": True,
        "user": None,
        "principals": [],
        "users": [],
    }

    connmgr("vault", "unlock", "alice", stdin="wrong\n", code=4)
    connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n")
    kept = connmgr.daemon.home / "run" / "connmgr" / "session"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert PASSPHRASE not in kept.read_text()
    assert connmgr("decrypt", stdin=for_all).output == "for all\n"
    for_alice = connmgr("encrypt", stdin="for alice").output
    assert connmgr("status", "--json").json["vault"] == {"hasUsers": True, "user": "alice"}
    assert connmgr("exec", "--all", "local*", "--", "true").code == 0

    connmgr("vault", "lock")
    assert not kept.exists()
    connmgr("decrypt", stdin=for_alice, code=4)


def test_unlocking_for_one_command_keeps_nothing(own_connmgr: CommandLine) -> None:
    connmgr = own_connmgr
    connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
    status = connmgr("--unlock", "alice", "vault", "status", "--json", stdin=f"{PASSPHRASE}\n").json
    assert (status["user"], status["users"]) == ("alice", ["alice"])
    assert connmgr("vault", "status", "--json").json["user"] is None
    assert not (connmgr.daemon.home / "run" / "connmgr" / "session").exists()
    connmgr("--unlock", "alice", "ls", stdin="wrong\n", code=4)
    terminal = connmgr.on_terminal("--unlock", "alice", "vault", "status")
    terminal.expect("Passphrase of alice: ")
    terminal.sendline(PASSPHRASE)
    code, shown = finish(terminal)
    assert code == 0
    assert "alice" in shown
    assert PASSPHRASE not in shown


def test_passphrases_change_and_users_go(own_connmgr: CommandLine) -> None:
    connmgr = own_connmgr
    terminal = connmgr.on_terminal("vault", "user", "add", "alice")
    for entered in (PASSPHRASE, "a slip of the finger"):
        terminal.expect("Passphrase of alice.*: ")
        terminal.sendline(entered)
    code, shown = finish(terminal)
    assert code == 1
    assert "passphrases differ" in shown
    connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
    connmgr("vault", "user", "passphrase", "alice", stdin=f"{PASSPHRASE}\n{OTHER}\n")
    connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n", code=4)
    connmgr("vault", "unlock", "alice", stdin=f"{OTHER}\n")
    assert "must unlock" not in connmgr("vault", "user", "add", "bob", stdin=f"{PASSPHRASE}\n").errors
    connmgr("--unlock", "bob", "add", "ssh", "web", "host=w", "--secret", "password", stdin=f"{PASSPHRASE}\nsecret\n")
    refused = connmgr("vault", "user", "rm", "bob", code=1).errors
    assert "Only bob can open secrets of 1 connection: web" in refused
    removed = connmgr("vault", "user", "rm", "bob", "--force")
    assert removed.output.rstrip().endswith("web")
    assert "are lost" in removed.errors


def test_a_user_goes_and_the_secrets_stay(own_connmgr: CommandLine) -> None:
    connmgr = own_connmgr
    connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
    connmgr("--unlock", "alice", "add", "ssh", "web", "host=w", "--secret", "password", stdin=f"{PASSPHRASE}\nsecret\n")
    connmgr("vault", "user", "rm", "alice", code=4)
    connmgr("vault", "user", "rm", "alice", stdin="wrong\n", code=4)
    removed = connmgr("vault", "user", "rm", "alice", stdin=f"{PASSPHRASE}\n")
    assert removed.output.rstrip().endswith("web")
    assert "every client of the daemon" in removed.errors
    sealed = connmgr("info", "web", "--json").json["rawData"]["password"]
    assert connmgr("decrypt", stdin=json.dumps(sealed)).output == "secret\n"


def test_a_session_of_a_daemon_that_was_restarted_is_forgotten(port: str, start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--port", port)
    connmgr = CommandLine(daemon)
    connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
    connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n")
    kept = daemon.home / "run" / "connmgr" / "session"
    assert kept.exists()
    daemon.stop()
    again = start_daemon("--port", port, home=daemon.home)
    assert CommandLine(again)("vault", "status", "--json").json["user"] is None
    assert not kept.exists()


def test_a_kept_session_that_others_could_read_is_refused(own_connmgr: CommandLine) -> None:
    own_connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
    own_connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n")
    (own_connmgr.daemon.home / "run" / "connmgr" / "session").chmod(0o644)
    assert "may be read by others" in own_connmgr("vault", "status", code=1).errors
    assert "may be read by others" in own_connmgr("exec", "local", "--", "true", code=125).errors


@pytest.mark.parametrize("kind", ["symlink", "directory", "fifo"])
def test_a_malformed_kept_session_is_refused_with_advice(clean_connmgr: CommandLine, kind: str) -> None:
    kept = clean_connmgr.daemon.home / "run" / "connmgr" / "session"
    if kind == "symlink":
        kept.symlink_to("/etc/passwd")
    elif kind == "directory":
        kept.mkdir()
    else:
        os.mkfifo(kept, 0o600)
    for command in (("ls",), ("vault", "unlock", "alice"), ("vault", "lock")):
        refusal = clean_connmgr(*command, code=1).errors
        assert refusal.startswith(f"Error: {kept} "), refusal
        assert refusal.endswith(": remove it, and unlock the vault again.\n")


def test_a_damaged_session_is_replaced(own_connmgr: CommandLine) -> None:
    kept = own_connmgr.daemon.home / "run" / "connmgr" / "session"
    own_connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
    for token in ("two\nlines", "\u20ac", 7, None):
        kept.write_text(json.dumps({"url": own_connmgr.daemon.url, "token": token}))
        kept.chmod(0o600)
        assert own_connmgr("vault", "status", "--json").json["user"] is None, token
    own_connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n")
    assert own_connmgr("vault", "status", "--json").json["user"] == "alice"
    own_connmgr("vault", "lock")
    assert not kept.exists()


def test_each_daemon_of_a_user_has_its_own_session(start_daemon: StartDaemon, tmp_path: Path) -> None:
    first = CommandLine(start_daemon())
    (tmp_path / "other").mkdir(mode=0o700)
    auth_file = tmp_path / "other" / "auth"
    second = CommandLine(start_daemon("--auth-file", str(auth_file), home=tmp_path / "second"))
    second.environment |= {"XDG_RUNTIME_DIR": first.environment["XDG_RUNTIME_DIR"], "CONNMGR_AUTH_FILE": str(auth_file)}
    for connmgr in (first, second):
        connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
        connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n")
    assert (tmp_path / "other" / "session").exists()
    for connmgr in (first, second):
        assert connmgr("vault", "status", "--json").json["user"] == "alice"
    second("vault", "lock")
    assert second("vault", "status", "--json").json["user"] is None
    key = tmp_path / "key"
    key.write_text(second("api-key").output)
    # Even if --url names the other daemon beside the first one's auth file.
    first("--url", second.daemon.url, "--api-key-file", str(key), "vault", "lock")
    assert first("vault", "status", "--json").json["user"] == "alice"


@pytest.mark.needs("sudo")
def test_secrets_are_lent_to_a_token_until_the_lock(own_connmgr: CommandLine, tmp_path: Path) -> None:
    connmgr = own_connmgr
    connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
    new = ["token", "create", "--for", "ci", "--expires", "1h", "--scope", "shell.any", "--scope", "connection.read"]
    assert "vault unlock" in connmgr(*new, "--lend-secrets", code=4).errors
    assert connmgr("token", "ls").output == ""
    assert "--lend-secrets" in connmgr(*new, "--lend-for", "1h", code=2).errors
    assert "connmgr vault unlock alice" in connmgr("--unlock", "alice", *new, "--lend-secrets", code=2).errors
    connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n")
    data = {"type": "shellEnvironment", "elevated": True, "host": {"storeId": LOCAL}, "password": "hers"}
    add = {"name": "root", "data": data, "validate": False}
    with Client(connmgr.daemon.url, auth_file=connmgr.daemon.auth_file) as client:
        client.post("/vault/unlock", user="alice", passphrase=PASSPHRASE)
        client.post("/connection/add", **add)
    file = tmp_path / "ci.token"
    made = connmgr(*new, "--lend-secrets", "--lend-for", "10m", "--output", str(file))
    assert "It may use the secrets of alice until" in made.errors
    ran = ["exec", "--token-file", str(file), "local machine/root", "--", "id", "-un"]
    assert connmgr(*ran).output == "root\n"
    assert "secrets of alice" in connmgr("token", "ls").output
    assert "those of alice, until" in connmgr("token", "info", "ci").output
    assert "those of alice, until" in connmgr("token", "info", "--token-file", str(file)).output
    connmgr("vault", "lock")
    refused = connmgr(*ran, code=125).errors
    assert "connmgr token lend" in refused
    connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n")
    connmgr("token", "lend", "ci", "--for", "5m")
    assert connmgr(*ran).output == "root\n"
    assert "The token has no loan" in connmgr("token", "lend", "ci", "--end").errors
    assert "secrets of" not in connmgr("token", "ls").output
    connmgr(*ran, code=125)
    connmgr("token", "lend", "ci", "--end", "--for", "5m", code=2)


@pytest.mark.needs("sshd")
@pytest.mark.parametrize("words", [["shell", "web"], ["exec", "web", "--", "echo", "in"]], ids=["shell", "exec"])
def test_a_command_at_a_terminal_asks_for_the_passphrase(
    own_connmgr: CommandLine, start_sshd: StartSshd, words: list[str]
) -> None:
    connmgr, server = own_connmgr, start_sshd()
    connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
    with Client(connmgr.daemon.url, auth_file=connmgr.daemon.auth_file) as alice:
        alice.vault.unlock("alice", PASSPHRASE)
        data = {"type": "ssh", "host": "127.0.0.1", "port": server.port, "user": server.user}
        identity = {"key": server.client_key.read_text()}
        alice.connection.add("web", {**data, "identity": identity, "hostKeyChecking": "acceptNew"})
    # Without a terminal it is an error as before.
    assert "connmgr vault unlock" in connmgr("exec", "web", "--", "true", code=125).errors
    terminal = connmgr.on_terminal(*words)
    terminal.expect("The secret is locked.*Passphrase of alice: ")
    terminal.sendline("wrong passphrase")
    terminal.expect("wrong")
    terminal.expect("Passphrase of alice: ")
    terminal.sendline(PASSPHRASE)
    if words[0] == "shell":
        # What is typed before the prompt is lost: the question drops it when the terminal shows what is typed again.
        terminal.expect("[#$]")
        # With a mark that the echo of what is typed does not have.
        terminal.sendline("echo i''n; exit 0")
    # Before it there may be the sequence that wipes the line of a command that takes long, and which ends in a letter.
    terminal.expect(r"(?<![a-z ])in\r\n")
    code, shown = finish(terminal)
    assert code == 0, shown
    assert PASSPHRASE not in shown
    # It was unlocked for that command alone.
    assert connmgr("vault", "status", "--json").json["user"] is None
    terminal = connmgr.on_terminal(*words)
    terminal.expect("Passphrase of alice: ")
    terminal.sendline("")
    assert finish(terminal)[0] == (125 if words[0] == "exec" else 4)
