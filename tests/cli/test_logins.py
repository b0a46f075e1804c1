"""What a client lends for logins: a passphrase that is typed, and its ssh-agent; and agents that are forwarded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pexpect
import pytest

from connmgr.client import ClientError
from connmgr.client.sessions import Lender
from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine, finish
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.sshd import SshAgent, Sshd, keygen
from tests.rights.wire import create

pytestmark = pytest.mark.needs("sshd", "ssh")

PASSPHRASE = "open sesame"


@pytest.fixture
def agent() -> Iterator[SshAgent]:
    with closing(SshAgent()) as running:
        yield running


def beside(connmgr: CommandLine, agent: SshAgent) -> CommandLine:
    """Return the command line in an environment that knows ``agent``."""
    person = CommandLine(connmgr.daemon)
    person.environment["SSH_AUTH_SOCK"] = str(agent.socket)
    return person


def admitted(server: Sshd, name: str, passphrase: str = "") -> Path:
    """Create a key that the server admits."""
    key = keygen(server.directory / name, "ed25519", passphrase, *(["-a", "4"] if passphrase else []))
    with server.authorized_keys.open("a") as file:
        file.write(key.with_name(f"{name}.pub").read_text())
    return key


def locked(connmgr: CommandLine, server: Sshd, name: str, *fields: str) -> Path:
    """Add a connection with an encrypted key, and return the key."""
    key = admitted(server, name, PASSPHRASE)
    connmgr.add_ssh(name, server, f"identity.file={key}", *fields)
    return key


def answer(terminal: pexpect.spawn, key: Path, passphrase: str) -> None:
    terminal.expect_exact(f"Enter passphrase for key '{key}': ")
    # The terminal's echo must be off before anything is typed.
    assert terminal.waitnoecho(20)
    terminal.sendline(passphrase)


def trail(daemon: Daemon, action: str, connection: str) -> list[dict[str, object]]:
    """Return the entries about requests, without those about the ends of what they started."""
    entries = map(json.loads, (daemon.data_dir / "audit.log").read_text().splitlines())
    requests = [one for one in entries if "event" not in one]
    return [one for one in requests if (one.get("action"), one.get("connection")) == (action, connection)]


def test_the_passphrase_of_a_key_is_asked_for_and_used_once(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    server = start_sshd()
    key = locked(clean_connmgr, server, "locked")
    terminal = clean_connmgr.on_terminal("exec", "locked", "--", "echo", "in", "side")
    answer(terminal, key, "open barley")
    answer(terminal, key, PASSPHRASE)
    terminal.expect_exact("Keep this passphrase, sealed in the vault, for locked? [y/N]")
    terminal.sendline("n")
    code, rest = finish(terminal)
    assert code == 0
    assert "in side" in rest
    assert PASSPHRASE not in rest
    # The link stays open, and its next login lacks the passphrase again.
    assert clean_connmgr("exec", "locked", "--", "echo again").output == "again\n"
    clean_connmgr.daemon.client.shell.stop(clean_connmgr.daemon.client.connection.query("locked")[0], all=True)
    told = clean_connmgr("exec", "locked", "--", "true", code=125).errors
    assert f"{key} is encrypted" in told
    assert f"`connmgr edit locked identity.file={key} --secret identity.passphrase`" in told
    for file in clean_connmgr.daemon.home.rglob("*"):
        assert not file.is_file() or PASSPHRASE.encode() not in file.read_bytes(), file


def test_a_passphrase_may_be_kept_sealed(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    key = locked(clean_connmgr, start_sshd(), "kept")
    terminal = clean_connmgr.on_terminal("exec", "kept", "--", "echo", "in", "side")
    answer(terminal, key, PASSPHRASE)
    terminal.expect_exact("Keep this passphrase, sealed in the vault, for kept? [y/N]")
    terminal.sendline("y")
    code, rest = finish(terminal)
    assert code == 0
    assert "in side" in rest
    id = clean_connmgr.daemon.client.connection.query("kept")[0]
    clean_connmgr.daemon.client.shell.stop(id, all=True)
    assert clean_connmgr("exec", "kept", "--", "echo again").output == "again\n"
    assert PASSPHRASE not in (clean_connmgr.daemon.data_dir / "audit.log").read_text()


def test_after_three_wrong_passphrases_the_error_names_the_key(
    clean_connmgr: CommandLine, start_sshd: StartSshd
) -> None:
    key = locked(clean_connmgr, start_sshd(), "guessed")
    terminal = clean_connmgr.on_terminal("shell", "guessed")
    for _ in range(3):
        answer(terminal, key, "guess")
    code, rest = finish(terminal)
    assert code == 1
    assert f"passphrase of the private key {key} is wrong" in "".join(rest.split("\r\n"))


def test_the_passphrase_of_a_gateway_s_key_is_kept_there(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    gate, server = start_sshd(), start_sshd()
    key = locked(clean_connmgr, gate, "gate")
    clean_connmgr.add_ssh("behind", server, "gateway=gate")
    terminal = clean_connmgr.on_terminal("ssh", "behind", "echo in side")
    answer(terminal, key, PASSPHRASE)
    terminal.expect_exact("for gate? [y/N]")
    terminal.sendline("y")
    code, rest = finish(terminal)
    assert code == 0
    assert "in side" in rest
    assert clean_connmgr("exec", "gate", "--", "echo again").output == "again\n"


def test_a_validated_connection_is_opened_with_the_passphrase(
    clean_connmgr: CommandLine, start_sshd: StartSshd
) -> None:
    key = locked(clean_connmgr, start_sshd(), "seen")
    terminal = clean_connmgr.on_terminal("trust", "seen")
    answer(terminal, key, PASSPHRASE)
    terminal.expect_exact("[y/N]")
    terminal.sendline("n")
    code, rest = finish(terminal)
    assert code == 0
    assert "trusted already" in rest


def test_a_daemon_without_an_agent_borrows_the_client_s(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent
) -> None:
    server = start_sshd()
    agent.add(admitted(server, "held"))
    connection = clean_connmgr.add_ssh("lent", server)
    clean_connmgr("edit", "lent", "--unset", "identity")
    told = clean_connmgr("exec", "lent", "--", "true", code=125).errors
    assert f"127.0.0.1:{server.port} does not let {server.user} in" in told
    assert "ssh-add" in told
    person = beside(clean_connmgr, agent)
    assert person("exec", "lent", "--", "echo in").output == "in\n"
    (lent,) = trail(clean_connmgr.daemon, "connection.login", connection)
    assert (lent["agent"], lent["opened"]) == ("lent", True)
    # The link is shared; the agent was for its login alone.
    assert clean_connmgr("exec", "lent", "--", "echo still").output == "still\n"
    clean_connmgr.daemon.client.shell.stop(connection, all=True)
    clean_connmgr("exec", "lent", "--", "true", code=125)


def test_an_agent_is_lent_only_where_the_connection_allows_one(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent
) -> None:
    server = start_sshd()
    agent.add(admitted(server, "held"))
    connection = clean_connmgr.add_ssh("forbidden", server)
    clean_connmgr("edit", "forbidden", "--unset", "identity", "agent=false")
    told = beside(clean_connmgr, agent)("exec", "forbidden", "--", "true", code=125).errors
    assert "Tried: nothing" in told
    assert trail(clean_connmgr.daemon, "connection.login", connection) == []


@pytest.mark.needs("root")
def test_an_agent_of_another_user_is_not_used(
    clean_connmgr: CommandLine, start_sshd: StartSshd, tmp_path: Path
) -> None:
    server = start_sshd()
    connection = clean_connmgr.add_ssh("foreign", server)
    clean_connmgr("edit", "foreign", "--unset", "identity")
    path = Path("/tmp", f"cm-foreign-{os.getpid()}")
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "ssh-agent", "-D", "-a", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout
            assert running.stdout.readline()
            with pytest.raises(ClientError, match="a program of another user listens there") as caught:
                clean_connmgr.daemon.client.connection.login(connection, agent=str(path))
            assert caught.value.code == "auth_failed"
        finally:
            running.kill()
            path.unlink(missing_ok=True)


def test_a_token_lends_no_agent_without_the_scope(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent
) -> None:
    server = start_sshd()
    agent.add(admitted(server, "held"))
    connection = clean_connmgr.add_ssh("rights", server)
    clean_connmgr("edit", "rights", "--unset", "identity")
    request = {"connection": connection, "agent": str(agent.socket)}
    assert create(clean_connmgr.daemon, "shell.any").refused("/connection/login", **request) == "scope_denied"
    assert create(clean_connmgr.daemon, "shell.any", "ssh.agent").ok("/connection/login", **request) == {"opened": True}


LIST = "ssh-add -l"


def forwarding(connmgr: CommandLine, server: Sshd, name: str, agent: SshAgent) -> str:
    """Add a connection that forwards an agent, which holds a key called ``held``."""
    agent.add(admitted(server, "held"))
    return connmgr.add_ssh(name, server, "forwardAgent=true")


def test_a_lent_agent_is_forwarded_where_the_connection_says_so(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent
) -> None:
    server = start_sshd()
    connection = forwarding(clean_connmgr, server, "fore", agent)
    told = clean_connmgr("exec", "fore", "--", LIST, code=125).errors
    assert "forwardAgent" in told
    assert "no agent is available" in told
    person = beside(clean_connmgr, agent)
    assert " held (ED25519)" in person("exec", "fore", "--", LIST).output
    assert " held (ED25519)" in person("exec", "fore", "--session", "other", "--", LIST).output
    assert " held (ED25519)" in person("ssh", "-A", "fore", LIST).output
    for action in ("shell.exec", "shell.pipe"):
        assert trail(clean_connmgr.daemon, action, connection)[-1]["agentForwarded"] is True
    person("exec", "--all", "fore", "--", LIST)
    entries = map(json.loads, (clean_connmgr.daemon.data_dir / "audit.log").read_text().splitlines())
    broadcasts = [one for one in entries if one.get("action") == "shell.broadcast"]
    assert broadcasts[-1]["agentForwarded"] is True
    # It signs there.
    onward = f"ssh -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -p {server.port}"
    assert person("exec", "fore", "--", f"{onward} 127.0.0.1 echo on''ward").output == "onward\n"


def test_an_agent_reaches_only_the_connection_that_asks_for_it(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent
) -> None:
    server, other = start_sshd(), start_sshd()
    forwarding(clean_connmgr, server, "fore", agent)
    clean_connmgr("add", "shellEnvironment", "inside", "host=fore")
    clean_connmgr.add_ssh("behind", other, "gateway=fore")
    person = beside(clean_connmgr, agent)
    for name in ("inside", "behind"):
        assert person("exec", name, "--", "echo agent=$SSH_AUTH_SOCK").output == "agent=\n"
    told = person("ssh", "-A", "behind", "true", code=255).errors
    assert "connmgr edit behind forwardAgent=true" in told


def test_ssh_without_an_agent_hides_it_from_the_command(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent
) -> None:
    forwarding(clean_connmgr, start_sshd(), "fore", agent)
    person = beside(clean_connmgr, agent)
    for words in (["-a"], ["-o", "ForwardAgent=no"]):
        assert person("ssh", *words, "fore", "echo agent=$SSH_AUTH_SOCK").output == "agent=\n"
    assert "agent=/" in person("ssh", "fore", "echo agent=$SSH_AUTH_SOCK").output


def test_a_host_that_refuses_the_agent_is_named(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent
) -> None:
    server = start_sshd(options={"AllowAgentForwarding": "no"})
    forwarding(clean_connmgr, server, "fore", agent)
    told = beside(clean_connmgr, agent)("exec", "fore", "--", "true", code=125).errors
    assert f"127.0.0.1:{server.port} refuses the ssh-agent" in told
    assert "AllowAgentForwarding" in told


def test_a_token_uses_no_forwarded_agent_without_the_scope(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent
) -> None:
    connection = forwarding(clean_connmgr, start_sshd(), "fore", agent)
    scopes = ("shell.any", "fs.read", "job", "terminal", "tunnel", "connection.read", "connection.write")
    holder = create(clean_connmgr.daemon, *scopes, "secret.decrypt")
    run = {"connection": connection, "command": LIST}
    # Neither before the link is open, nor after.
    assert holder.refused("/shell/exec", **run, start=True) == "scope_denied"
    person = beside(clean_connmgr, agent)
    assert " held " in person("exec", "fore", "--", LIST).output
    terminal = clean_connmgr.daemon.client.terminal.open(connection)
    for path, request in {
        "/shell/exec": {**run, "start": True},
        "/shell/start": {"connection": connection, "session": "own"},
        "/terminal/open": {"connection": connection},
        "/terminal/input": {"terminal": terminal, "data": "ssh-add -l\r"},
        "/job/start": run,
        "/fs/read": {"connection": connection, "path": "/etc/passwd"},
    }.items():
        assert holder.refused(path, **request) == "scope_denied", path
    # Nor in a run whose session is gone, as that of a schedule.
    named = f"agent of {connection}"
    holder.ok("/schedule/add", name=named, every=3600, run={"connections": [connection], "command": LIST})
    begun = holder.ok("/schedule/trigger", schedule=named)["run"]
    assert clean_connmgr.daemon.client.runs.wait(begun, DEADLINE_SECONDS).state == "failed"
    [target] = holder.ok("/run/targets", run=begun)["targets"]
    assert target["error"]["code"] == "scope_denied", target
    holder.ok("/schedule/remove", schedule=named)
    info = clean_connmgr.daemon.client.connection.info([connection])[0]
    data = {"type": "ssh", **info.data}
    assert holder.refused("/connection/update", connection=connection, data=data) == "scope_denied"
    allowed = create(clean_connmgr.daemon, "shell.any", "ssh.agent")
    assert " held " in allowed.ok("/shell/exec", **run)["stdout"]


def test_a_remote_host_that_babbles_at_the_agent_ends_only_its_own_channel(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent
) -> None:
    forwarding(clean_connmgr, start_sshd(), "fore", agent)
    person = beside(clean_connmgr, agent)
    babble = (
        "import os,socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(os.environ['SSH_AUTH_SOCK']); "
        "s.sendall(b'\\xff'*8); sys.exit(s.recv(1) != b'')"
    )
    person("exec", "fore", "--argv", "--", "/usr/bin/python3", "-c", babble)
    assert " held " in person("exec", "fore", "--", LIST).output


def test_no_agent_is_used_unless_offered(clean_connmgr: CommandLine, start_sshd: StartSshd) -> None:
    """A socket that nobody listens on any more is an error with its reason, and no crash."""
    server = start_sshd()
    connection = clean_connmgr.add_ssh("gone", server)
    clean_connmgr("edit", "gone", "--unset", "identity")
    path = clean_connmgr.daemon.home / "dead"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with pytest.raises(ClientError, match="The ssh-agent that the client lends does not answer"):
        clean_connmgr.daemon.client.connection.login(connection, agent=str(path))


def test_a_command_on_many_connections_lends_too(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent
) -> None:
    first, second, strange = start_sshd(), start_sshd(), start_sshd()
    agent.add(admitted(first, "held"))
    second.authorized_keys.write_text(first.authorized_keys.read_text())
    for name, server in (("first", first), ("second", second), ("strange", strange)):
        clean_connmgr.add_ssh(name, server)
        clean_connmgr("edit", name, "--unset", "identity")
    person = beside(clean_connmgr, agent)
    told = person("exec", "--all", "--brief", "first", "second", "strange", "--", "echo in", code=1)
    assert sorted(line.split()[:2] for line in told.output.splitlines()) == [
        ["first", "ok"],
        ["second", "ok"],
        ["strange", "auth_failed"],
    ]


def test_a_passphrase_is_asked_for_once_for_all_connections_and_beside_a_pipe(
    clean_connmgr: CommandLine, start_sshd: StartSshd
) -> None:
    server = start_sshd()
    key = locked(clean_connmgr, server, "one")
    clean_connmgr.add_ssh("two", server, f"identity.file={key}", "keepAlive=11")
    command = "echo from stdin | connmgr exec --all --brief one two --stdin -- cat"
    terminal = clean_connmgr.on_terminal("-c", command, program="/bin/sh")
    answer(terminal, key, PASSPHRASE)
    code, rest = finish(terminal)
    assert code == 0, rest
    assert rest.count("from stdin") == 2


def test_scripts_jobs_copies_and_starts_on_many_connections_lend_too(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent, tmp_path: Path
) -> None:
    server = start_sshd()
    agent.add(admitted(server, "held"))
    for name in ("first", "second"):
        clean_connmgr.add_ssh(name, server, f"keepAlive={10 + len(name)}")
        clean_connmgr("edit", name, "--unset", "identity")
    person = beside(clean_connmgr, agent)
    (tmp_path / "script").write_text("echo in side\n")
    script = str(tmp_path / "script")
    for words in (
        ("exec", "--all", "first", "second", "--script", script),
        ("exec", "--all", "first", "second", "--detach", "--", "true"),
        ("cp", "--all", "{first,second}", script, ":copied-script"),
        ("start", "first", "second"),
    ):
        # Links that were lent stay open for a while, so each of these begins without one.
        clean_connmgr("disconnect", "--yes", "first", "second")
        assert "auth_failed" not in person(*words).output, words


def test_a_lent_agent_is_lent_again_when_the_link_is_lost(
    clean_connmgr: CommandLine, start_sshd: StartSshd, agent: SshAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_sshd()
    agent.add(admitted(server, "held"))
    connection = clean_connmgr.add_ssh("lent", server)
    clean_connmgr("edit", "lent", "--unset", "identity")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent.socket))
    monkeypatch.setattr("connmgr.client.sessions.AGAIN_SECONDS", 0.0)
    client = clean_connmgr.daemon.client
    client.remedy(Lender(client).lends)
    try:
        for _ in range(2):
            assert client.shell.exec(connection, "echo in", start=True).stdout == "in"
            client.shell.stop(connection, all=True)
    finally:
        client.remedy(None)


def test_the_daemon_s_own_agent_is_not_asked_twice_and_a_passphrase_still_is(
    tmp_path: Path, start_sshd: StartSshd, agent: SshAgent
) -> None:
    server = start_sshd()
    agent.add(keygen(tmp_path / "stranger"))
    daemon = Daemon(tmp_path, environment={"SHELL": "/bin/bash", "SSH_AUTH_SOCK": str(agent.socket)})
    try:
        connmgr = beside(CommandLine(daemon), agent)
        key = locked(connmgr, server, "both", "agent=true")
        told = connmgr("exec", "both", "--", "true", code=125).errors
        assert f"{key} is encrypted" in told
        terminal = connmgr.on_terminal("exec", "both", "--", "echo", "in", "side")
        answer(terminal, key, PASSPHRASE)
        terminal.expect_exact("[y/N]")
        terminal.sendline("n")
        code, rest = finish(terminal)
        assert code == 0
        assert "in side" in rest
    finally:
        daemon.stop()
