"""The secrets that a client session may open, given the vault's current principals."""

from __future__ import annotations

from collections.abc import Mapping

from connmgr.errors import SecretLocked, VaultLocked
from connmgr.secrets.envelope import Envelope
from connmgr.secrets.principals import VAULT, Access, Principal


def unlocked(known: Mapping[str, Principal], access: Access) -> Principal | None:
    """Return the user that ``access`` has unlocked, unless it was removed or replaced since."""
    held = access.principal
    user = known.get(held.name) if held is not None else None
    return user if user is not None and held is not None and user.key_id == held.key_id else None


def require_unlocked(known: Mapping[str, Principal], access: Access) -> None:
    """Raise :class:`VaultLocked` unless ``access`` has unlocked a user."""
    if unlocked(known, access) is None:
        raise VaultLocked("The vault has users: unlock one first.")


def holder(sealed: Envelope, known: Mapping[str, Principal], access: Access) -> Principal:
    """Return the principal by which ``access`` may open a secret; the unlocked user is preferred to ``vault``.

    :raises SecretLocked: there is none; ``details["principals"]`` lists those that could open it.
    """
    user = unlocked(known, access)
    if user is not None and user.name in sealed.recipients and sealed.recipients[user.name][0] == user.key_id:
        return user
    if VAULT in sealed.recipients and (user is not None or known.keys() == {VAULT}):
        return known[VAULT]
    raise _locked(sealed, known)


def able(sealed: Envelope, known: Mapping[str, Principal]) -> list[str]:
    """Return the names of the principals that can open a secret."""
    return [name for name, (key_id, _) in sealed.recipients.items() if name in known and known[name].key_id == key_id]


def _locked(sealed: Envelope, known: Mapping[str, Principal]) -> SecretLocked:
    principals = able(sealed, known)
    if not principals:
        names = ", ".join(sealed.recipients)
        return SecretLocked(f"Nobody can open this secret any more; it was sealed to {names}.", principals=[])
    users = "any user" if VAULT in principals else " or ".join(principals)
    return SecretLocked(
        f"The secret is locked, and sealed to {', '.join(principals)}: unlock {users} first.",
        principals=principals,
    )
