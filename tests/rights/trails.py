"""Audit trails without a daemon, under their own key."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from connmgr.rights.audit_trail import AuditTrail
from connmgr.rights.chain import Chain
from connmgr.rights.trail_files import FILE_NAME
from connmgr.vault.anchors import Anchor

CHAIN = Chain(b"k" * 32)


class KeptAnchors:
    """Anchors in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, Anchor] = {}

    def all(self) -> Mapping[str, Anchor]:
        return dict(self.kept)

    def put(self, anchor: Anchor) -> None:
        self.kept[anchor.trail] = anchor

    def remove(self, trail: str) -> None:
        self.kept.pop(trail)


def opened_trail(directory: Path, anchors: KeptAnchors | None = None, **options: Any) -> AuditTrail:
    """Return the trail in ``directory``, open; its owner closes it."""

    def mac(text: bytes) -> bytes:
        return blake2b(text, digest_size=32).digest()

    options = {"commands": False, **options}
    return AuditTrail(directory / FILE_NAME, CHAIN, anchors or KeptAnchors(), mac, **options)
