"""``client.ca``: signers of SSH certificates.

client.ca.init("team")
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from connmgr.client.group import Group
from connmgr.contract.ca import (
    HOST_SECONDS,
    CaHostRequest,
    CaHostResponse,
    CaInfo,
    CaInitRequest,
    CaInitResponse,
    CaLimitRequest,
    CaNameRequest,
    CaQueryRequest,
    CaQueryResponse,
    CaRevokeRequest,
    CaRevokeResponse,
    CaRotateRequest,
    CaTrustResponse,
)

__all__ = ["CaHostResponse", "CaInfo", "CaTrustResponse", "Signers"]


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
        request = CaInitRequest(
            name=name,
            data=data or {},
            authority=authority,
            principals=_list(principals),
            seconds=seconds,
            renew=renew,
        )
        return self._ask("/ca/init", request, CaInitResponse).authorities

    def query(self, name: str | None = None) -> list[CaInfo]:
        """Return the signers, by their names."""
        return self._ask("/ca/query", CaQueryRequest(name=name), CaQueryResponse).signers

    def trust(self, name: str) -> CaTrustResponse:
        """Return the lines by which hosts trust a signer, and its revoked certificates."""
        return self._ask("/ca/trust", CaNameRequest(name=name), CaTrustResponse)

    def limit(
        self,
        name: str,
        *,
        category: str | None = None,
        principals: Sequence[str] | None = None,
        seconds: int | None = None,
        renew: bool | None = None,
        remove: bool = False,
    ) -> CaInfo:
        """Set or ``remove`` the limit for a category, or for all connections."""
        request = CaLimitRequest(
            name=name,
            category=category,
            principals=_list(principals),
            seconds=seconds,
            renew=renew,
            remove=remove,
        )
        return self._ask("/ca/limit", request, CaInfo)

    def rotate(self, name: str, *, finish: bool = False) -> CaTrustResponse:
        """Begin to replace the key of an authority of connmgr's own, or ``finish`` it."""
        return self._ask("/ca/rotate", CaRotateRequest(name=name, finish=finish), CaTrustResponse)

    def revoke(self, name: str, certificates: Sequence[str]) -> bytes:
        """Revoke certificates by serial number or key id, and return the new list for RevokedKeys."""
        request = CaRevokeRequest(name=name, certificates=list(certificates))
        return base64.b64decode(self._ask("/ca/revoke", request, CaRevokeResponse).revoked)

    def host(self, name: str, key: str, names: Sequence[str], *, seconds: int = HOST_SECONDS) -> CaHostResponse:
        """Certify the public ``key`` of a host for its ``names``."""
        return self._ask(
            "/ca/host", CaHostRequest(name=name, key=key, names=list(names), seconds=seconds), CaHostResponse
        )

    def remove(self, name: str) -> None:
        """Remove a signer with its key."""
        self._tell("/ca/remove", CaNameRequest(name=name))


def _list(words: Sequence[str] | None) -> list[str] | None:
    return None if words is None else list(words)
