"""The sealed form of a secret: a value under a fresh data key, which is sealed to each principal that may read it.

``docs/SECURITY.md`` specifies the format byte by byte.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from nacl.bindings import crypto_box_seal, sodium_pad, sodium_unpad
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from connmgr.errors import IntegrityError
from connmgr.secrets.principals import KEY_ID_BYTES, Principal

_VERSION = 1
_SEALED_BYTES = 48 + SecretBox.KEY_SIZE
_TAG_BYTES = 32
# Values are padded to a multiple of this, so that a stored record hides the length of a password.
_PADDING_BYTES = 64
_CHANGED = "The secret was changed outside of connmgr, or belongs to another vault."


@dataclass(frozen=True)
class SealedSecret:
    """A sealed secret whose authenticity was verified."""

    recipients: Mapping[str, tuple[bytes, bytes]]
    """For each principal's name, the id of its key pair (16 bytes) and the data key sealed to it (80 bytes)."""

    box: bytes
    """Nonce, tag and ciphertext of the padded value."""

    def open(self, data_key: bytes) -> str:
        """Return the value.

        :raises IntegrityError: ``data_key`` is not the key of this box.
        """
        try:
            padded = SecretBox(data_key).decrypt(self.box)
            return sodium_unpad(padded, _PADDING_BYTES).decode()
        except (CryptoError, ValueError) as error:
            raise IntegrityError(_CHANGED) from error


def seal(value: str, recipients: Iterable[Principal], sealing_key: bytes) -> dict[str, Any]:
    """Seal ``value`` to ``recipients`` and return the object for clients and the vault.

    ``sealing_key`` (:func:`connmgr.secrets.principals.sealing_key`) authenticates it.
    """
    data_key = os.urandom(SecretBox.KEY_SIZE)
    box = bytes(SecretBox(data_key).encrypt(sodium_pad(value.encode(), _PADDING_BYTES)))
    # The code covers the header byte by byte: one order of names makes sealing again to the same principals comparable.
    ordered = sorted(recipients, key=lambda principal: principal.name)
    header = struct.pack("<BB", _VERSION, len(ordered))
    for principal in ordered:
        name = principal.name.encode()
        header += struct.pack("<B", len(name)) + name + principal.key_id
        # By an anonymous sender: whoever seals needs no key of its own, and nobody else can open what was sealed.
        header += crypto_box_seal(data_key, principal.public_key)
    token = header + _tag(header, box, sealing_key)
    return {
        "encryptedToken": {"token": base64.b64encode(token).decode()},
        "secret": {"encryptedValue": base64.b64encode(box).decode(), "type": "locked"},
    }


def verify(encrypted: Mapping[str, Any], sealing_key: bytes) -> SealedSecret:
    """Verify every byte of a sealed secret and return its parts.

    :raises IntegrityError: it was not made by :func:`seal` with this ``sealing_key``.
    """
    try:
        token_text, box_text, kind = (
            encrypted["encryptedToken"]["token"],
            encrypted["secret"]["encryptedValue"],
            encrypted["secret"]["type"],
        )
    except (KeyError, TypeError) as error:
        raise IntegrityError(_CHANGED) from error
    token, box = _canonical(token_text), _canonical(box_text)
    header, tag = token[:-_TAG_BYTES], token[-_TAG_BYTES:]
    if kind != "locked" or not hmac.compare_digest(tag, _tag(header, box, sealing_key)):
        raise IntegrityError(_CHANGED)
    return SealedSecret(_recipients(header), box)


def _recipients(header: bytes) -> dict[str, tuple[bytes, bytes]]:
    try:
        version, count = struct.unpack_from("<BB", header)
        if version != _VERSION:
            raise IntegrityError("The secret has a format that this version of connmgr does not know.")
        recipients, at = {}, 2
        for _ in range(count):
            start = at + 1 + header[at]
            key_id = header[start : start + KEY_ID_BYTES]
            end = start + KEY_ID_BYTES + _SEALED_BYTES
            recipients[header[at + 1 : start].decode()] = (key_id, header[start + KEY_ID_BYTES : end])
            at = end
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise IntegrityError(_CHANGED) from error
    if at != len(header):
        raise IntegrityError(_CHANGED)
    return recipients


def _tag(header: bytes, box: bytes, sealing_key: bytes) -> bytes:
    # The length comes first: without it, another split of the same bytes into header and box would have the same code.
    return blake2b(struct.pack("<Q", len(header)) + header + box, key=sealing_key, digest_size=_TAG_BYTES).digest()


def _canonical(text: Any) -> bytes:
    """Decode canonical base64 (RFC 4648, section 4): padded, without blanks or stray bits."""
    # Several texts decode to the same bytes, since the last character has unused bits. Only one is accepted, so that
    # the code covers the text and not only its bytes.
    if isinstance(text, str):
        try:
            raw = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error) as error:
            raise IntegrityError(_CHANGED) from error
        if base64.b64encode(raw) == text.encode():
            return raw
    raise IntegrityError(_CHANGED)


class Box:
    """Seals bytes of the vault under one key of its own, which also authenticates them."""

    def __init__(self, key: bytes) -> None:
        self._key, self._box = key, SecretBox(key)

    def seal(self, content: bytes) -> bytes:
        """Return ``content`` sealed; each call returns other bytes."""
        return bytes(self._box.encrypt(content))

    def open(self, sealed: bytes) -> bytes:
        """Return the content that was sealed.

        :raises IntegrityError: a byte was changed, or the key is another one.
        """
        try:
            return self._box.decrypt(sealed)
        except (CryptoError, TypeError, ValueError) as error:
            raise IntegrityError(_CHANGED) from error

    def digest(self, content: bytes) -> bytes:
        """Return a digest by which equal contents are found, and which tells nothing without the key."""
        return blake2b(content, key=self._key, digest_size=16).digest()
