"""Verifies that an audit trail is as the daemon wrote it: nothing changed, removed, inserted, moved or cut off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from connmgr.errors import IntegrityError
from connmgr.rights.chain import Chain, Link, link_of
from connmgr.rights.trail_files import opened
from connmgr.rights.trail_resuming import RESUMED, Anchors, place_of
from connmgr.vault.anchors import Anchor

# No client's text can contain this, because its quotation marks are escaped.
_RESUMED = b'"event":"' + RESUMED.encode() + b'"'

MAX_FAULTS = 100
"""Most faults that are described; all are counted."""

CHANGED, MISSING, PUT_IN, REORDERED, CUT_OFF = "changed", "missing", "put_in", "reordered", "cut_off"
LOST, NO_ENTRY, UNANCHORED, GONE = "lost", "no_entry", "unanchored", "gone"

KINDS = {
    CHANGED: "is not as it was written",
    MISSING: "was taken away",
    PUT_IN: "was put in, or is there twice",
    REORDERED: "is not in its place",
    CUT_OFF: "was cut off the end",
    LOST: "was lost: the daemon could not write it",
    NO_ENTRY: "is not an entry",
    UNANCHORED: "The vault does not know this trail.",
    GONE: "An earlier trail in this place is gone",
}
"""The possible faults, and their description for one entry."""


@dataclass(frozen=True)
class Fault:
    """A fault in the entries ``seq`` to ``last``, in a ``line`` that is not an entry, or in the whole trail."""

    kind: str
    file: str | None = None
    seq: int | None = None
    last: int | None = None
    line: int | None = None
    more: str = ""

    @property
    def message(self) -> str:
        """The fault in a sentence."""
        what, where = KINDS[self.kind], f" ({self.file})" if self.file else ""
        if self.line is not None:
            return f"Line {self.line} of {self.file} {what}."
        if self.seq is None:
            return what + self.more
        if self.seq == self.last:
            return f"Entry {self.seq} {what}{where}."
        what = what.replace("it is", "they are").replace("it was", "they were").replace("it.", "them.")
        plural = what.replace("is ", "are ", 1) if what.startswith("is ") else what.replace("was ", "were ", 1)
        return f"Entries {self.seq} to {self.last} {plural}{where}."


@dataclass
class Verdict:
    """The result for a trail. It is sound if it has no faults; ``remarks`` describe what a crash may leave."""

    trail: str | None = None
    entries: int = 0
    first: int | None = None
    last: int | None = None
    anchored: int | None = None
    """The number of the last entry that the vault has anchored."""

    faults: list[Fault] = field(default_factory=list)
    number: int = 0
    """The number of faults; ``faults`` has the first of them."""

    remarks: list[str] = field(default_factory=list)

    def add(self, fault: Fault) -> None:
        """Add a fault, or extend the last one if it continues."""
        before = self.faults[-1] if self.faults else None
        goes_on = before and before.last and fault == replace(before, seq=before.last + 1, last=fault.last)
        if before and goes_on:
            self.faults[-1] = replace(before, last=fault.last)
            return
        self.number += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)


def verify(path: Path, chain: Chain, anchors: Anchors) -> Verdict:
    """Verify all files of the trail ``path``, also while a daemon writes it.

    :raises OSError: a file cannot be read.
    :raises connmgr.errors.VaultUnavailable: the database does not answer.
    """
    verdict = Verdict()
    # The end as of before reading, the beginning as of after it, because both only move forward.
    before = _known(anchors, verdict)
    here = [one for one in before.values() if one.place == place_of(path)]
    walk = Walk(chain, verdict, before, here[0].trail if here else None)
    with opened(path) as files:
        for file in reversed(files):
            walk.file(Path(file.name).name, file)
    walk.finish()
    after = _known(anchors, Verdict()).get(verdict.trail or "")
    if after:
        _check_ends(verdict, walk, after.first)
    elif verdict.entries:
        verdict.add(Fault(UNANCHORED))
    for one in here:
        if one.trail != verdict.trail and one.seq:
            verdict.add(_gone(vars(one)))
    return verdict


def _gone(one: Mapping[str, Any]) -> Fault:
    return Fault(GONE, more=f": {one.get('trail')}, up to entry {one.get('seq')} of {one.get('time')}.")


def _known(anchors: Anchors, verdict: Verdict) -> dict[str, Anchor]:
    try:
        return dict(anchors.all())
    except IntegrityError:
        verdict.add(Fault(UNANCHORED))
        return {}


def _check_ends(verdict: Verdict, walk: Walk, first: int) -> None:
    if verdict.first is not None and verdict.first > first:
        verdict.add(Fault(MISSING, None, first, verdict.first - 1))
    anchor = walk.anchor
    if anchor is None:
        return
    verdict.anchored = anchor.seq
    if walk.seq < anchor.seq:
        verdict.add(Fault(CUT_OFF, walk.name, walk.seq + 1, anchor.seq))
    elif walk.anchored not in (anchor.hash, None) and not _told(verdict, anchor.seq):
        verdict.add(Fault(CHANGED, walk.name, anchor.seq, anchor.seq))
    if walk.seq > anchor.seq:
        after = walk.seq - anchor.seq
        verdict.remarks.append(f"The vault was told of the trail's end {after:,} entries ago, as after a crash.")


def _told(verdict: Verdict, seq: int) -> bool:
    return any(one.kind == CHANGED and one.seq and one.last and one.seq <= seq <= one.last for one in verdict.faults)


class Walk:
    """Reads the lines of a trail, oldest first, and reports faults to ``verdict``; ``known`` are the anchors.

    A line is authentic if the next line has its hash, so each is judged when the next one is known.
    """

    def __init__(self, chain: Chain, verdict: Verdict, known: Mapping[str, Anchor], trail: str | None) -> None:
        self._chain = chain
        self._trail = trail
        self._verdict = verdict
        self._known = known
        self.seq = 0
        """The number of the last entry in its place."""

        self.name: str | None = None
        """The file of that entry."""

        self.anchored: str | None = None
        """The hash of the last entry that the vault has anchored."""

        self._hash = ""
        self._claimed = 0
        self._waiting: tuple[str, bytes, Link] | None = None
        self._missing: list[tuple[int, int, str]] = []
        self._late: list[int] = []
        self._unchained = 0

    @property
    def anchor(self) -> Anchor | None:
        """The anchor of the trail, if the vault has one."""
        return self._known.get(self._verdict.trail or self._trail or "")

    def file(self, name: str, file: BinaryIO) -> None:
        """Read a file."""
        file.seek(0)
        for number, line in enumerate(file, 1):
            link = link_of(line)
            if link is not None:
                self._verdict.trail = self._verdict.trail or link.trail
                self._judge(link)
                self._waiting = name, line, link
                if _RESUMED in line:
                    self._resumed(name, line)
            elif self._waiting is None and line.startswith(b'{"seq":') and line.endswith(b"}\n"):
                self._unchained += 1
            elif line.endswith(b"\n"):
                self._verdict.add(Fault(NO_ENTRY, name, line=number))
            else:
                self._verdict.remarks.append(f"{name} ends in half a line, as after a crash.")

    def finish(self) -> None:
        """Judge the last line, and report missing entries."""
        self._judge(None)
        if self._verdict.entries:
            self._verdict.trail = self._verdict.trail or self._trail
        for first, last, name in self._missing:
            for late in sorted(seq for seq in self._late if first <= seq <= last):
                if late > first:
                    self._verdict.add(Fault(MISSING, name, first, late - 1))
                first = late + 1
            if first <= last:
                self._verdict.add(Fault(MISSING, name, first, last))
        if self._unchained:
            self._verdict.remarks.append(f"{self._unchained:,} entries are of a time before the trail was a chain.")

    def _judge(self, following: Link | None) -> None:
        if self._waiting is None:
            return
        name, line, link = self._waiting
        hash = self._chain.hash(line)
        seq = link.seq
        sure = following is None or following.previous == hash
        self._verdict.entries += 1
        if self._verdict.first is None:
            self._verdict.first = seq = seq if sure or following is None else following.seq - 1
        elif link.previous == self._hash:
            seq = self._following(name, seq, sure=sure)
        elif seq in (self.seq + 1, self._claimed + 1):
            self._verdict.add(Fault(CHANGED, self.name, self.seq, self.seq))
        elif seq > self.seq + 1:
            self._missing.append((self.seq + 1, seq - 1, name))
        else:
            self._out_of_place(name, seq)
            return
        self.seq, self._hash, self.name, self._claimed = seq, hash, name, link.seq
        self._verdict.last = seq
        if self.anchor and seq == self.anchor.seq:
            self.anchored = hash

    def _resumed(self, name: str, line: bytes) -> None:
        """Report what a daemon recorded at its start."""
        try:
            entry = json.loads(line)
        except ValueError:
            return
        for one in entry.get("gone", ()):
            self._verdict.add(_gone(one))
        if "unanchored" in entry:
            self._verdict.add(Fault(UNANCHORED, name))
        if "dropped" in entry:
            text = "A daemon dropped half a line before entry"
            self._verdict.remarks.append(f"{text} {entry['seq']} ({name}), as after a crash.")

    def _following(self, name: str, seq: int, *, sure: bool) -> int:
        """Return the number of an entry after the last one, given the number ``seq`` in it."""
        # Entries that the vault has anchored were written, so they were not lost.
        known = self.anchor is not None and self.seq < self.anchor.seq < seq
        if seq > self.seq + 1 and sure and not known:
            self._verdict.add(Fault(LOST, name, self.seq + 1, seq - 1))
            return seq
        return self.seq + 1

    def _out_of_place(self, name: str, seq: int) -> None:
        late = any(first <= seq <= last for first, last, _ in self._missing)
        if late:
            self._late.append(seq)
        self._verdict.add(Fault(REORDERED if late else PUT_IN, name, seq, seq))
