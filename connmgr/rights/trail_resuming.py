"""Where an audit trail goes on when a daemon starts: behind what its file has, and what the vault knows of it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from connmgr.rights.chain import Chain
from connmgr.rights.trail_files import find_end, reaches
from connmgr.vault.anchors import Anchor

RESUMED = "resumed"
"""The ``event`` of an entry that a daemon writes at its start, where the trail was not as the last one left it.

It has ``dropped``, half a line; ``unanchored``; or ``gone``, earlier trails in this place.
"""


class Anchors(Protocol):
    """Where trails are anchored: :class:`connmgr.vault.anchors.Anchors`."""

    def all(self) -> Mapping[str, Anchor]: ...
    def put(self, anchor: Anchor) -> None: ...
    def remove(self, trail: str) -> None: ...


@dataclass(frozen=True)
class Standing:
    """Where a trail stands: its ``first`` entry, its ``last`` one, and the hash that the next one has to follow."""

    trail: str
    first: int
    last: int
    hash: str
    remarks: Mapping[str, Any]
    """What the file is not as the vault knows it: members of an entry :data:`RESUMED`."""

    is_new: bool = False


def standing(path: Path, place: str, chain: Chain, known: Mapping[str, Anchor]) -> Standing:
    """Return where the trail ``path`` in ``place`` goes on, or where one begins; ``known`` are anchors by trails."""
    end = find_end(path)
    here = [one for one in known.values() if one.place == place]
    trail = end.trail or (here[0].trail if end.line and here else None)
    if trail is None:
        return _beginning(end.number, chain, here)
    anchor, reached = known.get(trail), chain.hash(end.line)
    if anchor is None:
        return Standing(trail, end.number, end.number, reached, {"unanchored": True})
    if anchor.seq > end.number or not reaches(path, chain, anchor.hash):
        # What the vault knows holds: the next entry does not follow what stands in the file.
        reached = anchor.hash
    return Standing(trail, anchor.first, max(anchor.seq, end.number), reached, {})


def _beginning(last: int, chain: Chain, here: list[Anchor]) -> Standing:
    """Return the beginning of a trail after ``last``, an entry of a time before chains; ``here`` were trails before."""
    unused = [one.trail for one in here if not one.seq]
    gone = [{"trail": one.trail, "seq": one.seq, "time": one.time} for one in here if one.seq]
    trail = unused[0] if unused else secrets.token_hex(8)
    return Standing(trail, last + 1, last, chain.beginning(trail), {"gone": gone} if gone else {}, is_new=True)


def place_of(path: Path) -> str:
    """Return where the files of the trail ``path`` are: the machine and the directory."""
    return f"{os.uname().nodename}:{path.parent.resolve()}"
