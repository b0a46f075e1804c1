"""Host certificates, as OpenSSH's PROTOCOL.certkeys describes them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import paramiko
from paramiko.message import Message

from connmgr_ssh.config import matches
from connmgr_ssh.known_hosts import HostKey

HOST = 2
_FIELDS_OF_KEY = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
}


def refusal(certificate: bytes, host: str, authorities: Sequence[HostKey], revoked: Sequence[HostKey]) -> str | None:
    """Return why ``certificate`` does not vouch for ``host`` now, or None when it does.

    :param authorities: the keys that may sign for this host.
    """
    message = Message(certificate)
    base = message.get_text().partition("-cert-")[0]
    if base not in _FIELDS_OF_KEY:
        return f"its type {base} is not supported"
    message.get_binary()
    for _ in range(_FIELDS_OF_KEY[base]):
        message.get_binary()
    message.get_int64()
    kind = message.get_int()
    message.get_text()
    principals = _strings(message.get_binary())
    valid_after, valid_before = message.get_int64(), message.get_int64()
    critical = _strings(message.get_binary())
    message.get_binary()
    message.get_binary()
    authority = message.get_binary()
    signed = message.get_so_far()
    signature = message.get_binary()
    signer = HostKey(Message(authority).get_text(), authority)
    if kind != HOST:
        return "it is not a host certificate"
    if signer in revoked or signer not in authorities:
        return f"its authority {signer.fingerprint} is {'revoked' if signer in revoked else 'not known'}"
    # ssh-keygen -s without -n makes a certificate for any host at all, which current OpenSSH refuses too.
    if not matches(principals, host):
        return f"it is for {', '.join(principals) or 'no named host'}"
    if not valid_after <= time.time() < valid_before:
        return "it is not valid at this time"
    if critical:
        return f"it has the unknown critical option {critical[0]}"
    return None if _is_signed(signer, signed, signature) else "its signature is wrong"


def _strings(packed: bytes) -> list[str]:
    message = Message(packed)
    found = []
    while message.get_remainder():
        found.append(message.get_text())
    return found


def _is_signed(signer: HostKey, signed: bytes, signature: bytes) -> bool:
    key = paramiko.PKey.from_type_string(signer.type, signer.blob)
    return bool(key.verify_ssh_sig(signed, Message(signature)))
