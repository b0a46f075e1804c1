"""An authority certifies the keys of hosts: OpenSSH's client and connmgr's own then know a host that they never saw."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from tests.conftest import StartDaemon
from tests.deadlines import eventually
from tests.plugins.sshd import Sshd, keygen, privilege_separation
from tests.rights.wire import create
from tests.signers.conftest import Host

pytestmark = pytest.mark.needs("sshd")


def certificate_of(owner: Client, server: Sshd, *names: str, **options: Any) -> Path:
    """Return the file of a new certificate for the host key of ``server``."""
    made = owner.ca.host("hosts", server.host_keys[0].with_suffix(".pub").read_text(), names, **options)
    path = server.directory / f"certificate-{made.serial}.pub"
    path.write_text(f"{made.certificate}\n")
    return path


def test_a_host_is_known_by_its_certificate(start_daemon: StartDaemon, tmp_path: Path) -> None:
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    daemon = start_daemon(home=tmp_path / "home")
    owner = daemon.client
    [line] = owner.ca.init("hosts")
    (ssh / "known_hosts").write_text(f"@cert-authority [127.0.0.1]:* {line}\n")
    with privilege_separation():
        server = Sshd()
        try:
            data = {
                "type": "ssh",
                "host": "127.0.0.1",
                "port": server.port,
                "user": server.user,
                "identity": {"file": str(server.client_key)},
                "hostKeyChecking": "strict",
            }
            connection = owner.connection.add("web1", data)
            with pytest.raises(ClientError) as unknown:
                owner.shell.start(connection)
            assert unknown.value.code == "host_key_unknown"
            for names, opens in ((["elsewhere.example"], False), (["127.0.0.1"], True)):
                certificate = certificate_of(owner, server, *names, seconds=3600)
                shown = subprocess.run(
                    ["ssh-keygen", "-L", "-f", certificate], capture_output=True, text=True, timeout=60, check=True
                ).stdout
                assert "host certificate" in shown, shown
                assert 'Key ID: "connmgr entry=' in shown, shown
                server.stop()
                server.options["HostCertificate"] = str(certificate)
                server.start()
                argv = ["ssh", "-F", "none", "-o", f"UserKnownHostsFile={ssh / 'known_hosts'}", "-o", "BatchMode=yes"]
                argv += ["-o", "StrictHostKeyChecking=yes", "-i", str(server.client_key), "-p", str(server.port)]
                asked = subprocess.run(
                    [*argv, f"{server.user}@127.0.0.1", "true"], capture_output=True, text=True, timeout=60, check=False
                )
                assert (asked.returncode == 0) is opens, asked.stderr
                if opens:
                    owner.shell.start(connection)
                else:
                    with pytest.raises(ClientError) as refused:
                        owner.shell.start(connection)
                    assert refused.value.code == "host_key_unknown"
        finally:
            server.close()
    [noted] = [
        one
        for one in owner.post("/audit/query")["entries"]
        if one.get("event") == "certificate ordered" and one["principals"] == ["127.0.0.1"]
    ]
    assert (noted["signer"], noted["seconds"]) == ("hosts", 3600)


def test_who_certifies_hosts_and_what(clean_daemon: Any, owner: Client, tmp_path: Path) -> None:
    owner.ca.init("elsewhere", {"type": "command", "argv": ["true"]})
    public = keygen(tmp_path / "host").with_suffix(".pub").read_text()
    for name, key, code in (
        ("elsewhere", public, "invalid_request"),
        ("nobody", public, "unknown_signer"),
        ("team", "ssh-ed25519 nonsense", "invalid_request"),
        ("team", "ssh-dss AAAAB3NzaC1kc3M=", "signer_refused"),
    ):
        with pytest.raises(ClientError) as failed:
            owner.ca.host(name, key, ["web1"])
        assert failed.value.code == code, failed.value.message
    token = create(clean_daemon, "vault.admin", "connection.write", "ssh.certificate")
    assert token.refused("/ca/host", name="team", key=public, names=["web1"]) == "scope_denied"


LIVES = 6
"""Seconds for which a certificate of the tests below is valid."""


@pytest.mark.parametrize("renew", [False, True])
def test_what_begins_after_a_certificate_has_expired_goes_by_the_policy(
    owner: Client, host: Host, tmp_path: Path, renew: bool
) -> None:
    authority = keygen(tmp_path / "authority")
    host.trust([authority.with_suffix(".pub").read_text().strip()])
    words = ["-q", "-s", str(authority), "-I", "{keyId}", "-n", "{principals}", "-V", f"-1m:+{LIVES}s", "{public}"]
    owner.ca.init("short", {"type": "command", "argv": ["ssh-keygen", *words]}, renew=renew)
    connection = owner.connection.add("web1", host.data(signer="short"))

    def logins() -> int:
        return host.log().count("Accepted publickey")

    before = logins()
    owner.shell.start(connection)
    expires = time.monotonic() + LIVES
    owner.shell.start(connection, session="meanwhile")
    assert logins() == before + 1
    eventually(lambda: time.monotonic() > expires, "time stands still")
    # What has begun goes on, in a channel that is open.
    assert owner.shell.exec(connection, "echo still here").stdout == "still here"
    owner.shell.start(connection, session="afterwards")
    assert logins() == before + (2 if renew else 1)
    assert owner.shell.exec(connection, "echo here", session="meanwhile").stdout == "here"
    [info] = owner.ca.query("short")
    assert info.limits[0].renew is renew
