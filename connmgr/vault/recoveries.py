"""The recovery keys of the vault's users: each wraps a user's private key, as the passphrase does, and sets a new one.

A recovery key belongs to the user who made it, with the passphrase: nobody makes one for another user's secrets.
"""

from __future__ import annotations

import base64
import dataclasses
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from connmgr.errors import InvalidRequest, UnknownRecovery, VaultLocked, WrongShares
from connmgr.secrets.passphrases import Guesser
from connmgr.secrets.principals import Access, Principal
from connmgr.secrets.recovery import RecoveryWords, new_words, read_words
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault.database import Database
from connmgr.vault.documents import Document, Documents
from connmgr.vault.principals import RECOVERY, Principals, opens
from connmgr.vault.schema import now

MAX_RECOVERIES = 64
"""Most recovery keys of a vault."""

_ANOTHER = "it is of another vault, or was rotated or revoked"


@dataclass(frozen=True)
class StoredRecovery:
    """What the vault knows of a recovery key: not the words, and nothing from which they follow."""

    id: str
    user: str
    shares: int
    threshold: int
    created: datetime
    used: datetime | None
    """When it last set a passphrase."""


class Recoveries:
    """The recovery keys of one vault, safe to use from several threads."""

    def __init__(self, database: Database, key: VaultKey, principals: Principals) -> None:
        self._database = database
        self._documents = Documents(database, key, RECOVERY)
        self._principals = principals

    def all(self) -> list[StoredRecovery]:
        """Return all recovery keys, oldest first."""
        users = self._principals.users()
        return [_stored(document) for document in self._documents.all() if _user_of(document, users)]

    def used_for(self, user: str) -> list[StoredRecovery]:
        """Return the recovery keys of ``user`` that have set a passphrase."""
        return [recovery for recovery in self.all() if recovery.user == user and recovery.used is not None]

    def create(self, user: str, passphrase: str, *, shares: int, threshold: int, guesser: Guesser) -> RecoveryWords:
        """Make a recovery key for ``user``, and return its words, which nothing keeps.

        :raises connmgr.errors.UnlockFailed, connmgr.errors.UnlockThrottled: as :meth:`Principals.unlock`.
        :raises InvalidRequest: there are no such shares, or the vault has too many recovery keys.
        """
        # Their words may have the id of another one, by chance.
        words = new_words(threshold, shares)
        principal, private = self._principals.authenticate(user, passphrase, guesser)
        while not self._documents.add(_document(words, principal, private, shares), most=MAX_RECOVERIES):
            if len(self._documents.all()) >= MAX_RECOVERIES:
                raise InvalidRequest(f"A vault has at most {MAX_RECOVERIES} recovery keys: revoke one first.")
            words = new_words(threshold, shares)
        return words

    def rotate(self, id: str, passphrase: str, guesser: Guesser) -> tuple[str, RecoveryWords]:
        """Replace a recovery key by another one of as many shares, and return its user and the new words.

        :raises UnknownRecovery: there is none with this ``id``.
        :raises connmgr.errors.UnlockFailed, connmgr.errors.UnlockThrottled: as :meth:`Principals.unlock`.
        """
        before = self._one(id)
        words = self.create(
            before.body["user"],
            passphrase,
            shares=before.body["shares"],
            threshold=before.body["threshold"],
            guesser=guesser,
        )
        # The new key is stored first: an interruption leaves two, and not none.
        self._remove(before)
        return before.body["user"], words

    def revoke(self, id: str, access: Access) -> str:
        """Remove a recovery key, and return its user.

        :raises UnknownRecovery: there is none with this ``id``.
        :raises VaultLocked: ``access`` has unlocked no user.
        """
        before = self._one(id)
        if self._principals.status(access).user is None:
            raise VaultLocked("Revoking a recovery key needs an unlocked vault user: unlock one first.")
        self._remove(before)
        return str(before.body["user"])

    def check(self, shares: list[str]) -> StoredRecovery:
        """Return the recovery key whose words these are; raises as :meth:`use`, and changes nothing."""
        return _stored(self._opened(shares)[0])

    def use(self, shares: list[str], new_passphrase: str) -> StoredRecovery:
        """Set the passphrase of the user of a recovery key; the key stays valid, and is noted as used.

        :raises WrongShares: as :func:`connmgr.secrets.recovery.read_words`, or it is not a recovery key of this vault.
        :raises InvalidRequest: the new passphrase breaks the rules.
        """
        document, user, private = self._opened(shares)
        used = dataclasses.replace(document, body={**document.body, "used": now().isoformat()})

        def note(tx: sa.Connection) -> None:
            # A key that was revoked meanwhile is not there any more.
            if not any(other.id == document.id for other in self._documents.all_within(tx)):
                raise _foreign(document.key)
            self._documents.change_within(tx, document.key, lambda _: used)

        self._principals.set_passphrase(user, private, new_passphrase, note)
        return _stored(used)

    def _opened(self, shares: list[str]) -> tuple[Document, Principal, bytes]:
        words = read_words(shares)
        document = self._documents.by_key(words.id)
        user = None if document is None else _user_of(document, self._principals.users())
        private = None
        if document is not None and user is not None:
            private = _wrapped(document, user).unwrap(words.wrapping)
        if document is None or user is None or private is None:
            raise _foreign(words.id)
        return document, user, private

    def _remove(self, document: Document) -> None:
        self._documents.remove([document.id])

    def _one(self, id: str) -> Document:
        document = self._documents.by_key(id)
        if document is None or _user_of(document, self._principals.users()) is None:
            raise UnknownRecovery(id)
        return document


def _foreign(id: str) -> WrongShares:
    return WrongShares(f"The shares are correct, but this vault has no recovery key {id}: {_ANOTHER}.", shares=[])


def _user_of(document: Document, users: dict[str, Principal]) -> Principal | None:
    user = users.get(document.body["user"])
    return user if user is not None and opens(document, user) else None


def _document(words: RecoveryWords, user: Principal, private: bytes, shares: int) -> Document:
    slot = Principal(f"{RECOVERY}:{words.id}", user.public_key, b"").rewrapped(private, words.wrapping)
    body = {
        "user": user.name,
        "keyId": user.key_id.hex(),
        "wrapped": base64.b64encode(slot.wrapped_key).decode(),
        "shares": shares,
        "threshold": words.threshold,
        "used": None,
    }
    return Document(key=words.id, body=body)


def _wrapped(document: Document, user: Principal) -> Principal:
    """Return the user's key pair under the name of the recovery key, wrapped by it."""
    return Principal(f"{RECOVERY}:{document.key}", user.public_key, base64.b64decode(document.body["wrapped"]))


def _stored(document: Document) -> StoredRecovery:
    body = document.body
    used = None if body["used"] is None else datetime.fromisoformat(body["used"])
    return StoredRecovery(document.key, body["user"], body["shares"], body["threshold"], document.created, used)
