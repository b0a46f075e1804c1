"""Principals: the key pairs to which secrets are sealed, and their wrapped private keys."""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from nacl.bindings import crypto_box_seal_open
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey
from nacl.secret import Aead

from connmgr.errors import IntegrityError, InvalidRequest
from connmgr.plugin import Asker
from connmgr.secrets.passphrases import NO_COST, Cost

VAULT = "vault"
"""The principal whose private key the vault's generic key wraps."""

KEY_ID_BYTES = 16
_NAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,63}")
DAMAGED = "The vault's principals were changed outside of connmgr; restore the vault from a backup."


@dataclass(frozen=True)
class Principal:
    """A stored principal: its public key (32 bytes) and its wrapped private key.

    ``cost`` and ``salt`` belong to the passphrase that wraps the key; the principal ``vault`` has none.
    """

    name: str
    public_key: bytes
    wrapped_key: bytes
    cost: Cost | None = None
    salt: bytes = b""

    @property
    def key_id(self) -> bytes:
        """The 16 bytes that identify this key pair in sealed secrets; a user added again gets another."""
        return blake2b(self.public_key, person=b"connmgr.key-id", digest_size=KEY_ID_BYTES).digest()

    def associated(self) -> bytes:
        """Return everything except the wrapped key, unambiguously encoded, to authenticate with that key."""
        # All of it is authenticated with the wrapped key: whoever writes to the database can exchange none unnoticed.
        cost = self.cost or NO_COST
        name = self.name.encode()
        return struct.pack("<BB", 1, len(name)) + name + self.public_key + cost.encode() + self.salt

    def record(self) -> bytes:
        """Return the data covered by the row's authentication code: every stored byte."""
        return self.associated() + self.wrapped_key

    def unwrap(self, wrapping: bytes) -> bytes | None:
        """Return the private key, opened with the 32-byte key ``wrapping``, or None if that is the wrong key."""
        try:
            return Aead(wrapping).decrypt(self.wrapped_key, self.associated())
        except CryptoError:
            return None

    def rewrapped(self, private: bytes, wrapping: bytes, cost: Cost | None = None, salt: bytes = b"") -> Principal:
        """Return this principal with its private key wrapped by another key; the key pair stays."""
        bare = replace(self, cost=cost, salt=salt)
        return replace(bare, wrapped_key=bytes(Aead(wrapping).encrypt(private, bare.associated())))


def new_principal(name: str, wrapping: bytes, cost: Cost | None = None, salt: bytes = b"") -> tuple[Principal, bytes]:
    """Make a principal with a fresh key pair and return it with its private key."""
    pair = PrivateKey.generate()
    bare = Principal(name, bytes(pair.public_key), b"")
    private = bytes(pair)
    return bare.rewrapped(private, wrapping, cost, salt), private


def unwrap_vault(principal: Principal, wrapping: bytes) -> bytes:
    """Return the private key of the principal ``vault``.

    :raises IntegrityError: the row does not belong to this key.
    """
    private = principal.unwrap(wrapping)
    if private is None:
        raise IntegrityError(DAMAGED)
    return private


def open_sealed(sealed: bytes, principal: Principal, private: bytes) -> bytes:
    """Return the data key that was sealed to ``principal``.

    :raises IntegrityError: it was sealed to another key.
    """
    try:
        return crypto_box_seal_open(sealed, principal.public_key, private)
    except CryptoError as error:
        raise IntegrityError("The secret names a key that it was not sealed to.") from error


def sealing_key(vault_private: bytes) -> bytes:
    """Return the 32-byte key that authenticates sealed secrets; rotations of the vault's key do not change it."""
    # By the private key, not by the vault's key: the pair stays when that key is rotated, and so do all sealed secrets.
    return blake2b(key=vault_private, person=b"connmgr.sealing", digest_size=32).digest()


def check_user_name(name: str) -> None:
    """Refuse a text that cannot be the name of a vault user.

    :raises InvalidRequest: the message contains the rule.
    """
    if name == VAULT or not _NAME.fullmatch(name):
        raise InvalidRequest(
            "A user's name has 1 to 64 of the characters a-z 0-9 . _ @ -, "
            f"begins with a letter or digit, and is not {VAULT!r}."
        )


class Access:
    """The secrets that one client session may open: none, or an unlocked user's, whose private key it holds.

    Access to the principal ``vault`` depends on whether users exist, so it is checked on each use. ``asker`` says what
    else the session may do with a link. Safe to use from several threads.
    """

    def __init__(self, asker: Asker | None = None) -> None:
        self.asker = asker or Asker()
        self.who: Mapping[str, str] = {}
        """The client, its session and its token, as entries of the audit log name them; empty for the daemon itself."""
        self._lock = threading.Lock()
        self._principal: Principal | None = None
        self._private = bytearray()
        self.unlocked: object | None = None
        """Stands for the present unlocking: another object after each; None while no user is unlocked."""
        self.when_locked: Callable[[], object] = lambda: None
        """Called when the user is locked, under locks: it may only wake others."""

    @property
    def principal(self) -> Principal | None:
        """The unlocked user as stored when it was unlocked, or None."""
        return self._principal

    @property
    def holder(self) -> str | None:
        """Whose share of the daemon it uses (:mod:`connmgr.shares`): a token's id, or None for the owner's."""
        return None

    def grant(self, principal: Principal, private: bytes) -> None:
        """Unlock ``principal``, and lock the one unlocked before."""
        with self._lock:
            self._wipe()
            self._private = bytearray(private)
            self._principal = principal
            self.unlocked = object()

    def lock(self) -> None:
        """Forget the user and overwrite its private key; calling it again does nothing."""
        with self._lock:
            self._wipe()

    def open(self, key_id: bytes, sealed: bytes) -> bytes | None:
        """Open a data key with the user of ``key_id``; None if that user is not unlocked; see :func:`open_sealed`."""
        with self._lock:
            # The key's id, not the user's name: a user who was removed and added again has another key.
            if self._principal is None or self._principal.key_id != key_id:
                return None
            return open_sealed(sealed, self._principal, bytes(self._private))

    def _wipe(self) -> None:
        # Overwritten in place: an object that is only dropped stays readable in memory until its place is used again.
        self._private[:] = bytes(len(self._private))
        self._private = bytearray()
        self._principal = None
        self.unlocked = None
        self.when_locked()

    def lent(self) -> Access | None:
        """Return the access by a loan to this session's token (:mod:`connmgr.secrets.loans`), or None."""
        return None

    @property
    def advice(self) -> str:
        """A sentence on what else helps against a locked secret, or an empty text."""
        return ""

    def note(self, connection: str) -> None:
        """Note a use on a connection; it matters for a loan."""

    def __repr__(self) -> str:
        return "<Access>"

    @property
    def without_loan(self) -> Access:
        """The same access, for work after the request that lent something."""
        return self


class Lending(Access):
    """The access of one request, with credentials lent by ``asker``; secrets are opened by the session's ``own``."""

    def __init__(self, own: Access, asker: Asker) -> None:
        super().__init__(asker)
        self.who = own.who
        self._own = own

    @property
    def principal(self) -> Principal | None:
        return self._own.principal

    def open(self, key_id: bytes, sealed: bytes) -> bytes | None:
        return self._own.open(key_id, sealed)

    def lent(self) -> Access | None:
        return self._own.lent()

    @property
    def advice(self) -> str:
        return self._own.advice

    @property
    def without_loan(self) -> Access:
        return self._own
