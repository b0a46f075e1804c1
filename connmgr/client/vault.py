"""``/vault`` and ``/secret``: the vault's users, and the secrets that it seals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from connmgr.client.group import Group
from connmgr.contract.message import ABSENT
from connmgr.contract.secret import DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, SudoRequest
from connmgr.contract.vault import (
    AddRequest,
    PassphraseRequest,
    RecoveryCreateRequest,
    RecoveryKey,
    RecoveryQueryResponse,
    RecoveryRevokeRequest,
    RecoveryRotateRequest,
    RecoveryUseRequest,
    RecoveryUseResponse,
    RecoveryWordsResponse,
    RemoveRequest,
    UnlockRequest,
    UnlockResponse,
    UsedRecovery,
)
from connmgr.contract.vault import RemoveResponse as RemovedUser
from connmgr.contract.vault import StatusResponse as VaultStatus


class Secrets(Group):
    """``/secret``."""

    def encrypt(self, value: str, principals: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the encrypted form of ``value``."""
        named = None if principals is None else list(principals)
        return dict(
            self._ask("/secret/encrypt", EncryptRequest(value=value, principals=named), EncryptResponse).encrypted
        )

    def decrypt(self, encrypted: Mapping[str, Any]) -> str:
        """Return the value that :meth:`encrypt` encrypted."""
        return self._ask("/secret/decrypt", DecryptRequest(encrypted=dict(encrypted)), DecryptResponse).decrypted

    def sudo(self, password: str | None, *, connection: str | None = None, category: str | None = None) -> None:
        """Store the password that sudo asks for on a connection or on those of a category; None removes it."""
        self._tell("/secret/sudo", SudoRequest(password=password, connection=connection, category=category))

    def sudo_source(self, *, connection: str | None = None, category: str | None = None) -> dict[str, str]:
        """Return for what the password in use is stored: ``connection`` or ``category`` with its id, or nothing."""
        return dict(self._tell("/secret/sudo", SudoRequest(password=ABSENT, connection=connection, category=category)))


class Vault(Group):
    """``/vault``; unlocking affects only this client's session."""

    def status(self) -> VaultStatus:
        """Return whether the vault has users, and what this session may decrypt."""
        return self._ask("/vault/status", None, VaultStatus)

    def unlock(self, user: str, passphrase: str) -> list[UsedRecovery]:
        """Unlock a user for this session; return the user's recovery keys that have set a passphrase."""
        answer = self._ask("/vault/unlock", UnlockRequest(user=user, passphrase=passphrase), UnlockResponse)
        return list(answer.recoveries)

    def lock(self) -> None:
        """Forget the user that this session has unlocked."""
        self._tell("/vault/lock")

    def add_user(self, user: str, passphrase: str) -> None:
        """Add a user."""
        self._tell("/vault/user/add", AddRequest(user=user, passphrase=passphrase))

    def change_passphrase(self, user: str, passphrase: str, new: str) -> None:
        """Change a user's passphrase."""
        self._tell("/vault/user/passphrase", PassphraseRequest(user=user, passphrase=passphrase, new_passphrase=new))

    def remove_user(self, user: str, *, passphrase: str | None = None, force: bool = False) -> RemovedUser:
        """Remove a user; the user's ``passphrase`` permits it, and lets secrets be sealed anew."""
        request = RemoveRequest(user=user, passphrase=passphrase, force=force)
        return self._ask("/vault/user/remove", request, RemovedUser)

    def create_recovery(
        self, user: str, passphrase: str, *, shares: int = 1, threshold: int = 1
    ) -> RecoveryWordsResponse:
        """Make a recovery key for a user; nothing keeps its words but the answer."""
        request = RecoveryCreateRequest(user=user, passphrase=passphrase, shares=shares, threshold=threshold)
        return self._ask("/vault/recovery/create", request, RecoveryWordsResponse)

    def recoveries(self) -> list[RecoveryKey]:
        """Return all recovery keys, without their words."""
        return list(self._ask("/vault/recovery/query", None, RecoveryQueryResponse).recoveries)

    def recover(self, shares: Sequence[str], new_passphrase: str | None = None) -> RecoveryUseResponse:
        """Set a user's passphrase by the words of a recovery key; without one only check the words."""
        request = RecoveryUseRequest(shares=list(shares), new_passphrase=new_passphrase)
        return self._ask("/vault/recovery/use", request, RecoveryUseResponse)

    def rotate_recovery(self, recovery: str, passphrase: str) -> RecoveryWordsResponse:
        """Replace a recovery key by another one of as many shares."""
        request = RecoveryRotateRequest(recovery=recovery, passphrase=passphrase)
        return self._ask("/vault/recovery/rotate", request, RecoveryWordsResponse)

    def revoke_recovery(self, recovery: str) -> None:
        """Remove a recovery key."""
        self._tell("/vault/recovery/revoke", RecoveryRevokeRequest(recovery=recovery))
