"""Logins by keys in a PKCS#11 token, which ssh-agent uses by OpenSSH's own helper; the token is SoftHSM's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.client import ClientError
from tests.conftest import StartDaemon
from tests.plugins.sshd import SshAgent, Sshd, privilege_separation

pytestmark = pytest.mark.needs("linux", "sshd", "ssh", "softhsm", "openssl")

PIN = "270927"
PLACES = ("/usr/lib/softhsm", "/usr/lib/*/softhsm", "/usr/lib/pkcs11")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[SshAgent]:
    """An agent with the keys of a token, an RSA and an ECDSA one."""
    (tmp_path / "tokens").mkdir()
    configuration = tmp_path / "softhsm2.conf"
    configuration.write_text(f"directories.tokendir = {tmp_path / 'tokens'}\nobjectstore.backend = file\n")
    environment = {**os.environ, "SOFTHSM2_CONF": str(configuration)}

    def call(*words: str, **more: str) -> None:
        argv, own = list(words), {**environment, **more}
        done = subprocess.run(argv, env=own, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout + done.stderr

    call("softhsm2-util", "--init-token", "--free", "--label", "tests", "--pin", PIN, "--so-pin", "5678")
    kinds = {"RSA": "rsa_keygen_bits:2048", "EC": "ec_paramgen_curve:P-256"}
    for number, (kind, option) in enumerate(kinds.items(), 1):
        file = str(tmp_path / f"{kind}.pem")
        call("openssl", "genpkey", "-algorithm", kind, "-pkeyopt", option, "-out", file)
        call("softhsm2-util", "--import", file, "--token", "tests", "--label", kind, "--id", f"0{number}", "--pin", PIN)
    started = SshAgent("-P", ",".join(f"{place}/*" for place in PLACES), environment=environment)
    ask = tmp_path / "ask"
    ask.write_text(f"#!/bin/sh\necho {PIN}\n")
    ask.chmod(0o700)
    module = next(found for place in PLACES for found in Path("/").glob(f"{place[1:]}/libsofthsm2.so"))
    try:
        call(
            "ssh-add",
            "-s",
            str(module.resolve()),
            SSH_AUTH_SOCK=str(started.socket),
            SSH_ASKPASS=str(ask),
            SSH_ASKPASS_REQUIRE="force",
        )
        yield started
    finally:
        started.close()


def test_keys_of_a_token_log_in(agent: SshAgent, start_daemon: StartDaemon, tmp_path: Path) -> None:
    environment = {**os.environ, "SSH_AUTH_SOCK": str(agent.socket)}
    held = subprocess.run(["ssh-add", "-L"], env=environment, capture_output=True, text=True, timeout=60, check=True)
    keys = held.stdout.splitlines()
    assert {key.split()[0] for key in keys} == {"ssh-rsa", "ecdsa-sha2-nistp256"}
    daemon = start_daemon(environment={"SSH_AUTH_SOCK": str(agent.socket)})
    with privilege_separation():
        server = Sshd()
        try:
            server.authorized_keys.write_text(held.stdout)
            data = {"type": "ssh", "host": "127.0.0.1", "port": server.port, "user": server.user, "agent": True}
            data |= {"hostKeyChecking": "acceptNew"}
            for key in keys:
                file = tmp_path / f"{key.split()[0]}.pub"
                file.write_text(f"{key}\n")
                start = len(server.log())
                connection = daemon.client.connection.add(file.stem, {**data, "identity": {"file": str(file)}})
                daemon.client.shell.start(connection)
                shown = subprocess.run(
                    ["ssh-keygen", "-l", "-f", file], capture_output=True, text=True, timeout=60, check=True
                )
                assert shown.stdout.split()[1] in server.log()[start:]
            daemon.client.shell.stop(connection, all=True)
            # The token is taken out.
            agent.close()
            with pytest.raises(ClientError) as failed:
                daemon.client.shell.start(connection)
            assert failed.value.code == "auth_failed"
        finally:
            server.close()
