"""The algorithms offered to a server, best first, whatever the installed paramiko would offer.

No key exchange and no signature uses SHA-1, whose collisions can be computed; HMAC is not weakened by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def ordered(known: Sequence[str], certified: bool) -> tuple[str, ...]:
    """Return the host key algorithms to ask for: certificates first if useful, then those of ``known`` keys."""
    certificates = [name + CERTIFICATE for name in SIGNATURES] if certified else []
    signing = {"rsa-sha2-512": "ssh-rsa", "rsa-sha2-256": "ssh-rsa"}
    first = [name for name in SIGNATURES if signing.get(name, name) in known]
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
