"""Machines named by their address, without a stored connection."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from connmgr.client import ClientError
from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "bash")

CONFIG = """
Host known
  HostName 127.0.0.1
  Port {server.port}
  User {server.user}
Host known 127.0.0.1
  IdentityFile {server.client_key}
"""


@pytest.fixture
def server(start_sshd: StartSshd) -> Sshd:
    return start_sshd()


@pytest.fixture
def connmgr(clean_connmgr: CommandLine, server: Sshd) -> CommandLine:
    """A command line with a daemon whose user knows the server only by ~/.ssh."""
    home = clean_connmgr.daemon.home
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh" / "known_hosts").write_text(server.known_hosts())
    config = home / ".ssh" / "config"
    config.write_text(CONFIG.format(server=server))
    config.chmod(0o600)
    return clean_connmgr


def test_a_host_that_is_not_stored_keeps_its_shell(connmgr: CommandLine, server: Sshd) -> None:
    address = f"{server.user}@known"
    by_port = f"ssh://{server.user}@127.0.0.1:{server.port}"
    served = connmgr("exec", address, "--", "mkdir served && cd served && echo here > file && pwd").output.strip()
    assert connmgr("exec", address, "--", "pwd").output == f"{served}\n"
    assert connmgr("exec", by_port, "--", "pwd").output != f"{served}\n"
    assert connmgr("shell", address, stdin="pwd\n").output == f"{served}\n"
    assert connmgr("cp", f"{address}:file", "-").output == "here\n"
    assert connmgr("cp", f"{by_port}:{served}/file", "-").output == "here\n"
    connmgr("cp", f"{by_port}:{served}/file", f"{address}:copy")
    assert connmgr("exec", address, "--", "cat copy").output == "here\n"
    for place in (by_port, f"{by_port}/etc/hosts", "ssh://", "ssh://host"):
        assert "ssh://[USER@]HOST[:PORT]:PATH" in connmgr("cp", place, "x", code=2).errors
    assert "password" in connmgr("cp", "ssh://user:word@host:x", "y", code=2).errors
    shells = connmgr.daemon.client.shell.list()
    assert len(shells) == 2
    assert address in connmgr("status").output
    assert connmgr("disconnect", address).output == f"{address}: 1 shell ended: the shared shell\n"
    assert len(connmgr.daemon.client.shell.list()) == 1


def test_an_address_is_never_written_to_the_vault(connmgr: CommandLine, server: Sshd) -> None:
    connmgr("exec", f"{server.user}@known", "--", "true")
    client = connmgr.daemon.client
    (shell,) = client.shell.list()
    (one,) = client.connection.info([shell.status.connection])
    assert (one.category, one.name, one.data["host"]) == ((), (f"{server.user}@known",), "known")
    assert one.state["osName"]
    assert connmgr("ls", "--format", "names").output == "default/local machine\n"
    written = b"".join(path.read_bytes() for path in connmgr.daemon.data_dir.glob("vault.db*"))
    assert one.id.encode() not in written
    assert f"{server.user}@known".encode() not in written
    client.connection.remove([one.id])
    assert client.shell.list() == []
    with pytest.raises(ClientError, match="Unknown connection"):
        client.connection.info([one.id])


def test_an_address_is_stored_on_request(connmgr: CommandLine, server: Sshd) -> None:
    address = f"{server.user}@known"
    assert connmgr("exec", address, "--store", "--", "echo here").output == "here\n"
    assert f"default/{address}" in connmgr("ls").output
    connmgr("exec", address, "--", "cd /usr")
    assert connmgr("exec", address, "--", "pwd").output == "/usr\n", "the stored one goes before the address"
    assert connmgr("exec", address, "--detach", "--", "true").output


def test_a_host_key_that_is_not_known_is_refused(connmgr: CommandLine, server: Sshd) -> None:
    known = Path(connmgr.daemon.environment["HOME"]) / ".ssh" / "known_hosts"
    known.write_text("")
    refusal = connmgr("exec", f"{server.user}@known", "--", "true", code=125).errors
    assert "is not known: ssh-ed25519" in refusal
    listed = subprocess.run(
        ["ssh-keygen", "-lf", server.host_keys[0].with_suffix(".pub")], capture_output=True, text=True, check=True
    )
    connmgr("trust", f"{server.user}@known", "--fingerprint", listed.stdout.split()[1])
    connmgr("exec", f"{server.user}@known", "--", "true")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ssh://me:hunter2@known", "A password in an address is seen"),
        ("ssh://known:99999", "not of the form ssh://"),
        ("ssh://", "not of the form ssh://"),
        ("ssh://known/etc", "not of the form ssh://"),
        ("me@nowhere.invalid", "nowhere.invalid has no address"),
    ],
)
def test_a_malformed_address_is_refused(connmgr: CommandLine, address: str, said: str) -> None:
    errors = connmgr("exec", address, "--", "true", code=125).errors
    assert said in errors
    assert "hunter2" not in errors


def test_after_a_refused_login_no_field_of_an_address_is_to_be_changed(connmgr: CommandLine, server: Sshd) -> None:
    Path(connmgr.daemon.environment["HOME"], ".ssh", "known_hosts").write_text(server.known_hosts())
    address = f"ssh://nobody-here@127.0.0.1:{server.port}"
    errors = connmgr("exec", address, "--", "true", code=125).errors
    assert "does not let nobody-here in" in errors
    assert "`connmgr add ssh NAME host=HOST user=USER identity.file=FILE` stores a connection with a key." in errors
    assert "connmgr edit" not in errors


def test_commands_that_need_a_stored_connection_say_so(connmgr: CommandLine, server: Sshd) -> None:
    address = f"{server.user}@known"
    assert "cannot have jobs" in connmgr("exec", address, "--detach", "--", "true", code=125).errors
    assert "--store is for USER@HOST" in connmgr("exec", "local", "--store", "--", "true", code=125).errors
    client = connmgr.daemon.client
    outer = client.connection.add("outer", {"type": "ssh", "host": "known"})
    inner = {"type": "ssh", "host": "inner.example", "gateway": outer}
    with pytest.raises(ClientError, match="cannot run over another"):
        client.connection.add("inner", inner, temporary=True)
    kept = client.connection.add("x", {"type": "ssh", "host": "x.example"}, temporary=True)
    for use in (
        lambda: client.connection.add("inner", {**inner, "gateway": kept}),
        lambda: client.connection.update(kept, name="y"),
    ):
        with pytest.raises(ClientError) as refused:
            use()
        assert refused.value.code == "unknown_connection"
