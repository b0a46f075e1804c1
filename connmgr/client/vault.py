"""``/vault``, ``/secret`` and ``/ca``: the vault's users, sealed secrets, and signers of SSH certificates."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from connmgr.client.group import Group, list_of
from connmgr.contract import ca
from connmgr.contract import vault as messages
from connmgr.contract.message import ABSENT
from connmgr.contract.secret import DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, SudoRequest


class Secrets(Group):
    """``/secret``."""

    def encrypt(self, value: str, principals: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the encrypted form of ``value``."""
        names = list_of(principals)
        return dict(
            self._ask("/secret/encrypt", EncryptRequest(value=value, principals=names), EncryptResponse).encrypted
        )

    def decrypt(self, encrypted: Mapping[str, Any]) -> str:
        """Return the value that :meth:`encrypt` encrypted."""
        return self._ask("/secret/decrypt", DecryptRequest(encrypted=dict(encrypted)), DecryptResponse).decrypted

    def sudo(self, password: str | None, *, connection: str | None = None, category: str | None = None) -> None:
        """Store the password that sudo asks for on a connection or on those of a category; None removes it."""
        self._tell("/secret/sudo", SudoRequest(password=password, connection=connection, category=category))

    def sudo_source(self, *, connection: str | None = None, category: str | None = None) -> dict[str, str]:
        """Return for what the password in use is stored: ``connection`` or ``category`` with its id, or nothing."""
        # An absent password asks for the source; null would remove the stored one.
        return dict(self._tell("/secret/sudo", SudoRequest(password=ABSENT, connection=connection, category=category)))


class Vault(Group):
    """``/vault``; unlocking affects only this client's session."""

    def status(self) -> messages.StatusResponse:
        """Return whether the vault has users, and what this session may decrypt."""
        return self._ask("/vault/status", None, messages.StatusResponse)

    def unlock(self, user: str, passphrase: str) -> list[messages.UsedRecovery]:
        """Unlock a user for this session; return the user's recovery keys that have set a passphrase."""
        answer = self._ask(
            "/vault/unlock", messages.UnlockRequest(user=user, passphrase=passphrase), messages.UnlockResponse
        )
        return list(answer.recoveries)

    def lock(self) -> None:
        """Forget the user that this session has unlocked."""
        self._tell("/vault/lock")

    def add_user(self, user: str, passphrase: str) -> None:
        """Add a user."""
        self._tell("/vault/user/add", messages.AddRequest(user=user, passphrase=passphrase))

    def change_passphrase(self, user: str, passphrase: str, new: str) -> None:
        """Change a user's passphrase."""
        self._tell(
            "/vault/user/passphrase", messages.PassphraseRequest(user=user, passphrase=passphrase, new_passphrase=new)
        )

    def remove_user(self, user: str, *, passphrase: str | None = None, force: bool = False) -> messages.RemoveResponse:
        """Remove a user; the user's ``passphrase`` permits it, and lets secrets be sealed anew."""
        request = messages.RemoveRequest(user=user, passphrase=passphrase, force=force)
        return self._ask("/vault/user/remove", request, messages.RemoveResponse)

    def create_recovery(
        self, user: str, passphrase: str, *, shares: int = 1, threshold: int = 1
    ) -> messages.RecoveryWordsResponse:
        """Make a recovery key for a user; nothing keeps its words but the answer."""
        request = messages.RecoveryCreateRequest(user=user, passphrase=passphrase, shares=shares, threshold=threshold)
        return self._ask("/vault/recovery/create", request, messages.RecoveryWordsResponse)

    def recoveries(self) -> list[messages.RecoveryKey]:
        """Return all recovery keys, without their words."""
        return list(self._ask("/vault/recovery/query", None, messages.RecoveryQueryResponse).recoveries)

    def recover(self, shares: Sequence[str], new_passphrase: str | None = None) -> messages.RecoveryUseResponse:
        """Set a user's passphrase by the words of a recovery key; without one only check the words."""
        request = messages.RecoveryUseRequest(shares=list(shares), new_passphrase=new_passphrase)
        return self._ask("/vault/recovery/use", request, messages.RecoveryUseResponse)

    def rotate_recovery(self, recovery: str, passphrase: str) -> messages.RecoveryWordsResponse:
        """Replace a recovery key by another one of as many shares."""
        request = messages.RecoveryRotateRequest(recovery=recovery, passphrase=passphrase)
        return self._ask("/vault/recovery/rotate", request, messages.RecoveryWordsResponse)

    def revoke_recovery(self, recovery: str) -> None:
        """Remove a recovery key."""
        self._tell("/vault/recovery/revoke", messages.RecoveryRevokeRequest(recovery=recovery))


class Signers(Group):
    """``/ca``."""

    def init(
        self,
        name: str,
        data: Mapping[str, Any] | None = None,
        *,
        authority: str | None = None,
        principals: Sequence[str] | None = None,
        seconds: int | None = None,
        renew: bool | None = None,
    ) -> list[str]:
        """Store a signer, without ``data`` an authority of connmgr's own; return its public keys."""
        request = ca.CaInitRequest(
            name=name,
            data=data or {},
            authority=authority,
            principals=list_of(principals),
            seconds=seconds,
            renew=renew,
        )
        return self._ask("/ca/init", request, ca.CaInitResponse).authorities

    def query(self, name: str | None = None) -> list[ca.CaInfo]:
        """Return the signers, by their names."""
        return self._ask("/ca/query", ca.CaQueryRequest(name=name), ca.CaQueryResponse).signers

    def trust(self, name: str) -> ca.CaTrustResponse:
        """Return the lines by which hosts trust a signer, and its revoked certificates."""
        return self._ask("/ca/trust", ca.CaNameRequest(name=name), ca.CaTrustResponse)

    def limit(
        self,
        name: str,
        *,
        category: str | None = None,
        principals: Sequence[str] | None = None,
        seconds: int | None = None,
        renew: bool | None = None,
        remove: bool = False,
    ) -> ca.CaInfo:
        """Set or ``remove`` the limit for a category, or for all connections."""
        request = ca.CaLimitRequest(
            name=name,
            category=category,
            principals=list_of(principals),
            seconds=seconds,
            renew=renew,
            remove=remove,
        )
        return self._ask("/ca/limit", request, ca.CaInfo)

    def rotate(self, name: str, *, finish: bool = False) -> ca.CaTrustResponse:
        """Begin to replace the key of an authority of connmgr's own, or ``finish`` it."""
        return self._ask("/ca/rotate", ca.CaRotateRequest(name=name, finish=finish), ca.CaTrustResponse)

    def revoke(self, name: str, certificates: Sequence[str]) -> bytes:
        """Revoke certificates by serial number or key id, and return the new list for RevokedKeys."""
        request = ca.CaRevokeRequest(name=name, certificates=list(certificates))
        return base64.b64decode(self._ask("/ca/revoke", request, ca.CaRevokeResponse).revoked)

    def host(self, name: str, key: str, names: Sequence[str], *, seconds: int = ca.HOST_SECONDS) -> ca.CaHostResponse:
        """Certify the public ``key`` of a host for its ``names``."""
        return self._ask(
            "/ca/host", ca.CaHostRequest(name=name, key=key, names=list(names), seconds=seconds), ca.CaHostResponse
        )

    def remove(self, name: str) -> None:
        """Remove a signer with its key."""
        self._tell("/ca/remove", ca.CaNameRequest(name=name))
