"""The connection type is found by its entry point, quick to import, and strict about its data."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from connmgr.errors import AuthFailed
from connmgr.plugin import Secret
from connmgr.registry import Registry
from connmgr_ssh import IdentitySchema, Ssh, SshSchema
from tests.plugins.ssh.conftest import Connect, StartSshd
from tests.plugins.ssh.test_authentication import admit
from tests.plugins.sshd import Sshd, keygen
from tests.plugins.users import User

UUID = "0b9e7f5e-6d5c-4a5b-9c59-3f1d1f1b1c11"


def test_the_type_is_found_by_its_entry_point() -> None:
    assert isinstance(Registry.load().get("ssh"), Ssh)


def test_importing_it_does_not_import_its_libraries() -> None:
    program = "import sys, connmgr_ssh; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert not {"paramiko", "cryptography", "nacl", "bcrypt"} & set(loaded.stdout.split())


def test_its_example_is_valid(ssh: Ssh) -> None:
    assert ssh.schema().validate(dict(ssh.example)) == {}


def test_omitted_fields_get_their_default() -> None:
    assert SshSchema().load({"host": "h"}) == {
        "host": "h",
        "port": 22,
        "connectTimeout": 20.0,
        "keepAlive": 10.0,
    }


def test_secret_fields_are_marked() -> None:
    assert {name for name, field in SshSchema().fields.items() if isinstance(field, Secret)} == {"password"}
    secrets = {name for name, field in IdentitySchema().fields.items() if isinstance(field, Secret)}
    assert secrets == {"key", "passphrase"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 0),
        ("port", 65536),
        ("port", "22"),
        ("port", True),
        ("port", 22.5),
        ("port", None),
        ("user", ""),
        ("user", "-l"),
        ("user", "a b"),
        ("user", "a\nb"),
        ("password", 1),
        ("agent", "yes"),
        ("agent", 1),
        ("gateway", "me"),
        ("gateway", {"storeId": UUID, "more": 1}),
        ("hostKeyChecking", "no"),
        ("hostKeyChecking", "accept-new"),
        ("connectTimeout", 0),
        ("connectTimeout", 601),
        ("connectTimeout", float("nan")),
        ("keepAlive", -1),
        ("keepAlive", float("inf")),
        ("identity", "~/.ssh/id_ed25519"),
        ("shell", 1),
        ("unknown", 1),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    assert set(SshSchema().validate({"host": "h", field: value})) == {field}


@pytest.mark.parametrize("gateway", [UUID, {"storeId": UUID}, UUID.upper()])
def test_a_gateway_is_the_uuid_of_a_connection(gateway: Any) -> None:
    assert SshSchema().load({"host": "h", "gateway": gateway})["gateway"] == UUID


@pytest.mark.needs("sshd", "ssh", "root")
def test_the_library_s_most_talkative_log_holds_no_secret(
    start_sshd: StartSshd, connect: Connect, user: User, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    passphrase = "canary in a coal mine"
    server = start_sshd({"AuthenticationMethods": "publickey,password", "PasswordAuthentication": "yes"})
    key = admit(server, keygen(tmp_path / "key", "ed25519", passphrase, "-a", "4"))
    identity = {"key": key.read_text(), "passphrase": passphrase}
    with caplog.at_level(logging.DEBUG):
        connect(server, user=user.name, identity=identity, password=user.password)
        with pytest.raises(AuthFailed):
            connect(server, user=user.name, identity=identity, password="a wrong canary")
    assert "connmgr_ssh" in caplog.text, "nothing was logged, so that nothing is shown"
    body = key.read_text().splitlines()[1]
    assert not [secret for secret in (passphrase, user.password, "a wrong canary", body) if secret in caplog.text]


@pytest.mark.needs("sshd", "ssh")
def test_nothing_is_logged_as_an_error_for_what_the_caller_is_told(
    sshd: Sshd, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AuthFailed):
        connect(sshd, identity=None)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
