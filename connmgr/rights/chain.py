"""The chain of an audit trail: each entry contains the keyed hash of the line before it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

from connmgr.vault.anchors import Anchors
from connmgr.vault.database import Database
from connmgr.vault.principals import Principals

HASH_BYTES = 32

_HEAD = re.compile(
    rb'\{"seq":([0-9]{1,18}),"previous":"([0-9a-f]{64})",(?:"trail":"([0-9a-f]{16})",)?.*\}\n', re.DOTALL
)


@dataclass(frozen=True)
class Link:
    """The part of an entry that the chain needs: its number, the hash of the line before it, and the trail if named."""

    seq: int
    previous: str
    trail: str | None


class Chain:
    """The hashes of a trail, under ``key`` (32 bytes)."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def hash(self, line: bytes) -> str:
        """Return the hash of an entry's line, including its line feed, in 64 hexadecimal digits."""
        return blake2b(line, key=self._key, digest_size=HASH_BYTES).hexdigest()

    def beginning(self, trail: str) -> str:
        """Return the value in place of a hash in the first entry of ``trail``."""
        # No line of a trail begins like this.
        return self.hash(b"beginning of " + trail.encode())


def open_chain(principals: Principals, database: Database) -> tuple[Chain, Anchors]:
    """Return the chain and the anchors of a vault's trails, under keys that rotations of its key do not change."""
    chain, anchors = (principals.lasting_key(purpose) for purpose in (b"connmgr.chain", b"connmgr.anchors"))
    return Chain(chain), Anchors(database, anchors)


def link_of(line: bytes) -> Link | None:
    """Return the link of a complete line of a trail; None for anything else, including entries without a chain."""
    found = _HEAD.fullmatch(line)
    return found and Link(int(found[1]), found[2].decode(), found[3].decode() if found[3] else None)
