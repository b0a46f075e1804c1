"""Audit logs without a daemon, under their own key."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from connmgr.audit.log import FILE_NAME, AuditLog, HashChain
from connmgr.vault.anchors import Anchor

CHAIN = HashChain(b"k" * 32)


class KeptAnchors:
    """Anchors in memory, with the rules of :class:`connmgr.vault.anchors.Anchors`."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self.kept: dict[str, Anchor] = {}
        self.is_shared = is_shared

    def all(self) -> Mapping[str, Anchor]:
        return dict(self.kept)

    def put(self, anchor: Anchor, *, takes_over: bool = False) -> Anchor | None:
        last = self.kept.get(anchor.log)
        if last is not None and last.writer != anchor.writer and not takes_over:
            return last
        self.kept[anchor.log] = anchor
        return None

    def remove(self, log: str) -> None:
        self.kept.pop(log)


def open_log(directory: Path, anchors: KeptAnchors | None = None, **options: Any) -> AuditLog:
    """Return the log in ``directory``, open; its owner closes it."""

    def mac(text: bytes) -> bytes:
        return blake2b(text, digest_size=32).digest()

    return AuditLog(directory / FILE_NAME, CHAIN, anchors or KeptAnchors(), mac, **options)
