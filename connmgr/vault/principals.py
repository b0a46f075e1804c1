"""The vault's principals: they seal and open secrets within the rights of a client session."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from connmgr.secrets import sealing
from connmgr.secrets.passphrases import (
    MODERATE,
    NO_COST,
    Guesser,
    KeyDerivation,
    Throttle,
    check_new_passphrase,
    new_salt,
)
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
from connmgr.secrets.sealing import SealedSecret
from connmgr.secrets.vault_key import VaultKey
from connmgr.vault import connection_rows, connections, principal_rows
from connmgr.vault.connection_rows import sealed_secrets
from connmgr.vault.database import Database
from connmgr.vault.documents import Document, Documents
from connmgr.vault.schema import canonical, connection, document
from connmgr.vault.unstored import SUDO_PASSWORD

Outcome = TypeVar("Outcome")

SIGNER = "signer"
"""The kind of the documents with signers of SSH certificates; the key of each is its name."""

RECOVERY = "recovery"
"""The kind of document that a recovery key is (:mod:`connmgr.vault.recoveries`)."""

MAX_PRINCIPALS = 64
MAX_NAMED = 5
"""Most connections that an error names."""

_OWNER = Guesser()
_WRONG = "The user does not exist, or the passphrase is wrong."
_NO_USERS = (
    "The vault has no users, so no passphrase unlocks anything: every client may use its secrets. "
    "`connmgr vault user add USER` adds the first user."
)

Anew = Callable[[dict[str, Any]], dict[str, Any]]
"""Seals a secret anew, or returns it as it is; raises SecretLocked if it cannot be opened."""


@dataclass(frozen=True)
class Status:
    """What a client session may know about the vault's users."""

    has_users: bool
    user: str | None
    """The user that this session has unlocked."""
    principals: tuple[str, ...]
    """The principals whose secrets this session can open."""
    users: tuple[str, ...]
    """All users; empty if users exist and the session has unlocked none."""


@dataclass(frozen=True)
class RemovedUser:
    """The effect of a user's removal on connections, by their ids."""

    readable: list[str]
    """Those with secrets that the user could open, and therefore may know: they must be changed where they are used."""
    resealed: list[str]
    """The connections with secrets that only the user could open, and that were sealed anew."""
    heir: str | None
    """The principal that can open these now; None if there are none."""
    lost: list[str]
    """The connections with secrets that nobody can open now."""


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
        self._holding = {kind: Documents(database, key, kind) for kind in (SUDO_PASSWORD, SIGNER)}
        self._recoveries = Documents(database, key, RECOVERY)
        self._numbers = itertools.count(1)
        self.changes = 0
        """A number that changes with every change of the principals by this daemon."""

        try:
            self._load()
        except (IntegrityError, VaultUnavailable) as error:
            raise StartupError(error.message) from error

    def seal(self, value: str, access: Access, principals: Sequence[str] | None = None) -> dict[str, Any]:
        """Seal ``value`` to ``principals``, by default to the user that ``access`` has unlocked, else to ``vault``.

        :raises UnknownPrincipal: one of them does not exist.
        """
        by_name = self._load()
        user = _unlocked_user(by_name, access)
        names = list(dict.fromkeys([user.name if user else VAULT] if principals is None else principals))
        for name in names:
            if name not in by_name:
                raise UnknownPrincipal("One of the principals does not exist.")
        if not 1 <= len(names) <= MAX_PRINCIPALS:
            raise InvalidRequest(f"A secret is sealed to 1 to {MAX_PRINCIPALS} principals.")
        return sealing.seal(value, [by_name[name] for name in names], sealing_key(self._vault_private(by_name)))

    def unseal(self, encrypted: Mapping[str, Any], access: Access) -> str:
        """Open a sealed secret.

        :raises SecretLocked: ``access`` has none of its principals; ``details["principals"]`` lists the principals.
        :raises IntegrityError: a byte of it was changed, or it belongs to another vault.
        """
        by_name = self._load()
        vault_private = self._vault_private(by_name)
        sealed = sealing.verify(encrypted, sealing_key(vault_private))
        holder = _entitled_principal(sealed, by_name, access)
        # The value is opened here, for this one use, and is nowhere kept in plain text.
        box = sealed.recipients[holder.name][1]
        if holder.name == VAULT:
            return sealed.open(open_sealed(box, holder, vault_private))
        data_key = access.open(holder.key_id, box)
        if data_key is None:
            # Another request has locked the user between the look at `access` above and here.
            raise SecretLocked(
                f"{holder.name} has just been locked: unlock {holder.name} again.", principals=[holder.name]
            )
        return sealed.open(data_key)

    def lasting_key(self, purpose: bytes) -> bytes:
        """Return a 32-byte key for ``purpose``, at most 16 bytes, which rotations of the vault's key do not change."""
        private = self._vault_private(self._load())
        return blake2b(key=private, person=purpose, digest_size=32).digest()

    def require(self, secrets: Collection[Mapping[str, Any]], access: Access) -> None:
        """Check that ``access`` may open all of ``secrets``, without opening them; raises as :meth:`unseal`."""
        if secrets:
            self.requirement(access)(secrets)

    def requirement(self, access: Access) -> Callable[[Collection[Mapping[str, Any]]], None]:
        """Return a function that works like :meth:`require`, but reads the current principals only once, now."""
        by_name = self._load()
        key = sealing_key(self._vault_private(by_name))

        def require(secrets: Collection[Mapping[str, Any]]) -> None:
            for each in secrets:
                _entitled_principal(sealing.verify(each, key), by_name, access)

        return require

    def entitled(
        self, secrets: Collection[Mapping[str, Any]], access: Access, refusal: Callable[[], str | None]
    ) -> Access:
        """Return the access that may open all of ``secrets`` for a link: ``access``, or else a loan to it.

        ``refusal`` returns why a loan must not be used for this link, or None; it is called only before such a use.
        :raises SecretLocked, IntegrityError: as :meth:`unseal`; the message says who can lend to a token.
        """
        # Called where a link is opened or shared, and nowhere else: so no other code can use a lent secret.
        if not secrets:
            return access
        by_name = self._load()
        key = sealing_key(self._vault_private(by_name))
        opened = [sealing.verify(each, key) for each in secrets]
        try:
            for each in opened:
                _entitled_principal(each, by_name, access)
        except SecretLocked as error:
            lent = access.lent()
            principal = None if lent is None else lent.principal
            # After a change of the passphrase by another daemon the lender is not the user that was unlocked.
            if lent is None or principal is None or by_name.get(principal.name) != principal:
                if access.advice and error.details["principals"]:
                    error.message += f" {access.advice}"
                raise
            if (why := refusal()) is not None:
                error.message += f" {why}"
                raise
            # Checked for all once more: some may be sealed to the lender, and others to nobody who is unlocked.
            for each in opened:
                _entitled_principal(each, by_name, lent)
            return lent
        return access

    def lendable(self, access: Access) -> Principal:
        """Return the user that ``access`` itself has unlocked, as it is stored now.

        :raises VaultLocked: users exist, and it has unlocked none.
        :raises InvalidRequest: the vault has no users, so that every token can use all its secrets.
        """
        by_name = self._load()
        if by_name.keys() == {VAULT}:
            raise InvalidRequest("The vault has no users: a token can use its secrets without a loan.")
        user = _unlocked_user(by_name, access)
        if user is None:
            raise VaultLocked("Lending needs an unlocked vault user: run `connmgr vault unlock USER` first.")
        return user

    def permit(self, secrets: Collection[Mapping[str, Any]], access: Access) -> None:
        """Check that ``access`` may open each of ``secrets``, except secrets that nobody can open.

        :raises SecretLocked: as :meth:`unseal`.
        """
        if not secrets:
            return
        by_name = self._load()
        key = sealing_key(self._vault_private(by_name))
        for each in secrets:
            try:
                opened = sealing.verify(each, key)
            except IntegrityError:
                # Nobody can open a damaged secret.
                continue
            if _principals_that_open(opened, by_name):
                _entitled_principal(opened, by_name, access)

    def status(self, access: Access) -> Status:
        """Return what ``access`` may know."""
        by_name = self._load()
        user = _unlocked_user(by_name, access)
        users = sorted(by_name.keys() - {VAULT})
        if user is None:
            return Status(bool(users), None, () if users else (VAULT,), ())
        return Status(True, user.name, (user.name, VAULT), tuple(users))

    def users(self) -> dict[str, Principal]:
        """Return all users by name."""
        by_name = self._load()
        del by_name[VAULT]
        return by_name

    def unlock(self, access: Access, user: str, passphrase: str, guesser: Guesser = _OWNER) -> None:
        """Unlock ``user`` alone for ``access``, or raise UnlockFailed, or UnlockThrottled if ``guesser`` must wait."""
        access.grant(*self.authenticate(user, passphrase, guesser))

    def add_user(self, access: Access, name: str, passphrase: str) -> None:
        """Add a user. Any session may add the first, later ones only a session that has unlocked one.

        :raises VaultLocked: users exist and ``access`` has unlocked none.
        :raises UserExists: a user has this name.
        :raises InvalidRequest: the name or the passphrase breaks the rules.
        """
        check_user_name(name)
        check_new_passphrase(passphrase)
        # Now, because the derivation below is slow, and again in the transaction, because another session or daemon may
        # have added or locked a user during it.
        _check_addition(self._load(), access, name)
        salt = new_salt()
        added, _ = new_principal(name, self._derivation.derive(passphrase, salt, MODERATE), MODERATE, salt)

        def add(tx: sa.Connection) -> None:
            by_name = principal_rows.load(tx, self._key)
            _check_addition(by_name, access, name)
            principal_rows.replace(tx, self._key, {**by_name, name: added})

        self._change(add)

    def change_passphrase(self, user: str, passphrase: str, new_passphrase: str, guesser: Guesser = _OWNER) -> None:
        """Wrap the private key of ``user`` with another passphrase; the key pair and sealed secrets stay.

        :raises UnlockFailed, UnlockThrottled: as :meth:`unlock`.
        :raises InvalidRequest: the new passphrase breaks the rules.
        """
        check_new_passphrase(new_passphrase)
        before, private = self.authenticate(user, passphrase, guesser)
        self.set_passphrase(before, private, new_passphrase)

    def set_passphrase(
        self,
        before: Principal,
        private: bytes,
        passphrase: str,
        also: Callable[[sa.Connection], object] = lambda _: None,
    ) -> None:
        """Wrap the ``private`` key of the user ``before`` with a new passphrase, and do ``also`` in one transaction.

        :raises UnlockFailed: the user was changed meanwhile.
        :raises InvalidRequest: the new passphrase breaks the rules.
        """
        check_new_passphrase(passphrase)
        salt = new_salt()
        after = before.rewrapped(private, self._derivation.derive(passphrase, salt, MODERATE), MODERATE, salt)

        def rewrap(tx: sa.Connection) -> None:
            by_name = principal_rows.load(tx, self._key)
            # The user may have another passphrase, or be gone, since `before` was read: that change must not be undone.
            if by_name.get(before.name) != before:
                raise UnlockFailed(_WRONG)
            principal_rows.replace(tx, self._key, {**by_name, before.name: after})
            also(tx)

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
        """Remove a user. Secrets that nobody else can open are sealed anew, which needs the user's key.

        The key is there if ``access`` has unlocked the user, or with the user's ``passphrase``, which is also enough
        for the removal. The secrets are sealed to the user that ``access`` has unlocked, or to ``vault`` if that user
        is being removed.
        :raises VaultLocked: users exist, ``access`` has unlocked none, and there is no ``passphrase``.
        :raises UnlockFailed, UnlockThrottled: as :meth:`unlock`.
        :raises UnknownUser: no user has this name.
        :raises LastPrincipal: secrets would be lost, and ``force`` is not set or a recovery key of the user opens them;
            ``details["connections"]`` lists their connections.
        """
        authenticated = None if passphrase is None else self.authenticate(name, passphrase, guesser)

        def remove(tx: sa.Connection) -> RemovedUser:
            by_name = principal_rows.load(tx, self._key)
            if by_name.keys() != {VAULT} and authenticated is None:
                _require_unlocked(by_name, access)
            if name == VAULT or name not in by_name:
                raise UnknownUser(f"Unknown vault user: {name}")
            user = by_name.pop(name)
            # The passphrase was checked before this transaction: another daemon may have changed the user since.
            if authenticated is not None and authenticated[0].key_id != user.key_id:
                raise UnlockFailed(_WRONG)
            private = None if authenticated is None else authenticated[1]
            key = sealing_key(self._vault_private(by_name))
            affected, lost = _connections_sealed_to(tx, user, by_name, key)
            heir = _unlocked_user(by_name, access) or by_name[VAULT]

            def opened(box: bytes) -> bytes | None:
                return access.open(user.key_id, box) if private is None else open_sealed(box, user, private)

            # Everything is sealed anew first, and only then judged: the transaction is undone if something would be
            # lost.
            anew = _anew(user, heir, by_name, key, opened)
            resealed = [id for id in lost if self._reseal(tx, id, anew)]
            lost = [id for id in lost if id not in resealed]
            readable, alone = _documents_sealed_to(tx, SUDO_PASSWORD, user, by_name, key)
            passwords = [of for of in alone if self._reseal_document(tx, SUDO_PASSWORD, of, anew)]
            _, signers = _documents_sealed_to(tx, SIGNER, user, by_name, key)
            lost_signers = [name for name in signers if not self._reseal_document(tx, SIGNER, name, anew)]
            # A recovery key can still open what the user could, so that not even force may throw it away.
            ways = [recovery for recovery in self._recoveries.all_within(tx) if opens(recovery, user)]
            if lost_signers and (ways or not force):
                raise LastPrincipal(
                    f"Only {name} can open the keys of the signers {', '.join(lost_signers)}. Unlock {name}, or give "
                    f"the passphrase of {name}, so that they are sealed anew"
                    + (
                        f"; a recovery key of {name} can set another one."
                        if ways
                        else ". With force the user is removed, and they are lost."
                    ),
                    connections=[],
                )
            lost = _connections_in(tx, [*lost, *(of for of in alone if of not in passwords)])
            resealed = [id for id in _connections_in(tx, [*resealed, *passwords]) if id not in lost]
            affected = _connections_in(tx, [*affected, *readable])
            if lost and (ways or not force):
                raise _would_lose(tx, lost, name, ways)
            self._recoveries.remove_within(tx, [recovery.id for recovery in ways])
            principal_rows.replace(tx, self._key, by_name)
            return RemovedUser(affected, resealed, heir.name if resealed else None, lost)

        removed = self._change(remove)
        if access.principal is not None and access.principal.name == name:
            access.lock()
        return removed

    def _reseal(self, tx: sa.Connection, id: str, anew: Anew) -> bool:
        """Seal secrets of a connection ``anew``; return whether that was possible.

        A connection that was changed outside of connmgr keeps its secrets, because it could lead them elsewhere.
        """
        row = connection_rows.one(tx, id)
        if not connection_rows.intact(row, self._key):
            return False
        try:
            data = _with_secrets_replaced(json.loads(row["data"]), anew)
        except SecretLocked:
            return False
        # Whoever uses the connections above it gets no other secret than before.
        connections.change_row(tx, self._key, id, {"data": canonical(data)}, None, lambda _: None, lambda _tx, _: {})
        return True

    def _reseal_document(self, tx: sa.Connection, kind: str, of: str, anew: Anew) -> bool:
        """Like :meth:`_reseal`, for a document: a signer, or the password for sudo of a connection or category."""
        try:
            self._holding[kind].change_within(
                tx, of, lambda document: dataclasses.replace(document, body=_with_secrets_replaced(document.body, anew))
            )
        except (SecretLocked, IntegrityError):
            return False
        return True

    def _load(self) -> dict[str, Principal]:
        return self._database.read(lambda tx: principal_rows.load(tx, self._key))

    def _change(self, change: Callable[[sa.Connection], Outcome]) -> Outcome:
        try:
            return self._database.write(change, erases=True)
        finally:
            # A new number, also after two concurrent changes.
            self.changes = next(self._numbers)

    def _vault_private(self, by_name: Mapping[str, Principal]) -> bytes:
        return unwrap_vault(by_name[VAULT], self._key.wrapping)

    def authenticate(self, name: str, passphrase: str, guesser: Guesser) -> tuple[Principal, bytes]:
        """Return a user and its private key; raises as :meth:`unlock`."""
        with self._throttle.attempt(name, guesser) as failed_before:
            by_name = self._load()
            if by_name.keys() == {VAULT}:
                # Every client may know this, by `status`; it tells nothing about the users of another vault.
                raise UnlockFailed(_NO_USERS)
            # For an unknown user a key is derived too, so that the answer takes the same time.
            user = by_name.get(name) if name != VAULT else None
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


def opens(recovery: Document, user: Principal) -> bool:
    """Whether a recovery key is one of this user, and not of another one who once had the same name."""
    return bool(recovery.body["user"] == user.name and recovery.body["keyId"] == user.key_id.hex())


def _would_lose(tx: sa.Connection, lost: Sequence[str], name: str, ways: Sequence[Document]) -> LastPrincipal:
    rows = connection_rows.existing(tx, lost[:MAX_NAMED])
    # An empty category may have a password for sudo, too.
    paths = [
        str(connection_rows.as_row(rows[id])["path"]) if id in rows else f"category {id}" for id in lost[:MAX_NAMED]
    ]
    more = f" and {len(lost) - len(paths)} more" if len(lost) > len(paths) else ""
    number = "1 connection" if len(lost) == 1 else f"{len(lost)} connections"
    only = f"Only {name} can open secrets of {number}: {', '.join(paths)}{more}."
    anew = f"Unlock {name}, or give the passphrase of {name}, so that they are sealed anew"
    if ways:
        ids = ", ".join(recovery.key for recovery in ways)
        return LastPrincipal(
            f"{only} {anew}. If it was lost, recovery key {ids} sets a new one: `connmgr vault recovery use`. Nothing "
            "is lost as long as that key is there; `connmgr vault recovery revoke` gives it up.",
            connections=list(lost),
            recoveries=[recovery.key for recovery in ways],
        )
    return LastPrincipal(f"{only} {anew}. With force the user is removed, and they are lost.", connections=list(lost))


def _check_addition(by_name: Mapping[str, Principal], access: Access, name: str) -> None:
    if len(by_name) > 1:
        _require_unlocked(by_name, access)
    if name in by_name:
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
        sealed = sealing.verify(encrypted, key)
        boxes = dict(sealed.recipients.values())
        if user.key_id not in boxes or not alive.isdisjoint(boxes):
            return encrypted
        data_key = opened(boxes[user.key_id])
        if data_key is None:
            raise SecretLocked(f"{user.name} is not unlocked.", principals=[user.name])
        return sealing.seal(sealed.open(data_key), [heir], key)

    return anew


def _unlocked_user(by_name: Mapping[str, Principal], access: Access) -> Principal | None:
    """Return the user that ``access`` has unlocked, unless it was removed or replaced since."""
    unlocked = access.principal
    user = by_name.get(unlocked.name) if unlocked is not None else None
    return user if user is not None and unlocked is not None and user.key_id == unlocked.key_id else None


def _require_unlocked(by_name: Mapping[str, Principal], access: Access) -> None:
    """Raise :class:`VaultLocked` unless ``access`` has unlocked a user."""
    if _unlocked_user(by_name, access) is None:
        raise VaultLocked("The vault has users: unlock one first.")


def _entitled_principal(sealed: SealedSecret, by_name: Mapping[str, Principal], access: Access) -> Principal:
    """Return the principal by which ``access`` may open a secret; the unlocked user is preferred to ``vault``.

    :raises SecretLocked: there is none; ``details["principals"]`` lists the principals that could open it.
    """
    user = _unlocked_user(by_name, access)
    if user is not None and user.name in sealed.recipients and sealed.recipients[user.name][0] == user.key_id:
        return user
    if VAULT in sealed.recipients and (user is not None or by_name.keys() == {VAULT}):
        return by_name[VAULT]
    raise _locked_error(sealed, by_name)


def _principals_that_open(sealed: SealedSecret, by_name: Mapping[str, Principal]) -> list[str]:
    """Return the names of the principals that can open a secret."""
    return [
        name for name, (key_id, _) in sealed.recipients.items() if name in by_name and by_name[name].key_id == key_id
    ]


def _locked_error(sealed: SealedSecret, by_name: Mapping[str, Principal]) -> SecretLocked:
    principals = _principals_that_open(sealed, by_name)
    if not principals:
        names = ", ".join(sealed.recipients)
        return SecretLocked(
            f"Nobody can open this secret: it was sealed to {names}, and those users were removed. Store it again.",
            principals=[],
        )
    users = "any user" if VAULT in principals else " or ".join(principals)
    return SecretLocked(
        f"The secret is locked, and sealed to {', '.join(principals)}: unlock {users} first.",
        principals=principals,
    )


def _connections_sealed_to(
    tx: sa.Connection, user: Principal, others: Mapping[str, Principal], sealing_key: bytes
) -> tuple[list[str], list[str]]:
    """Return the ids of connections with secrets sealed to ``user``, and of those that nobody else can open."""
    holding = (
        sa.select(connection.c.id, connection.c.data)
        .where(connection.c.data.contains("encryptedToken"))
        .order_by(connection.c.id)
    )
    return _affected_and_lost(tx.execute(holding), user, others, sealing_key)


def _documents_sealed_to(
    tx: sa.Connection, kind: str, user: Principal, others: Mapping[str, Principal], sealing_key: bytes
) -> tuple[list[str], list[str]]:
    """Like :func:`_connections_sealed_to`, for documents, by their keys.

    The key of a password for sudo is the id of its connection or category, that of a signer its name.
    """
    holding = sa.select(document.c.key, document.c.body).where(document.c.kind == kind)
    return _affected_and_lost(tx.execute(holding.order_by(document.c.key)), user, others, sealing_key)


def _affected_and_lost(
    holding: Iterable[Any], user: Principal, others: Mapping[str, Principal], sealing_key: bytes
) -> tuple[list[str], list[str]]:
    alive = {each.key_id for each in others.values()}
    affected, lost = list[str](), list[str]()
    # The former include one with a secret that was changed outside of connmgr, whose principals are unknown.
    for uuid, data in holding:
        try:
            own = [holders for holders in _holders(json.loads(data), sealing_key) if user.key_id in holders]
        except (IntegrityError, ValueError):
            affected.append(uuid)
            continue
        if own:
            affected.append(uuid)
        if any(alive.isdisjoint(holders) for holders in own):
            lost.append(uuid)
    return affected, lost


def _connections_in(tx: sa.Connection, ids: Iterable[str]) -> list[str]:
    """Return ``ids``, each once, with each category replaced by the connections in it, unless it is empty."""
    connections: dict[str, None] = {}
    for id in ids:
        inside = sa.select(connection.c.id).where(connection.c.category == id).order_by(connection.c.id)
        connections.update(dict.fromkeys(tx.scalars(inside).all() or [id]))
    return list(connections)


def _with_secrets_replaced(data: Any, replacement: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return ``data`` with ``replacement`` of each sealed secret in its place."""
    if isinstance(data, dict) and "encryptedToken" in data:
        return replacement(data)
    if isinstance(data, dict):
        return {name: _with_secrets_replaced(each, replacement) for name, each in data.items()}
    return [_with_secrets_replaced(each, replacement) for each in data] if isinstance(data, list) else data


def _holders(data: Any, sealing_key: bytes) -> Iterator[set[bytes]]:
    """Yield for each sealed secret within ``data`` the ids of the key pairs that open it."""
    for each in sealed_secrets(data):
        yield {key_id for key_id, _ in sealing.verify(each, sealing_key).recipients.values()}
