"""What ansible-vault has encrypted, opened by the passwords that a person gives (its formats 1.1 and 1.2)."""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Sequence

from connmgr.ansible_inventory import VAULT

_VERSIONS = ("1.1", "1.2")
_ITERATIONS = 10_000
_KEY_BYTES, _BLOCK_BYTES = 32, 16


class Opened(str):
    """A text that was encrypted."""

    __slots__ = ()


class VaultPasswords:
    """The passwords that are tried, one after the other, as Ansible does."""

    def __init__(self, passwords: Sequence[str] = ()) -> None:
        self._passwords = [password.encode() for password in passwords]

    def __bool__(self) -> bool:
        return bool(self._passwords)

    def opened(self, text: str) -> Opened | None:
        """Return what was encrypted, or None if no password opens ``text`` or it is malformed."""
        head, _, body = text.strip().partition("\n")
        version = head.removeprefix(VAULT).split(";")
        if not head.startswith(VAULT) or version[0] not in _VERSIONS or version[1:2] != ["AES256"]:
            return None
        try:
            # Hexadecimal digits of three lines that are hexadecimal digits themselves.
            salt, code, content = map(binascii.unhexlify, binascii.unhexlify("".join(body.split())).split(b"\n"))
        except ValueError:
            return None
        for password in self._passwords:
            keys = hashlib.pbkdf2_hmac("sha256", password, salt, _ITERATIONS, 2 * _KEY_BYTES + _BLOCK_BYTES)
            cipher_key, code_key, counter = keys[:32], keys[32:64], keys[64:]
            if hmac.compare_digest(hmac.digest(code_key, content, "sha256"), code):
                return _decrypted(content, cipher_key, counter)
        return None


def _decrypted(content: bytes, key: bytes, counter: bytes) -> Opened | None:
    # Imported here, because few imports need it.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    decryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).decryptor()
    padded = decryptor.update(content) + decryptor.finalize()
    try:
        # PKCS#7: each byte of the padding is its length.
        return Opened(padded[: -padded[-1]].decode())
    except (IndexError, UnicodeDecodeError):
        return None
