"""Anchors of audit trails: the length of each trail, stored where an attacker on the files cannot change it."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b

import sqlalchemy as sa

from connmgr.errors import IntegrityError
from connmgr.vault import principal_rows
from connmgr.vault.database import Database
from connmgr.vault.record import canonical
from connmgr.vault.tables import meta

WRITE_SECONDS = 2.0
"""Longest wait of storing an anchor for other writers; the next anchor follows a second later."""

_PREFIX = "audit_trail:"
_MAC_BYTES = 32


@dataclass(frozen=True)
class Anchor:
    """The state of a trail at one time."""

    trail: str
    place: str
    """The machine and the directory where its files are."""

    first: int
    """The number of the oldest entry that must still be there."""

    seq: int
    """The number of the last entry that must be there; 0 for a trail that has none yet."""

    hash: str
    """The hash of that entry's line, or of the trail's beginning."""

    time: str
    """The time of this state, in UTC as ISO 8601."""


class Anchors:
    """The anchors in the table ``meta``, each authenticated under ``key``; safe to use from several threads.

    Its methods raise :class:`connmgr.errors.VaultUnavailable` when the database does not answer.
    """

    def __init__(self, database: Database, key: bytes) -> None:
        self._database, self._key = database, key

    def all(self) -> Mapping[str, Anchor]:
        """Return the anchors by their trails; raise IntegrityError if one was changed outside of connmgr."""
        rows = sa.select(meta).where(meta.c.name.startswith(_PREFIX, autoescape=True))
        found = self._database.read(lambda tx: tx.execute(rows).all())
        return {anchor.trail: anchor for anchor in (self._read(row.name, row.value) for row in found)}

    def put(self, anchor: Anchor) -> None:
        """Store the anchor of a trail in place of its last one."""
        text = canonical(asdict(anchor)).encode()
        name, value = _PREFIX + anchor.trail, self._mac(text) + text
        self._database.write(lambda tx: principal_rows.put_meta(tx, name, value), timeout=WRITE_SECONDS)

    def remove(self, trail: str) -> None:
        """Remove the anchor of a trail."""
        of_it = sa.delete(meta).where(meta.c.name == _PREFIX + trail)
        self._database.write(lambda tx: tx.execute(of_it), timeout=WRITE_SECONDS)

    def _read(self, name: str, value: object) -> Anchor:
        code, text = (value[:_MAC_BYTES], value[_MAC_BYTES:]) if isinstance(value, bytes) else (b"", b"")
        if hmac.compare_digest(code, self._mac(text)):
            anchor = Anchor(**json.loads(text))
            if name == _PREFIX + anchor.trail:
                return anchor
        raise IntegrityError("What the vault knows of an audit trail was changed outside of connmgr.")

    def _mac(self, text: bytes) -> bytes:
        return blake2b(text, key=self._key, digest_size=_MAC_BYTES).digest()
