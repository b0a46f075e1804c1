"""Random words that only one frame, helper or login knows."""

from __future__ import annotations

import itertools
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import blake2b


def new_nonce() -> str:
    """Return 128 random bits as letters, digits, ``-`` and ``_``; short, because shells read input byte by byte."""
    return secrets.token_urlsafe(16)


def nonces() -> Iterator[str]:
    """Yield words like :func:`new_nonce` by a keyed hash of a counter (BLAKE2b, RFC 7693).

    Random bytes from the system would release the interpreter lock, which is slow with many threads.
    """
    key = secrets.token_bytes(32)
    for number in itertools.count():
        digest = blake2b(number.to_bytes(8, "big"), digest_size=16, key=key).digest()
        yield urlsafe_b64encode(digest).rstrip(b"=").decode()
