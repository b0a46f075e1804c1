"""Keys: the algorithms that are offered, private keys that sign, and certificates that vouch for a host's key.

The lists of algorithms are ours, best first, whatever the installed paramiko would offer. No key exchange and no
signature uses SHA-1, whose collisions can be computed; HMAC is not weakened by them.
"""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from paramiko.message import Message
from paramiko.pkey import PKey, UnknownKeyType
from paramiko.ssh_exception import SSHException

from connmgr.errors import AuthFailed
from connmgr.plugin import Deadline
from connmgr_ssh.config import matches
from connmgr_ssh.known_hosts import HostKey
from connmgr_ssh.packets import packed

CERTIFICATE = "-cert-v01@openssh.com"
"""OpenSSH's suffix for the algorithms of keys with a certificate."""

KEY_EXCHANGES = (
    # paramiko has it since 5.0, if the cryptography library does.
    "mlkem768x25519-sha256",
    "curve25519-sha256@libssh.org",
    "ecdh-sha2-nistp256",
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
    "diffie-hellman-group16-sha512",
    "diffie-hellman-group-exchange-sha256",
    "diffie-hellman-group14-sha256",
)

SIGNATURES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
"""For the signatures of host keys, and of authorities on host certificates."""

CIPHERS = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "aes128-ctr",
    "aes256-ctr",
    "aes192-ctr",
)
"""AES-GCM first: it needs no MAC, and processors compute it fastest."""

MACS = (
    "hmac-sha2-256-etm@openssh.com",
    "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256",
    "hmac-sha2-512",
    "hmac-sha1",
)

SHOWN_CHARACTERS = 120
"""Longest quotation of a server's list of algorithms in an error."""

_NO_ALGORITHMS = ("ext-info-", "kex-strict-")
"""Prefixes of the names in the list of key exchanges that announce an extension."""

_AGREED_ON = (
    ("kex_algo_list", "the key exchange", "KexAlgorithms", KEY_EXCHANGES),
    ("server_key_algo_list", "the host key", "HostKeyAlgorithms", SIGNATURES),
    ("client_encrypt_algo_list", "encryption", "Ciphers", CIPHERS),
    ("server_encrypt_algo_list", "encryption", "Ciphers", CIPHERS),
    ("client_mac_algo_list", "integrity", "MACs", MACS),
    ("server_mac_algo_list", "integrity", "MACs", MACS),
)
"""paramiko's name of a server's list; its purpose; its keyword in sshd_config; our offer."""


def ordered(algorithms: Sequence[str], certified: bool) -> tuple[str, ...]:
    """Return the host key algorithms to ask for: certificates first if useful, then the ``algorithms`` of
    known keys."""
    certificates = [name + CERTIFICATE for name in SIGNATURES] if certified else []
    signing = {"rsa-sha2-512": "ssh-rsa", "rsa-sha2-256": "ssh-rsa"}
    first = [name for name in SIGNATURES if signing.get(name, name) in algorithms]
    return (*certificates, *first, *(name for name in SIGNATURES if name not in first))


def disagreement(lists: Mapping[str, Sequence[str]]) -> str | None:
    """Return a message if one of a server's ``lists`` has nothing acceptable, else None."""
    for name, purpose, keyword, offered in _AGREED_ON:
        theirs = [algorithm for algorithm in lists[name] if not algorithm.startswith(_NO_ALGORITHMS)]
        if not {algorithm.removesuffix(CERTIFICATE) for algorithm in theirs} & set(offered):
            return (
                f"no algorithm in common for {purpose}: the host offers {_quoted(theirs)}, which connmgr refuses or "
                f"does not have. Update its SSH server, or let it offer one of {', '.join(offered)} "
                f"({keyword} in its sshd_config)."
            )
    return None


def _quoted(names: Sequence[str]) -> str:
    text = "".join(character if character.isprintable() else " " for character in ", ".join(names))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


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
        # The type of an RSA key names SHA-1. A host that sends no list (RFC 8308) may know SHA-2 all the same, as
        # OpenSSH does since 7.2 (RFC 8332).
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
        raise AuthFailed(f"{subject} is not of a supported kind: use Ed25519, ECDSA or RSA.")
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Identity(name, HostKey.parse(line.decode()), _signer(key))


def fresh(name: str) -> tuple[Identity, str]:
    """Return a new key that is nowhere but in memory, and its public part as a line of OpenSSH.

    OpenSSL wipes the private part when the identity is dropped, for nothing here asks for its bytes.
    """
    key = ed25519.Ed25519PrivateKey.generate()
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    return Identity(name, HostKey.parse(line), _signer(key)), line


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
        if _is_of_security_key(text):
            raise AuthFailed(
                f"{subject} is of a security key (FIDO2), by which only an ssh-agent signs: run ssh-add with it, and "
                "let the connection use the agent (agent=true)."
            ) from None
        # The library's message may quote the key.
        if passphrase is None:
            raise AuthFailed(f"{subject} is damaged, or in a format that is not supported.") from None
        key = subject[0].lower() + subject[1:]
        raise AuthFailed(
            f"The passphrase of {key} is wrong, or the key is damaged.", key=asked_as, wrongPassphrase=True
        ) from None


def _is_of_security_key(text: bytes) -> bool:
    """Whether a file in OpenSSH's format names a key in hardware; the public part is never encrypted."""
    body = b"".join(line for line in text.splitlines() if not line.startswith(b"-----"))
    try:
        decoded = base64.b64decode(body)
    except ValueError:
        return False
    return any(name in decoded for name in (b"sk-ssh-ed25519@openssh.com", b"sk-ecdsa-sha2-nistp256@openssh.com"))


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
        raise AuthFailed("The certificate belongs to another key than the private key beside it.")
    return replace(identity, name=f"{identity.name} (certificate)", public=certificate)


def _is_for(certificate: Message, public: HostKey) -> bool:
    """Whether ``certificate``, whose type was already read, contains the key ``public``."""
    certificate.get_binary()
    own = Message(public.blob)
    own.get_text()
    return certificate.get_remainder().startswith(own.get_remainder())


USER, HOST = 1, 2
_FIELDS_OF_KEY = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
}


@dataclass(frozen=True)
class Certificate:
    """A certificate (OpenSSH's PROTOCOL.certkeys) and who signed it; times are seconds since 1970 (UTC)."""

    kind: int
    principals: list[str]
    valid_after: int
    valid_before: int
    critical_options: list[str]
    authority: HostKey
    signed: bytes
    signature: bytes

    @classmethod
    def parse(cls, blob: bytes) -> Certificate:
        """Return the certificate that ``blob`` encodes.

        :raises ValueError: it is damaged, or certifies a key of an unknown type.
        """
        message = Message(blob)
        try:
            base = message.get_text().partition("-cert-")[0]
            # A nonce, the fields of the key, the serial number; see OpenSSH's PROTOCOL.certkeys for the order.
            for _ in range(1 + _FIELDS_OF_KEY[base]):
                message.get_binary()
            message.get_int64()
            kind = message.get_int()
            message.get_binary()
            principals = _strings(message.get_binary())
            valid_after, valid_before = message.get_int64(), message.get_int64()
            critical_options = _strings(message.get_binary())
            message.get_binary()
            message.get_binary()
            authority = message.get_binary()
            signed = message.get_so_far()
            signer = HostKey(Message(authority).get_text(), authority)
            signature = message.get_binary()
        except (KeyError, UnicodeDecodeError, struct.error) as error:
            raise ValueError("it is damaged") from error
        # paramiko pads short data, so several encodings would yield one certificate.
        if packed(signature) != blob[len(signed) :]:
            raise ValueError("it is damaged")
        return cls(kind, principals, valid_after, valid_before, critical_options, signer, signed, signature)

    @property
    def algorithm(self) -> str:
        """The algorithm of the authority's signature."""
        return self.signature[4 : 4 + int.from_bytes(self.signature[:4], "big")].decode("ascii", errors="replace")

    def is_signed(self) -> bool:
        """Whether the authority's signature is valid."""
        try:
            key = PKey.from_type_string(self.authority.type, self.authority.blob)
            parts = Message(self.signature)
            whole = packed(parts.get_binary()) + packed(parts.get_binary()) == self.signature
            return whole and bool(key.verify_ssh_sig(self.signed, Message(self.signature)))
        except (SSHException, ValueError, struct.error, UnknownKeyType):
            return False


def refusal(blob: bytes, host: str, authorities: Sequence[HostKey], revoked: Sequence[HostKey]) -> str | None:
    """Return why the certificate ``blob`` does not prove the key of ``host`` now, or None if it does.

    :param authorities: the keys that may sign for this host.
    """
    try:
        certificate = Certificate.parse(blob)
    except ValueError as error:
        return str(error)
    signer = certificate.authority
    if certificate.kind != HOST:
        return "it is not a host certificate"
    if signer in revoked or signer not in authorities:
        return f"its authority {signer.fingerprint} is {'revoked' if signer in revoked else 'not known'}"
    if certificate.algorithm == "ssh-rsa":
        return "it is signed by ssh-rsa, that is with SHA-1: sign it anew (ssh-keygen -t rsa-sha2-512 -s …)"
    if certificate.algorithm not in SIGNATURES or not certificate.is_signed():
        return "its signature is wrong"
    # Without principals it would be valid for any host; current OpenSSH refuses it too.
    if not matches(certificate.principals, host):
        return f"it is for {', '.join(certificate.principals) or 'no named host'}"
    if not certificate.valid_after <= time.time() < certificate.valid_before:
        return "it is not valid at this time"
    if certificate.critical_options:
        return f"it has the unknown critical option {certificate.critical_options[0]}"
    return None


def _strings(data: bytes) -> list[str]:
    strings, position = [], 0
    while position < len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        strings.append(data[position + 4 : end].decode())
        position = end
    return strings
