"""Logins by FIDO2 keys through an agent, at a real sshd: whoever waits is told to touch, and nobody touches in vain."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from connmgr.contract.event import LINK, TOUCH
from connmgr.mcp import call as calls
from tests.cli.program import CommandLine, finish
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.deadlines import DEADLINE_SECONDS
from tests.mcp.near import Agent, run
from tests.plugins.security_key import SecurityKey
from tests.plugins.sshd import Sshd, privilege_separation

pytestmark = pytest.mark.needs("sshd")


@pytest.fixture(params=["sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"])
def key(request: pytest.FixtureRequest) -> Iterator[SecurityKey]:
    made = SecurityKey(request.param)
    yield made
    made.close()


@pytest.fixture(scope="module")
def host() -> Iterator[Sshd]:
    with privilege_separation():
        server = Sshd()
        yield server
        server.close()


@pytest.fixture
def daemon(key: SecurityKey, host: Sshd, start_daemon: StartDaemon) -> Daemon:
    """A daemon whose agent has the key, which the host admits."""
    admit(host, key)
    return start_daemon(environment={"SSH_AUTH_SOCK": str(key.socket)})


def admit(host: Sshd, *keys: SecurityKey) -> None:
    host.authorized_keys.write_text("".join(f"{one.public}\n" for one in keys))


def added(client: Client, host: Sshd, **more: Any) -> str:
    data = {"type": "ssh", "host": "127.0.0.1", "port": host.port, "user": host.user, "hostKeyChecking": "acceptNew"}
    return client.connection.add("web1", {**data, "agent": True, **more})


def test_a_login_waits_for_the_touch_and_tells_so(daemon: Daemon, key: SecurityKey, host: Sshd) -> None:
    connection, start = added(daemon.client, host), len(host.log())
    with daemon.client.clone() as other, daemon.client.clone() as listener:
        events = listener.events([LINK])
        next(events)
        login = threading.Thread(target=other.shell.start, args=[connection])
        login.start()
        told = next(events)
        assert (told.change, told.connection, key.asked) == (TOUCH, connection, 1)
        assert login.is_alive()
        key.touch()
        login.join(DEADLINE_SECONDS)
        assert next(events).change == "up"
    assert daemon.client.shell.exec(connection, "echo in").stdout == "in"
    kind = "ED25519-SK" if "ed25519" in key.kind else "ECDSA-SK"
    assert f"Accepted publickey for {host.user}" in host.log()[start:]
    assert f"ssh2: {kind} SHA256:" in host.log()[start:]


def test_nobody_is_to_touch_a_key_that_the_host_does_not_know(daemon: Daemon, key: SecurityKey, host: Sshd) -> None:
    connection = added(daemon.client, host)
    admit(host)
    with pytest.raises(ClientError) as failed:
        daemon.client.shell.start(connection)
    assert (failed.value.code, key.asked) == ("auth_failed", 0)


def test_a_key_that_nobody_touches_ends_the_login_in_time(daemon: Daemon, key: SecurityKey, host: Sshd) -> None:
    connection = added(daemon.client, host, connectTimeout=2)
    with pytest.raises(ClientError) as failed:
        daemon.client.shell.start(connection)
    assert failed.value.code == "auth_failed", failed.value.message
    assert "The ssh-agent does not answer: timed out" in failed.value.message
    assert key.asked == 1


def test_the_file_of_such_a_key_needs_the_agent(daemon: Daemon, key: SecurityKey, host: Sshd) -> None:
    file = key.private_file()
    shown = subprocess.run(["ssh-keygen", "-l", "-f", file], capture_output=True, text=True, timeout=60, check=True)
    assert "-SK)" in shown.stdout
    identity = {"identity": {"file": str(file)}}
    connection = added(daemon.client, host, agent=False, **identity)
    with pytest.raises(ClientError, match=r"security key .* by which only an ssh-agent signs: run ssh-add") as failed:
        daemon.client.shell.start(connection)
    assert failed.value.code == "auth_failed"
    file.with_name(f"{file.name}.pub").write_text(f"{key.public}\n")
    key.touch()
    daemon.client.connection.remove([connection])
    assert daemon.client.shell.start(added(daemon.client, host, **identity))


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "web1", "--", "echo", "in"],
        ["exec", "--fresh", "web1", "--", "echo", "in"],
        ["exec", "--all", "web*", "--", "echo", "in"],
        ["cp", "-q", "/etc/hostname", "web1:{directory}/copied"],
        ["shell", "web1"],
    ],
    ids=["exec, by the front", "exec", "many machines", "cp", "shell"],
)
def test_a_person_at_a_terminal_is_told_to_touch(
    key: SecurityKey, host: Sshd, daemon: Daemon, words: list[str], tmp_path: Path
) -> None:
    added(daemon.client, host)
    terminal = CommandLine(daemon).on_terminal(*(word.format(directory=tmp_path) for word in words))
    terminal.expect_exact("connmgr: web1: touch your security key to log in")
    assert key.asked == 1
    key.touch()
    if words[0] == "shell":
        terminal.sendline("exit 0")
    code, printed = finish(terminal)
    assert code == 0, printed
    assert "echo" not in words or "in\r\n" in printed, printed


def test_an_agent_is_told_to_tell(
    key: SecurityKey, host: Sshd, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PROGRESS_SECONDS", 0.3)
    monkeypatch.setattr(calls, "LOOK_SECONDS", 0.1)
    added(daemon.client, host)
    told: list[str] = []

    async def progress(_: float, __: float | None, message: str | None) -> None:
        told.append(message or "")
        if "touch" in told[-1] and key.asked == 1:
            key.touch()

    async def work(agent: Agent) -> None:
        ran = await agent.client.call_tool(
            "run_command", {"system": "web1", "command": "echo in"}, progress_callback=progress
        )
        assert ran.structured_content is not None
        assert ran.structured_content["stdout"] == "in\n"

    run(daemon, work)
    assert "The login to web1 waits for a person to touch a security key: tell whoever has it." in told
