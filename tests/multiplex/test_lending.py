"""What is lent to a session at a control socket: the client's ssh-agent, and secrets that a person has unlocked."""

from __future__ import annotations

import pytest

from tests.cli.conftest import StartSshd, login, start_sshd  # noqa: F401 - a fixture
from tests.cli.program import CommandLine
from tests.cli.test_logins import LIST, SshAgent, agent, forwarding  # noqa: F401 - a fixture
from tests.multiplex.behind import Hosts, said
from tests.plugins.sshd import Sshd

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")

PASSPHRASE = "four words or more"


def test_the_clients_agent_is_forwarded_where_the_connection_says_so(
    clean_connmgr: CommandLine,
    start_sshd: StartSshd,  # noqa: F811
    agent: SshAgent,  # noqa: F811
) -> None:
    forwarding(clean_connmgr, start_sshd(), "fore", agent)
    hosts = Hosts(clean_connmgr)
    environment = hosts.environment | {"SSH_AUTH_SOCK": str(agent.socket)}
    assert "no agent is available" in said(hosts.ssh("-A", "fore", LIST, env=environment, code=255))[0]
    lends = ["-A", "-o", "SendEnv=SSH_AUTH_SOCK"]
    assert b" held (ED25519)" in hosts.ssh(*lends, "fore", LIST, env=environment).stdout
    assert hosts.ssh("fore", "echo [$SSH_AUTH_SOCK]", env=environment).stdout == b"[]\n"
    clean_connmgr.daemon.client.post("/multiplex/close")


def test_a_locked_secret_is_told_and_unlocking_helps_all_sockets(own_connmgr: CommandLine, server: Sshd) -> None:
    own_connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
    own_connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n")
    own_connmgr.add_ssh("web", server)
    own_connmgr("edit", "web", "--secret", "password", stdin="not needed")
    own_connmgr("vault", "lock")
    hosts = Hosts(own_connmgr)
    done = hosts.ssh("web", "true", code=255)
    assert "connmgr vault unlock" in said(done)[-1]
    assert len(said(done)) == 2
    own_connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n")
    assert hosts.ssh("web", "echo open").stdout == b"open\n"
    own_connmgr("vault", "lock")
