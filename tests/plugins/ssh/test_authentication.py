"""Logging in to a real sshd with every kind of credential, right and wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import x25519

from connmgr.errors import AuthFailed
from connmgr_ssh import Ssh
from connmgr_ssh.login import asks_for_password
from connmgr_ssh.transport import SshTransport
from tests.plugins.ssh.conftest import Connect, StartSshd, data_for
from tests.plugins.ssh.test_channel import run
from tests.plugins.sshd import SshAgent, Sshd, certify, keygen
from tests.plugins.users import User

pytestmark = pytest.mark.needs("sshd", "ssh")

PASSPHRASE = "open sesame"


def whoami(link: SshTransport) -> str:
    return run(link, "id -un")[1].decode().strip()


def admit(server: Sshd, key: Path) -> Path:
    """Create a key that the server admits, and return it."""
    with server.authorized_keys.open("a") as file:
        file.write(key.with_name(key.name + ".pub").read_text())
    return key


@pytest.fixture
def admitted(sshd: Sshd, tmp_path: Path) -> Path:
    return admit(sshd, keygen(tmp_path / "admitted"))


@pytest.fixture
def encrypted(sshd: Sshd, tmp_path: Path) -> Path:
    return admit(sshd, keygen(tmp_path / "encrypted", "ed25519", PASSPHRASE, "-a", "4"))


@pytest.fixture
def with_password(start_sshd: StartSshd) -> Sshd:
    return start_sshd({"PasswordAuthentication": "yes", "PubkeyAuthentication": "no"})


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ed25519", []),
        ("ecdsa", ["-b", "256"]),
        ("ecdsa", ["-b", "384"]),
        ("ecdsa", ["-b", "521"]),
        ("rsa", []),
        ("rsa", ["-m", "PEM"]),
        ("rsa", ["-m", "PKCS8"]),
        ("ecdsa", ["-m", "PKCS8"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "".join(value).strip("-") or "default",
)
@pytest.mark.parametrize("inline", [False, True], ids=["file", "inline"])
def test_a_private_key_logs_in(
    sshd: Sshd, connect: Connect, tmp_path: Path, kind: str, options: list[str], inline: bool
) -> None:
    key = admit(sshd, keygen(tmp_path / "key", kind, "", *options))
    identity = {"key": key.read_text()} if inline else {"file": str(key)}
    assert whoami(connect(sshd, identity=identity)) == sshd.user


@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
def test_an_encrypted_key_needs_its_passphrase(sshd: Sshd, connect: Connect, tmp_path: Path, form: str) -> None:
    key = admit(sshd, keygen(tmp_path / "key", "rsa", PASSPHRASE, "-m", form, "-a", "4"))
    connect(sshd, identity={"file": str(key), "passphrase": PASSPHRASE})
    with pytest.raises(AuthFailed, match="is encrypted: give its passphrase"):
        connect(sshd, identity={"file": str(key)})
    with pytest.raises(AuthFailed, match=r"passphrase of the private key .* is wrong") as caught:
        connect(sshd, identity={"file": str(key), "passphrase": "open barley"})
    assert "barley" not in caught.value.message


def test_an_inline_encrypted_key_logs_in(sshd: Sshd, connect: Connect, encrypted: Path) -> None:
    connect(sshd, identity={"key": encrypted.read_text(), "passphrase": PASSPHRASE})


def test_a_passphrase_for_a_key_without_one_does_no_harm(sshd: Sshd, connect: Connect) -> None:
    connect(sshd, identity={"file": str(sshd.client_key), "passphrase": PASSPHRASE})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no key at all", "damaged, or in a format"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n", "damaged, or in a format"),
        ("", "damaged, or in a format"),
    ],
)
def test_a_damaged_key_is_named(sshd: Sshd, connect: Connect, text: str, says: str) -> None:
    with pytest.raises(AuthFailed, match=says):
        connect(sshd, identity={"key": text})


def test_a_key_of_an_unsupported_kind_is_refused(sshd: Sshd, connect: Connect) -> None:
    key = x25519.X25519PrivateKey.generate()
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = key.private_bytes(*form).decode()
    with pytest.raises(AuthFailed, match="use Ed25519, ECDSA or RSA"):
        connect(sshd, identity={"key": pem})


def test_a_key_that_others_may_read_is_refused(sshd: Sshd, connect: Connect, admitted: Path) -> None:
    admitted.chmod(0o640)
    with pytest.raises(AuthFailed, match="other users may read it: run chmod 600"):
        connect(sshd, identity={"file": str(admitted)})


def test_a_missing_key_file_is_named(sshd: Sshd, connect: Connect) -> None:
    with pytest.raises(AuthFailed, match=r"~/\.ssh/nothing cannot be read: No such file"):
        connect(sshd, identity={"file": "~/.ssh/nothing"})


@pytest.mark.parametrize("device", ["fifo", "/dev/zero"])
@pytest.mark.parametrize("member", ["file", "certificate"])
def test_a_key_path_that_is_not_a_regular_file_is_refused_at_once(
    sshd: Sshd, connect: Connect, tmp_path: Path, device: str, member: str
) -> None:
    if device == "fifo":
        os.mkfifo(tmp_path / device, 0o600)
    identity = {"file": str(sshd.client_key), member: str(tmp_path / device)}
    with pytest.raises(AuthFailed, match="cannot be read: it is not a regular file"):
        connect(sshd, identity=identity)


def test_a_key_file_without_an_end_is_refused(sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    with (tmp_path / "key").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(AuthFailed, match="key cannot be read: it has more than 16 MiB"):
        connect(sshd, identity={"file": str(tmp_path / "key")})


def test_a_key_that_is_not_admitted_says_what_was_tried_and_what_would_do(
    sshd: Sshd, connect: Connect, tmp_path: Path
) -> None:
    stranger = keygen(tmp_path / "stranger")
    with pytest.raises(AuthFailed) as caught:
        connect(sshd, identity={"file": str(stranger)})
    assert f"Tried: {stranger}" in caught.value.message
    assert "It accepts: publickey." in caught.value.message


def test_no_credential_at_all_says_what_would_do(sshd: Sshd, connect: Connect) -> None:
    with pytest.raises(AuthFailed, match=r"Tried: nothing.*It accepts: publickey"):
        connect(sshd, identity=None)


def test_the_usual_key_of_the_daemon_s_user_is_tried(sshd: Sshd, connect: Connect, home: Path) -> None:
    admit(sshd, keygen(home / ".ssh" / "id_ed25519"))
    assert whoami(connect(sshd, identity=None)) == sshd.user


@pytest.mark.needs("root")
def test_a_password_logs_in(with_password: Sshd, connect: Connect, user: User) -> None:
    link = connect(with_password, user=user.name, identity=None, password=user.password)
    assert whoami(link) == user.name


@pytest.mark.needs("root")
def test_a_wrong_password_is_tried_once_and_not_repeated_to_the_client(
    with_password: Sshd, connect: Connect, user: User
) -> None:
    with pytest.raises(AuthFailed) as caught:
        connect(with_password, user=user.name, identity=None, password="wrong horse")
    assert "Tried: password. It accepts: password." in caught.value.message
    assert "horse" not in caught.value.message
    assert with_password.log().count("Failed password") == 1


@pytest.mark.needs("root")
def test_keyboard_interactive_is_answered_with_the_password(
    start_sshd: StartSshd, connect: Connect, user: User
) -> None:
    server = start_sshd({"UsePAM": "yes", "KbdInteractiveAuthentication": "yes"})
    link = connect(server, user=user.name, identity=None, password=user.password)
    assert whoami(link) == user.name
    assert "Accepted keyboard-interactive/pam" in server.log()


@pytest.mark.needs("root")
def test_a_password_refused_by_one_method_is_not_sent_by_another(
    start_sshd: StartSshd, connect: Connect, user: User
) -> None:
    options = {"UsePAM": "yes", "KbdInteractiveAuthentication": "yes", "PasswordAuthentication": "yes"}
    server = start_sshd({**options, "PubkeyAuthentication": "no"})
    with pytest.raises(AuthFailed, match=r"Tried: keyboard-interactive\. It accepts: password, keyboard-interactive"):
        connect(server, user=user.name, identity=None, password="wrong horse")
    assert "Failed password" not in server.log()


@pytest.mark.needs("root")
@pytest.mark.parametrize("methods", ["publickey,password", "password,publickey", "publickey,keyboard-interactive"])
def test_several_factors(start_sshd: StartSshd, connect: Connect, user: User, methods: str) -> None:
    options = {"AuthenticationMethods": methods, "PasswordAuthentication": "yes"}
    if "keyboard" in methods:
        options |= {"UsePAM": "yes", "KbdInteractiveAuthentication": "yes"}
    server = start_sshd(options)
    assert whoami(connect(server, user=user.name, password=user.password)) == user.name
    with pytest.raises(AuthFailed):
        connect(server, user=user.name, password=None)
    with pytest.raises(AuthFailed):
        connect(server, user=user.name, password=user.password, identity=None)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keygen(tmp_path_factory.mktemp("authority") / "authority")


@pytest.fixture(scope="module")
def certifying(run_sshd: None, login: str, authority: Path) -> Iterator[Sshd]:
    """An sshd that admits only keys certified by the authority."""
    server = Sshd({"AuthorizedKeysFile": "none"}, user=login)
    trusted = server.directory / "authorities"
    trusted.write_text(authority.with_name("authority.pub").read_text())
    trusted.chmod(0o644)
    server.stop()
    server.options["TrustedUserCAKeys"] = str(trusted)
    server.start()
    yield server
    server.close()


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
@pytest.mark.parametrize("how", ["beside the key", "file", "text"])
def test_a_certificate_logs_in(
    certifying: Sshd, authority: Path, connect: Connect, tmp_path: Path, kind: str, how: str
) -> None:
    key = keygen(tmp_path / "certified", kind)
    certificate = certify(authority, tmp_path / "certified.pub", certifying.user)
    identity = {"file": str(key)}
    if how != "beside the key":
        certificate = certificate.rename(tmp_path / "elsewhere")
        identity["certificate"] = str(certificate) if how == "file" else certificate.read_text()
    assert whoami(connect(certifying, identity=identity)) == certifying.user


def test_a_certificate_of_another_key_is_refused_before_it_is_sent(
    certifying: Sshd, authority: Path, connect: Connect, tmp_path: Path
) -> None:
    key = keygen(tmp_path / "key")
    keygen(tmp_path / "other")
    certificate = certify(authority, tmp_path / "other.pub", certifying.user)
    with pytest.raises(AuthFailed, match="belongs to another key than the private key"):
        connect(certifying, identity={"file": str(key), "certificate": certificate.read_text()})


@pytest.fixture
def with_agent(agent: SshAgent, monkeypatch: pytest.MonkeyPatch) -> SshAgent:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent.socket))
    return agent


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_an_agent_signs(sshd: Sshd, connect: Connect, with_agent: SshAgent, tmp_path: Path, kind: str) -> None:
    with_agent.add(admit(sshd, keygen(tmp_path / "held", kind)))
    assert whoami(connect(sshd, identity=None)) == sshd.user


def test_an_agent_offers_a_certificate(
    certifying: Sshd, authority: Path, connect: Connect, with_agent: SshAgent, tmp_path: Path
) -> None:
    key = keygen(tmp_path / "held")
    certify(authority, tmp_path / "held.pub", certifying.user)
    with_agent.add(key)
    key.unlink()
    connect(certifying, identity=None)


def test_with_an_identity_the_agent_is_asked_for_that_key_alone(
    start_sshd: StartSshd, connect: Connect, with_agent: SshAgent, tmp_path: Path
) -> None:
    server = start_sshd({"LogLevel": "DEBUG1"})
    for number in range(3):
        with_agent.add(keygen(tmp_path / f"stranger{number}"))
    key = admit(server, keygen(tmp_path / "held"))
    with_agent.add(key)
    key.unlink()
    connect(server, identity={"file": str(tmp_path / "held.pub")}, agent=True)
    assert "Failed publickey" not in server.log()


def test_with_an_identity_the_agent_is_not_asked_unless_told_to(
    sshd: Sshd, connect: Connect, with_agent: SshAgent, admitted: Path, tmp_path: Path
) -> None:
    with_agent.add(admitted)
    with pytest.raises(AuthFailed, match="stranger"):
        connect(sshd, identity={"file": str(keygen(tmp_path / "stranger"))})


def test_an_agent_that_is_not_to_be_asked_is_not(
    sshd: Sshd, connect: Connect, with_agent: SshAgent, admitted: Path
) -> None:
    with_agent.add(admitted)
    with pytest.raises(AuthFailed, match="Tried: nothing"):
        connect(sshd, identity=None, agent=False)


def test_an_agent_that_has_gone_is_named(
    sshd: Sshd, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    with pytest.raises(AuthFailed, match="Note: The ssh-agent does not answer"):
        connect(sshd, identity=None)
    with pytest.raises(AuthFailed, match="The ssh-agent does not answer: No such file"):
        connect(sshd, identity=None, agent=True)


def test_an_agent_that_does_not_answer_costs_no_more_than_the_timeout(
    sshd: Sshd, connect: Connect, with_agent: SshAgent
) -> None:
    with_agent.process.send_signal(19)
    with pytest.raises(AuthFailed, match="The ssh-agent does not answer: timed out"):
        connect(sshd, identity=None, agent=True, connectTimeout=1)


def test_more_keys_than_the_host_allows_end_in_a_clear_error(
    start_sshd: StartSshd, connect: Connect, with_agent: SshAgent, tmp_path: Path
) -> None:
    server = start_sshd({"MaxAuthTries": "2"})
    for number in range(4):
        with_agent.add(keygen(tmp_path / f"stranger{number}"))
    with pytest.raises(AuthFailed, match="Too many authentication failures"):
        connect(server, identity=None)


@pytest.mark.needs("root")
def test_the_agent_s_keys_leave_an_attempt_for_the_password(
    start_sshd: StartSshd, connect: Connect, with_agent: SshAgent, tmp_path: Path, user: User
) -> None:
    server = start_sshd({"PasswordAuthentication": "yes"})
    for number in range(8):
        with_agent.add(keygen(tmp_path / f"stranger{number}"))
    connect(server, user=user.name, identity=None, agent=True, password=user.password)


def test_an_unknown_user_is_refused_like_any_other(sshd: Sshd, connect: Connect) -> None:
    with pytest.raises(AuthFailed, match="does not let nobody-of-that-name in"):
        connect(sshd, user="nobody-of-that-name")


@pytest.mark.parametrize(
    ("identity", "says"),
    [
        ({}, "Exactly one of file, key, and a certificate with a signer is needed."),
        ({"file": "/key", "key": "text"}, "Exactly one of file, key, and a certificate with a signer is needed."),
        ({"file": "key"}, "absolute path"),
        ({"file": "~other/key"}, "absolute path"),
        ({"file": 1}, "Not a valid string"),
        ({"file": "/key", "unknown": 1}, "Unknown field"),
    ],
)
def test_an_identity_that_makes_no_sense_is_refused(ssh: Ssh, sshd: Sshd, identity: Any, says: str) -> None:
    errors = ssh.schema().validate({"host": "h", "identity": identity})
    assert says in str(errors)
    assert data_for(ssh, sshd)["host"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("question", "echoed", "asks"),
    [
        ("Password: ", False, True),
        ("Password: ", True, False),
        ("Password for newton@codebook: ", False, True),
        ("New password: ", False, False),
        ("Password and verification code: ", False, False),
        ("One-time password (OTP): ", False, False),
    ],
)
def test_the_password_is_given_to_who_asks_for_it_alone(question: str, echoed: bool, asks: bool) -> None:
    assert asks_for_password([(question, echoed)]) is asks
