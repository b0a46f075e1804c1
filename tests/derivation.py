"""The cost of deriving keys in tests: libsodium's minimum, since the real cost is half a second of CPU.

The vault stores and checks the real cost all the same, and a key still depends on it. Daemons and commands that are
forked (tests/spawner.py) derive as the process of their test does. The tests in :data:`REAL` pay the real cost, and so
does every process that is started in another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nacl.pwhash import argon2id

REAL = ("tests/process", "tests/secrets/test_passphrase.py")
"""Places of the tests of passphrases, and of the process as users start it."""

_at_real_cost = argon2id.kdf


def _at_least_cost(size: int, password: bytes, salt: bytes, opslimit: int, memlimit: int) -> Any:
    whole = b"%d %d %s" % (opslimit, memlimit, password)
    return _at_real_cost(size, whole, salt, argon2id.OPSLIMIT_MIN, argon2id.MEMLIMIT_MIN)


def lower_cost() -> None:
    """Derive at the minimum cost in this process from now on."""
    argon2id.kdf = _at_least_cost


def is_cost_lowered() -> bool:
    """Return whether this process derives at the minimum cost."""
    return argon2id.kdf is _at_least_cost


@contextmanager
def real_cost() -> Iterator[None]:
    """Derive at the real cost during the block."""
    argon2id.kdf = _at_real_cost
    try:
        yield
    finally:
        lower_cost()
