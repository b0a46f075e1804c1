"""Finds where an audit trail continues when a daemon starts, by its file and its anchor in the vault."""

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
"""The ``event`` of an entry written at a daemon's start, if the trail is not as the last daemon left it.

It has ``dropped``, an incomplete line; ``unanchored``; or ``gone``, earlier trails in this place.
"""


class Anchors(Protocol):
    """The store of anchors: :class:`connmgr.vault.anchors.Anchors`."""

    def all(self) -> Mapping[str, Anchor]: ...
    def put(self, anchor: Anchor) -> None: ...
    def remove(self, trail: str) -> None: ...


@dataclass(frozen=True)
class Standing:
    """The state of a trail: its ``first`` entry, its ``last`` one, and the hash that the next one continues from."""

    trail: str
    first: int
    last: int
    hash: str
    remarks: Mapping[str, Any]
    """Differences between the file and the anchor: members of an entry :data:`RESUMED`."""

    is_new: bool = False


def standing(path: Path, place: str, chain: Chain, known: Mapping[str, Anchor]) -> Standing:
    """Return where the trail ``path`` in ``place`` continues, or begins; ``known`` are anchors by trails."""
    end = find_end(path)
    here = [one for one in known.values() if one.place == place]
    trail = end.trail or (here[0].trail if end.line and here else None)
    if trail is None:
        return _beginning(end.number, chain, here)
    anchor, reached = known.get(trail), chain.hash(end.line)
    if anchor is None:
        return Standing(trail, end.number, end.number, reached, {"unanchored": True})
    if anchor.seq > end.number or not reaches(path, chain, anchor.hash):
        # The anchor counts: the next entry continues from it, not from the file.
        reached = anchor.hash
    return Standing(trail, anchor.first, max(anchor.seq, end.number), reached, {})


def _beginning(last: int, chain: Chain, here: list[Anchor]) -> Standing:
    """Return the beginning of a trail after ``last``, an entry without a chain; ``here`` are earlier trails."""
    unused = [one.trail for one in here if not one.seq]
    gone = [{"trail": one.trail, "seq": one.seq, "time": one.time} for one in here if one.seq]
    trail = unused[0] if unused else secrets.token_hex(8)
    return Standing(trail, last + 1, last, chain.beginning(trail), {"gone": gone} if gone else {}, is_new=True)


def place_of(path: Path) -> str:
    """Return the place of the files of the trail ``path``: the machine and the directory."""
    return f"{os.uname().nodename}:{path.parent.resolve()}"
