"""Old algorithms are refused even if the installed paramiko accepts them; the error says what to do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from paramiko.message import Message

from connmgr.errors import HostKeyUnknown, TransportUnsupported
from connmgr_ssh.link import SshLink
from connmgr_ssh.packets import Wire
from tests.plugins.ssh.conftest import Connect, StartSshd, public_key
from tests.plugins.sshd import certify, keygen

pytestmark = pytest.mark.needs("sshd")

OLD = [
    ("KexAlgorithms", "diffie-hellman-group1-sha1"),
    ("KexAlgorithms", "diffie-hellman-group14-sha1"),
    ("KexAlgorithms", "diffie-hellman-group-exchange-sha1"),
    ("HostKeyAlgorithms", "ssh-rsa"),
    ("Ciphers", "aes128-cbc"),
    ("Ciphers", "3des-cbc"),
    ("MACs", "hmac-md5"),
    ("MACs", "hmac-sha1-96"),
]


@pytest.mark.parametrize(("option", "algorithm"), OLD)
def test_a_host_that_has_only_an_old_algorithm_is_refused_with_what_to_do(
    start_sshd: StartSshd, connect: Connect, option: str, algorithm: str
) -> None:
    server = start_sshd({option: algorithm}, host_keys=("rsa",))
    with pytest.raises(TransportUnsupported) as caught:
        connect(server)
    message = caught.value.message
    assert f"offers {algorithm}, which connmgr refuses" in message, "the person does not learn what is old"
    assert f"({option} in its sshd_config)" in message, "the person does not learn what to change"


@pytest.mark.parametrize("algorithm", ["rsa-sha2-256", "rsa-sha2-512"])
def test_an_rsa_key_is_signed_by_with_sha_2(start_sshd: StartSshd, connect: Connect, algorithm: str) -> None:
    connect(start_sshd({"HostKeyAlgorithms": algorithm}, host_keys=("rsa",)))


@pytest.mark.parametrize(("algorithm", "counts"), [("ssh-rsa", False), ("rsa-sha2-256", True), ("rsa-sha2-512", True)])
def test_a_certificate_that_is_signed_with_sha_1_does_not_count(
    start_sshd: StartSshd, connect: Connect, home: Path, tmp_path: Path, algorithm: str, counts: bool
) -> None:
    authority = keygen(tmp_path / "authority", "rsa")
    server = start_sshd()
    server.stop()
    key = server.host_keys[0]
    server.options["HostCertificate"] = str(
        certify(authority, key.with_suffix(".pub"), "127.0.0.1", "-h", "-t", algorithm)
    )
    server.start()
    (home / ".ssh" / "known_hosts").write_text(f"@cert-authority * {public_key(authority)}\n")
    if counts:
        connect(server, hostKey=None)
        return
    with pytest.raises(HostKeyUnknown, match=r"signed by ssh-rsa, that is with SHA-1: sign it anew"):
        connect(server, hostKey=None)


@pytest.fixture
def link() -> Iterator[SshLink]:
    """A link that has not negotiated, with the facts of a key exchange for ``rsa-sha2-512``."""
    ours, theirs = socket.socketpair()
    made = SshLink(Wire(ours, None), "host")
    made.host_key_type, made.H = "rsa-sha2-512", b"the exchange"
    yield made
    made.close()
    theirs.close()


@pytest.mark.parametrize(("named", "kind"), [("ssh-rsa", hashes.SHA1()), ("rsa-sha2-256", hashes.SHA256())])
def test_a_host_that_signs_otherwise_than_agreed_is_refused(
    link: SshLink, named: str, kind: hashes.HashAlgorithm
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    numbers = key.public_key().public_numbers()
    blob = Message().add_string("ssh-rsa").add_mpint(numbers.e).add_mpint(numbers.n).asbytes()
    signature = Message().add_string(named).add_string(key.sign(link.H, padding.PKCS1v15(), kind)).asbytes()
    with pytest.raises(
        TransportUnsupported, match=r"^host did not sign the key exchange by the agreed algorithm rsa-sha2-512"
    ):
        link._verify_key(blob, signature)
