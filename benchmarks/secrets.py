"""Encrypting, decrypting and unlocking: the cryptography alone, in the vault, and over HTTP beside a bare request.

Run it with ``python -m benchmarks.secrets``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.daemon import temporary_daemon
from benchmarks.timing import interleaved, print_timings
from connmgr.secrets import sealing
from connmgr.secrets.passphrases import MODERATE, KeyDerivation, new_salt
from connmgr.secrets.principals import Access, new_principal, open_sealed
from connmgr.secrets.vault_key import load
from connmgr.vault import Vault, open_database

BARE = "bare request"
VALUE = "correct horse battery staple"
PASSPHRASE = "a passphrase for measurements"
REPEAT = "python -m benchmarks.secrets"


def main() -> None:
    """Run all three measurements."""
    _in_process()
    _over_http()
    _unlock()


def _in_process() -> None:
    principal, private = new_principal("vault", bytes(32))
    sealed = sealing.seal(VALUE, [principal], bytes(32))

    def open_alone() -> str:
        verified = sealing.verify(sealed, bytes(32))
        return verified.open(open_sealed(verified.recipients["vault"][1], principal, private))

    with tempfile.TemporaryDirectory() as directory:
        database = open_database(f"sqlite:///{directory}/vault.db")
        vault = Vault(database, load(Path(directory) / "vault.key", create=True))
        access = Access()
        stored = vault.principals.seal(VALUE, access)
        taken = interleaved(
            {
                "seal, cryptography alone": lambda: sealing.seal(VALUE, [principal], bytes(32)),
                "open, cryptography alone": open_alone,
                "seal in the vault": lambda: vault.principals.seal(VALUE, access),
                "open in the vault": lambda: vault.principals.unseal(stored, access),
                "check, without opening": lambda: vault.principals.require([stored], access),
            },
            calls=100,
        )
        vault.close()
    print_timings("A secret, in process, SQLite", taken, base="seal, cryptography alone", repeat=REPEAT)


def _over_http() -> None:
    with temporary_daemon() as daemon:
        client = daemon.client
        encrypted = client.post("/secret/encrypt", value=VALUE)["encrypted"]
        taken = interleaved(
            {
                BARE: lambda: client.post("/daemon/version"),
                "/secret/encrypt": lambda: client.post("/secret/encrypt", value=VALUE),
                "/secret/decrypt": lambda: client.post("/secret/decrypt", encrypted=encrypted),
            },
            calls=100,
        )
    print_timings("A secret over HTTP, keep-alive", taken, base=BARE, repeat=REPEAT)


def _unlock() -> None:
    derivation, salt = KeyDerivation(), new_salt()
    with temporary_daemon() as daemon:
        client = daemon.client
        client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
        taken = interleaved(
            {
                "Argon2id MODERATE": lambda: derivation.derive(PASSPHRASE, salt, MODERATE),
                "/vault/unlock": lambda: client.post("/vault/unlock", user="alice", passphrase=PASSPHRASE),
            },
            calls=1,
            rounds=5,
        )
    print_timings("Unlocking a user", taken, base="Argon2id MODERATE", repeat=REPEAT)


if __name__ == "__main__":
    main()
