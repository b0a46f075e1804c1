"""The algorithms that are offered to a server, best first."""

from __future__ import annotations

from collections.abc import Sequence

from connmgr_ssh.hostkeys import CERTIFICATE

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


def ordered(offered: Sequence[str], known: Sequence[str], certified: bool) -> tuple[str, ...]:
    """Return the host key algorithms ``offered``: certificates first where they help, then those of ``known`` keys."""
    plain = [name for name in offered if CERTIFICATE not in name]
    certificates = [name for name in offered if CERTIFICATE in name] if certified else []
    signing = {"rsa-sha2-512": "ssh-rsa", "rsa-sha2-256": "ssh-rsa"}
    first = [name for name in plain if signing.get(name, name) in known]
    return (*certificates, *first, *(name for name in plain if name not in first))
