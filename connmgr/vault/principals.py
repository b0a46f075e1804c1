"""The vault's principals: they seal and open secrets within the rights of a client session."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

import sqlalchemy as sa

from connmgr.errors import (
    IntegrityError,
    InvalidRequest,
    LastPrincipal,
    SecretLocked,
    StartupError,
    UnknownPrincipal,
    UnknownUser,
    UnlockFailed,
    UserExists,
    VaultLocked,
    VaultUnavailable,
)
from connmgr.secrets import envelope
from connmgr.secrets.keyfile import VaultKey
from connmgr.secrets.passphrase import MODERATE, NO_COST, KeyDerivation, check_new_passphrase, new_salt
from connmgr.secrets.principals import (
    VAULT,
    Access,
    Principal,
    check_user_name,
    new_principal,
    open_sealed,
    sealing_key,
    unwrap_vault,
)
from connmgr.secrets.throttle import Guesser, Throttle
from connmgr.vault import changes, entitlement, principal_rows, record, rows
from connmgr.vault.database import Database
from connmgr.vault.documents import Documents
from connmgr.vault.elevated import KIND
from connmgr.vault.sealed import connections_in, passwords_sealed_to, replaced, sealed_to

Outcome = TypeVar("Outcome")

MAX_PRINCIPALS = 64
MAX_NAMED = 5
"""Most connections that an error names."""

_OWNER = Guesser()
_WRONG = "The user does not exist, or the passphrase is wrong."

Anew = Callable[[dict[str, Any]], dict[str, Any]]
"""Seals a secret anew, or returns it as it is; raises SecretLocked if it cannot be opened."""


@dataclass(frozen=True)
class Status:
    """What a client session may know about the vault's users."""

    has_users: bool
    user: str | None
    """The user that this session has unlocked."""
    principals: list[str]
    """The principals whose secrets this session can open."""
    users: list[str]
    """All users; empty if users exist and the session has unlocked none."""


@dataclass(frozen=True)
class RemovedUser:
    """The effect of a user's removal on connections, by their ids."""

    readable: list[str]
    """Those with secrets that the user could open, and therefore may know: they must be changed where they are used."""
    resealed: list[str]
    """Those with secrets that only the user could open, and that were sealed anew."""
    heir: str | None
    """The principal that can open these now; None if there are none."""
    lost: list[str]
    """Those with secrets that nobody can open any more."""


class Principals:
    """The principals of one vault, safe to use from several threads; every answer comes from the database."""

    def __init__(self, database: Database, key: VaultKey) -> None:
        """Take an up-to-date database that has the principal ``vault``.

        :raises StartupError: the stored principals were changed, or the database cannot be read.
        """
        self._database = database
        self._key = key
        self._derivation = KeyDerivation()
        self._throttle = Throttle()
        self._passwords = Documents(database, key, KIND)
        self._numbers = itertools.count(1)
        self.changes = 0
        """A number that changes with every change of the principals by this daemon."""

        try:
            self._known()
        except (IntegrityError, VaultUnavailable) as error:
            raise StartupError(error.message) from error

    def seal(self, value: str, access: Access, principals: Sequence[str] | None = None) -> dict[str, Any]:
        """Seal ``value`` to ``principals``, by default to the user that ``access`` has unlocked, else to ``vault``.

        :raises UnknownPrincipal: one of them does not exist.
        """
        known = self._known()
        user = entitlement.unlocked(known, access)
        names = list(dict.fromkeys([user.name if user else VAULT] if principals is None else principals))
        for name in names:
            if name not in known:
                raise UnknownPrincipal("One of the principals does not exist.")
        if not 1 <= len(names) <= MAX_PRINCIPALS:
            raise InvalidRequest(f"A secret is sealed to 1 to {MAX_PRINCIPALS} principals.")
        return envelope.seal(value, [known[name] for name in names], sealing_key(self._vault_private(known)))

    def unseal(self, encrypted: Mapping[str, Any], access: Access) -> str:
        """Open a sealed secret.

        :raises SecretLocked: ``access`` has none of its principals; ``details["principals"]`` lists those that could.
        :raises IntegrityError: a byte of it was changed, or it belongs to another vault.
        """
        known = self._known()
        vault_private = self._vault_private(known)
        sealed = envelope.verify(encrypted, sealing_key(vault_private))
        holder = entitlement.holder(sealed, known, access)
        box = sealed.recipients[holder.name][1]
        if holder.name == VAULT:
            return sealed.open(open_sealed(box, holder, vault_private))
        data_key = access.open(holder.key_id, box)
        if data_key is None:
            raise SecretLocked(f"{holder.name} was locked in this moment.", principals=[holder.name])
        return sealed.open(data_key)

    def lasting_key(self, purpose: bytes) -> bytes:
        """Return a 32-byte key for ``purpose``, at most 16 bytes, which rotations of the vault's key do not change."""
        private = self._vault_private(self._known())
        return blake2b(key=private, person=purpose, digest_size=32).digest()

    def require(self, secrets: Collection[Mapping[str, Any]], access: Access) -> None:
        """Check that ``access`` may open all of ``secrets``, without opening them; raises as :meth:`unseal`."""
        if secrets:
            self.requirement(access)(secrets)

    def requirement(self, access: Access) -> Callable[[Collection[Mapping[str, Any]]], None]:
        """Return a function that works like :meth:`require`, but reads the current principals only once, now."""
        known = self._known()
        key = sealing_key(self._vault_private(known))

        def require(secrets: Collection[Mapping[str, Any]]) -> None:
            for each in secrets:
                entitlement.holder(envelope.verify(each, key), known, access)

        return require

    def entitled(
        self, secrets: Collection[Mapping[str, Any]], access: Access, refusal: Callable[[], str | None]
    ) -> Access:
        """Return the access that may open all of ``secrets`` for a link: ``access``, or else what is lent to it.

        ``refusal`` returns why a loan is not used for this link, or None; it is called only where one would be.
        :raises SecretLocked, IntegrityError: as :meth:`unseal`; the message says who can lend to a token.
        """
        if not secrets:
            return access
        known = self._known()
        key = sealing_key(self._vault_private(known))
        opened = [envelope.verify(each, key) for each in secrets]
        try:
            for each in opened:
                entitlement.holder(each, known, access)
        except SecretLocked as error:
            lent = access.lent()
            principal = None if lent is None else lent.principal
            # After a change of the passphrase by another daemon the lender is not the user that was unlocked.
            if lent is None or principal is None or known.get(principal.name) != principal:
                if access.advice and error.details["principals"]:
                    error.message += f" {access.advice}"
                raise
            if (why := refusal()) is not None:
                error.message += f" {why}"
                raise
            for each in opened:
                entitlement.holder(each, known, lent)
            return lent
        return access

    def lendable(self, access: Access) -> Principal:
        """Return the user that ``access`` itself has unlocked, as it is stored now.

        :raises VaultLocked: users exist, and it has unlocked none.
        :raises InvalidRequest: the vault has no users, so that every token can use all its secrets.
        """
        known = self._known()
        if known.keys() == {VAULT}:
            raise InvalidRequest("The vault has no users: a token can use its secrets without a loan.")
        user = entitlement.unlocked(known, access)
        if user is None:
            raise VaultLocked("Only who has unlocked a vault user can lend: `connmgr vault unlock USER` first.")
        return user

    def permit(self, secrets: Collection[Mapping[str, Any]], access: Access) -> None:
        """Check that ``access`` may open each of ``secrets``, except those that nobody can open.

        :raises SecretLocked: as :meth:`unseal`.
        """
        if not secrets:
            return
        known = self._known()
        key = sealing_key(self._vault_private(known))
        for each in secrets:
            try:
                opened = envelope.verify(each, key)
            except IntegrityError:
                # Nobody can open a damaged secret.
                continue
            if entitlement.able(opened, known):
                entitlement.holder(opened, known, access)

    def status(self, access: Access) -> Status:
        """Return what ``access`` may know."""
        known = self._known()
        user = entitlement.unlocked(known, access)
        users = sorted(known.keys() - {VAULT})
        if user is None:
            return Status(bool(users), None, [] if users else [VAULT], [])
        return Status(True, user.name, [user.name, VAULT], users)

    def unlock(self, access: Access, user: str, passphrase: str, guesser: Guesser = _OWNER) -> None:
        """Unlock ``user`` alone for ``access``, or raise UnlockFailed, or UnlockThrottled if ``guesser`` must wait."""
        access.grant(*self._authenticate(user, passphrase, guesser))

    def add_user(self, access: Access, name: str, passphrase: str) -> None:
        """Add a user. Any session may add the first, later ones only a session that has unlocked one.

        :raises VaultLocked: users exist and ``access`` has unlocked none.
        :raises UserExists: a user has this name.
        :raises InvalidRequest: the name or the passphrase breaks the rules.
        """
        check_user_name(name)
        check_new_passphrase(passphrase)
        _check_addition(self._known(), access, name)
        salt = new_salt()
        added, _ = new_principal(name, self._derivation.derive(passphrase, salt, MODERATE), MODERATE, salt)

        def add(tx: sa.Connection) -> None:
            known = principal_rows.load(tx, self._key)
            _check_addition(known, access, name)
            principal_rows.replace(tx, self._key, {**known, name: added})

        self._change(add)

    def change_passphrase(self, user: str, passphrase: str, new_passphrase: str, guesser: Guesser = _OWNER) -> None:
        """Wrap the private key of ``user`` with another passphrase; the key pair and sealed secrets stay.

        :raises UnlockFailed, UnlockThrottled: as :meth:`unlock`.
        :raises InvalidRequest: the new passphrase breaks the rules.
        """
        check_new_passphrase(new_passphrase)
        before, private = self._authenticate(user, passphrase, guesser)
        salt = new_salt()
        wrapping = self._derivation.derive(new_passphrase, salt, MODERATE)
        after = before.rewrapped(private, wrapping, MODERATE, salt)

        def rewrap(tx: sa.Connection) -> None:
            known = principal_rows.load(tx, self._key)
            if known.get(user) != before:
                raise UnlockFailed(_WRONG)
            principal_rows.replace(tx, self._key, {**known, user: after})

        self._change(rewrap)

    def remove_user(
        self,
        access: Access,
        name: str,
        *,
        passphrase: str | None = None,
        force: bool = False,
        guesser: Guesser = _OWNER,
    ) -> RemovedUser:
        """Remove a user. Secrets that nobody else can open are sealed anew, if the user's key is at hand.

        It is if ``access`` has unlocked the user, or with the user's ``passphrase``, which also permits the removal
        by itself. They are sealed to the user that ``access`` has unlocked, or to ``vault`` if that is the removed one.
        :raises VaultLocked: users exist, ``access`` has unlocked none, and there is no ``passphrase``.
        :raises UnlockFailed, UnlockThrottled: as :meth:`unlock`.
        :raises UnknownUser: no user has this name.
        :raises LastPrincipal: secrets would be lost, and ``force`` is not set; ``details["connections"]`` lists their
            connections.
        """
        authenticated = None if passphrase is None else self._authenticate(name, passphrase, guesser)

        def remove(tx: sa.Connection) -> RemovedUser:
            known = principal_rows.load(tx, self._key)
            if known.keys() != {VAULT} and authenticated is None:
                entitlement.require_unlocked(known, access)
            if name == VAULT or name not in known:
                raise UnknownUser(f"Unknown vault user: {name}")
            user = known.pop(name)
            if authenticated is not None and authenticated[0].key_id != user.key_id:
                raise UnlockFailed(_WRONG)
            private = None if authenticated is None else authenticated[1]
            key = sealing_key(self._vault_private(known))
            affected, lost = sealed_to(tx, user, known, key)
            heir = entitlement.unlocked(known, access) or known[VAULT]

            def opened(box: bytes) -> bytes | None:
                return access.open(user.key_id, box) if private is None else open_sealed(box, user, private)

            anew = _anew(user, heir, known, key, opened)
            resealed = [id for id in lost if self._reseal(tx, id, anew)]
            lost = [id for id in lost if id not in resealed]
            readable, alone = passwords_sealed_to(tx, user, known, key)
            kept = [of for of in alone if self._reseal_password(tx, of, anew)]
            lost = connections_in(tx, [*lost, *(of for of in alone if of not in kept)])
            resealed = [id for id in connections_in(tx, [*resealed, *kept]) if id not in lost]
            affected = connections_in(tx, [*affected, *readable])
            if lost and not force:
                raise _would_lose(tx, lost, name)
            principal_rows.replace(tx, self._key, known)
            return RemovedUser(affected, resealed, heir.name if resealed else None, lost)

        removed = self._change(remove)
        if access.principal is not None and access.principal.name == name:
            access.lock()
        return removed

    def _reseal(self, tx: sa.Connection, id: str, anew: Anew) -> bool:
        """Seal secrets of a connection ``anew``; return whether that was possible.

        A connection that was changed outside of connmgr keeps its secrets, because it could lead them elsewhere.
        """
        row = rows.one(tx, id)
        if not record.intact(row, self._key):
            return False
        try:
            data = replaced(json.loads(row["data"]), anew)
        except SecretLocked:
            return False
        # Whoever uses the connections above it gets no other secret than before.
        changes.change(tx, self._key, id, {"data": record.canonical(data)}, None, lambda _: None, lambda _tx, _: {})
        return True

    def _reseal_password(self, tx: sa.Connection, of: str, anew: Anew) -> bool:
        """Like :meth:`_reseal`, for the password for sudo of a connection or category."""
        try:
            self._passwords.change_within(tx, of, lambda one: dataclasses.replace(one, body=replaced(one.body, anew)))
        except (SecretLocked, IntegrityError):
            return False
        return True

    def _known(self) -> dict[str, Principal]:
        return self._database.read(lambda tx: principal_rows.load(tx, self._key))

    def _change(self, change: Callable[[sa.Connection], Outcome]) -> Outcome:
        try:
            return self._database.write(change, erases=True)
        finally:
            # A new number, also after two concurrent changes.
            self.changes = next(self._numbers)

    def _vault_private(self, known: Mapping[str, Principal]) -> bytes:
        return unwrap_vault(known[VAULT], self._key.wrapping)

    def _authenticate(self, name: str, passphrase: str, guesser: Guesser) -> tuple[Principal, bytes]:
        """Return a user and its private key."""
        with self._throttle.attempt(name, guesser) as failed_before:
            known = self._known()
            # For an unknown user a key is derived too, so that the answer takes the same time.
            user = known.get(name) if name != VAULT else None
            user = user or Principal("", bytes(32), bytes(72), MODERATE, new_salt())
            cost = user.cost or NO_COST
            wrapping = self._derivation.derive(
                passphrase, user.salt, cost, of_token=bool(guesser.token), may_wait=failed_before
            )
            private = user.unwrap(wrapping)
            if private is None:
                self._throttle.failed(name, guesser)
                raise UnlockFailed(_WRONG)
            self._throttle.succeeded(name, guesser)
        return user, private


def _would_lose(tx: sa.Connection, lost: Sequence[str], name: str) -> LastPrincipal:
    found = rows.existing(tx, lost[:MAX_NAMED])
    # An empty category may have a password for sudo, too.
    paths = [str(found[id]["path"]) if id in found else f"category {id}" for id in lost[:MAX_NAMED]]
    more = f" and {len(lost) - len(paths)} more" if len(lost) > len(paths) else ""
    number = "1 connection" if len(lost) == 1 else f"{len(lost)} connections"
    return LastPrincipal(
        f"Only {name} can open secrets of {number}: {', '.join(paths)}{more}. Unlock {name}, or give the passphrase of "
        f"{name}, so that they are sealed anew; with force they are lost.",
        connections=list(lost),
    )


def _check_addition(known: Mapping[str, Principal], access: Access, name: str) -> None:
    if len(known) > 1:
        entitlement.require_unlocked(known, access)
    if name in known:
        raise UserExists(f"A vault user {name} exists already.")


def _anew(
    user: Principal,
    heir: Principal,
    others: Mapping[str, Principal],
    key: bytes,
    opened: Callable[[bytes], bytes | None],
) -> Anew:
    """Return a function that seals a secret to ``heir`` if only ``user`` can open it, and leaves any other as it is."""
    alive = {each.key_id for each in others.values()}

    def anew(encrypted: dict[str, Any]) -> dict[str, Any]:
        sealed = envelope.verify(encrypted, key)
        boxes = dict(sealed.recipients.values())
        if user.key_id not in boxes or not alive.isdisjoint(boxes):
            return encrypted
        data_key = opened(boxes[user.key_id])
        if data_key is None:
            raise SecretLocked(f"{user.name} is not unlocked.", principals=[user.name])
        return envelope.seal(sealed.open(data_key), [heir], key)

    return anew
