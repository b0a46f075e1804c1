"""Private keys: loads them from their text, and signs with them as the SSH protocol requires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from paramiko.message import Message

from connmgr.errors import AuthFailed
from connmgr.plugin import Deadline
from connmgr_ssh.algorithms import CERTIFICATE
from connmgr_ssh.known_hosts import HostKey

Sign = Callable[[bytes, str, Deadline], bytes]
_RSA_HASHES: dict[str, type[hashes.SHA256 | hashes.SHA512]] = {
    "rsa-sha2-256": hashes.SHA256,
    "rsa-sha2-512": hashes.SHA512,
}
_CURVE_HASHES: dict[int, type[hashes.SHA256 | hashes.SHA384 | hashes.SHA512]] = {
    256: hashes.SHA256,
    384: hashes.SHA384,
    521: hashes.SHA512,
}


@dataclass(frozen=True)
class Identity:
    """A key for logging in: its name in messages, its public part, and its signing function."""

    name: str
    public: HostKey
    sign: Sign
    """``sign(data, algorithm, deadline)`` returns a signature in the encoding of RFC 4253, section 6.6."""

    def algorithm(self, accepted: bytes) -> str:
        """Return the signature algorithm to use, given the host's list (``server-sig-algs``), empty if it sent none."""
        if not self.public.type.startswith("ssh-rsa"):
            return self.public.type
        best = next((name for name in ("rsa-sha2-512", "rsa-sha2-256") if name.encode() in accepted.split(b",")), None)
        return (best or "rsa-sha2-512") + self.public.type.removeprefix("ssh-rsa")


def load(
    subject: str, text: bytes, passphrase: str | None, *, name: str = "the given key", asked_as: str = ""
) -> Identity:
    """Return the private key ``text``.

    :raises AuthFailed: it cannot be used; for want of its passphrase, the details have it as ``key``: ``asked_as``.
    """
    key = _decrypted(subject, text.strip() + b"\n", passphrase.encode() if passphrase else None, asked_as)
    if not isinstance(key, ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise AuthFailed(f"{subject} is of a kind that is not supported: use Ed25519, ECDSA or RSA.")
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Identity(name, HostKey.parse(line.decode()), _signer(key))


def _decrypted(subject: str, text: bytes, passphrase: bytes | None, asked_as: str) -> Any:
    load = (
        serialization.load_ssh_private_key
        if b"BEGIN OPENSSH PRIVATE KEY" in text
        else serialization.load_pem_private_key
    )
    try:
        try:
            return load(text, passphrase)
        except TypeError:
            # Either a passphrase is missing, or one was given for a key without one.
            if passphrase is None:
                raise AuthFailed(
                    f"{subject} is encrypted: give its passphrase, as identity.passphrase of the connection or for one "
                    "login (/connection/login; commands on a terminal ask for it).",
                    key=asked_as,
                ) from None
            return load(text, None)
    except (ValueError, UnsupportedAlgorithm):
        # The library's message may quote the key.
        if passphrase is None:
            raise AuthFailed(f"{subject} is damaged, or in a format that is not supported.") from None
        key = subject[0].lower() + subject[1:]
        raise AuthFailed(
            f"The passphrase of {key} is wrong, or the key is damaged.", key=asked_as, wrongPassphrase=True
        ) from None


def _signer(key: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> Sign:
    def sign(data: bytes, algorithm: str, _: Deadline) -> bytes:
        name = algorithm.replace(CERTIFICATE, "")
        if isinstance(key, ed25519.Ed25519PrivateKey):
            signature = key.sign(data)
        elif isinstance(key, rsa.RSAPrivateKey):
            signature = key.sign(data, padding.PKCS1v15(), _RSA_HASHES[name]())
        else:
            r, s = decode_dss_signature(key.sign(data, ec.ECDSA(_CURVE_HASHES[key.curve.key_size]())))
            signature = Message().add_mpint(r).add_mpint(s).asbytes()
        return Message().add_string(name).add_string(signature).asbytes()

    return sign


def certified(identity: Identity, text: bytes) -> Identity:
    try:
        certificate = HostKey.parse(text.decode())
    except ValueError:
        raise AuthFailed("The certificate is damaged: give the text of a -cert.pub file.") from None
    message = Message(certificate.blob)
    if message.get_text() != identity.public.type + CERTIFICATE or not _is_for(message, identity.public):
        raise AuthFailed("The certificate is not one of the private key that it was given with.")
    return replace(identity, name=f"{identity.name} (certificate)", public=certificate)


def _is_for(certificate: Message, public: HostKey) -> bool:
    """Whether ``certificate``, whose type was already read, contains the key ``public``."""
    certificate.get_binary()
    own = Message(public.blob)
    own.get_text()
    return certificate.get_remainder().startswith(own.get_remainder())
