"""Host certificates, as OpenSSH's PROTOCOL.certkeys describes them."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from paramiko.message import Message
from paramiko.pkey import PKey, UnknownKeyType
from paramiko.ssh_exception import SSHException

from connmgr_ssh.algorithms import SIGNATURES
from connmgr_ssh.config_file import matches
from connmgr_ssh.known_hosts import HostKey
from connmgr_ssh.stream import packed

HOST = 2
_FIELDS_OF_KEY = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
}


@dataclass(frozen=True)
class Certificate:
    """The content of a certificate, and who signed it; times are seconds since 1970 (UTC)."""

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


def _strings(packed: bytes) -> list[str]:
    found, position = [], 0
    while position < len(packed):
        end = position + 4 + int.from_bytes(packed[position : position + 4], "big")
        found.append(packed[position + 4 : end].decode())
        position = end
    return found
