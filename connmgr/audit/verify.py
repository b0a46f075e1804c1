"""Verifies that audit logs are as the daemon wrote them: nothing changed, removed, inserted, moved or cut off.

One directory is verified, and with it every other log that the vault knows: a log in another directory of this machine
is read there, and one whose files are missing is a fault. The vault knows logs by their anchors alone, so what never
reached the vault, or was removed from the vault and the files together, is not missed here.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from connmgr.audit.log import (
    BEGAN,
    FILE_NAME,
    FORKED,
    LAG_SECONDS,
    RESUMED,
    AnchorStore,
    ChainLink,
    HashChain,
    LogLocation,
    is_missed,
    lag,
    link_of,
    noted,
    opened,
    reaches,
)
from connmgr.contract.audit import (
    CHANGED,
    COPY,
    CUT_OFF,
    ELSEWHERE,
    FORK,
    GONE,
    LOST,
    MISSING,
    NO_ENTRY,
    PUT_IN,
    REORDERED,
    UNANCHORED,
    UNREADABLE,
    VERIFIED,
)
from connmgr.errors import IntegrityError
from connmgr.vault.anchors import Anchor

# No client's text can contain these, because its quotation marks are escaped.
_EVENTS = tuple(b'"event":"' + event.encode() + b'"' for event in (BEGAN, RESUMED, FORKED))
_FORGOTTEN = b'"path":"/audit/forget"'

MAX_FAULTS = 100
"""Most faults that are described; all are counted."""

SENTENCES = {
    CHANGED: "is not as it was written",
    MISSING: "was taken away",
    PUT_IN: "was put in, or is there twice",
    REORDERED: "is not in its place",
    CUT_OFF: "was cut off the end",
    LOST: "was lost: the daemon could not write it",
    NO_ENTRY: "is not an entry",
    UNANCHORED: "The vault does not know this log",
    GONE: "The files of an audit log are missing",
    FORK: "Two daemons have continued copies of this log",
}
"""The possible faults, and their description for one entry."""


@dataclass(frozen=True)
class LogFault:
    """A fault in the entries ``seq`` to ``last``, in a ``line`` that is not an entry, or in the whole log."""

    kind: str
    file: str | None = None
    seq: int | None = None
    last: int | None = None
    line: int | None = None
    more: str = ""

    @property
    def message(self) -> str:
        """The fault in a sentence."""
        what, where = SENTENCES[self.kind], f" ({self.file})" if self.file else ""
        if self.line is not None:
            return f"Line {self.line} of {self.file} {what}."
        if self.seq is None:
            return f"{what}{where}{self.more}."
        if self.seq == self.last:
            return f"Entry {self.seq} {what}{where}."
        what = what.replace("it is", "they are").replace("it was", "they were").replace("write it", "write them")
        plural = what.replace("is ", "are ", 1) if what.startswith("is ") else what.replace("was ", "were ", 1)
        return f"Entries {self.seq} to {self.last} {plural}{where}."


@dataclass(frozen=True)
class KnownLog:
    """An audit log of the vault: where it was last anchored, with how many entries, and its ``state``."""

    log: str
    host: str
    directory: str
    seq: int
    time: str
    state: str

    @property
    def members(self) -> dict[str, Any]:
        """As the endpoint answers it."""
        members = asdict(self)
        return {"trail": members.pop("log"), **members}

    @property
    def where(self) -> str:
        """What the vault knows of it, for a sentence."""
        return f"{self.log}, last on {self.host} in {self.directory}, up to entry {self.seq} of {self.time}"


@dataclass
class Verdict:
    """The result for a log. It is sound if it has no faults; ``remarks`` describe what a crash may leave."""

    log: str | None = None
    entries: int = 0
    first: int | None = None
    last: int | None = None
    anchored: int | None = None
    """The number of the last entry that the vault has anchored."""

    faults: list[LogFault] = field(default_factory=list)
    number: int = 0
    """The number of faults; ``faults`` has the first of them."""

    remarks: list[str] = field(default_factory=list)
    logs: list[KnownLog] = field(default_factory=list)
    """All logs that the vault knows, this one first."""

    @property
    def members(self) -> dict[str, Any]:
        """As the endpoint answers it."""
        shown = {**vars(self), "trail": self.log, "sound": not self.faults}
        shown["faults"] = [
            {name: value for name, value in asdict(fault).items() if name != "more"} | {"message": fault.message}
            for fault in self.faults
        ]
        shown["logs"] = [log.members for log in self.logs]
        del shown["log"]
        return shown

    def add(self, fault: LogFault) -> None:
        """Add a fault, or extend the last one if it continues."""
        before = self.faults[-1] if self.faults else None
        goes_on = before and before.last and fault == replace(before, seq=before.last + 1, last=fault.last)
        if before and goes_on:
            self.faults[-1] = replace(before, last=fault.last)
            return
        self.number += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)


def verify(path: Path, chain: HashChain, anchors: AnchorStore, also: Iterable[Path] = ()) -> Verdict:
    """Verify all files of the log ``path``, also while a daemon writes it, and every other log that the vault knows.

    ``also`` are further directories with logs, such as those of other machines.

    :raises OSError: a file cannot be read.
    :raises connmgr.errors.VaultUnavailable: the database does not answer.
    """
    extra = [directory.resolve() for directory in also]
    for directory in extra:
        if not list(directory.glob(f"{FILE_NAME}*")):
            raise FileNotFoundError(errno.ENOENT, "no audit log", str(directory))
    verdict, here = Verdict(), LogLocation.of(path)
    # The end as of before reading, the beginning as of after it, because both only move forward.
    before = _known(anchors, verdict)
    in_place = [anchor for anchor in before.values() if anchor.place == here.place]
    walks = [Walk(path, chain, verdict, before, in_place[0].log if in_place else None).through()]
    for other in _other_files(walks[0], extra, before, here):
        try:
            walks.append(Walk(other, chain, Verdict(), before, None, whole_names=True).through())
        except OSError:
            # `is_missed` tells what is wrong with a log that nobody named here.
            if other.parent in extra:
                raise
    after = _known(anchors, Verdict())
    _check_ends(walks[0], after)
    copies = {
        walk.path: _compared(walks[0], walk, chain)
        for walk in walks[1:]
        if verdict.log and walk.verdict.log == verdict.log
    }
    for walk in walks[1:]:
        if walk.path not in copies:
            _check_ends(walk, after)
        verdict.remarks += walk.verdict.remarks
        for fault in walk.verdict.faults:
            verdict.add(fault)
    _list(verdict, walks, copies, before, here, is_shared=anchors.is_shared)
    _check_mentioned(verdict, walks, before)
    return verdict


def _other_files(walk: Walk, extra: Iterable[Path], anchors: Mapping[str, Anchor], here: LogLocation) -> list[Path]:
    """Return the current files of logs in the ``extra`` directories, and in other directories of this machine.

    Those are where the vault knows a log, and where the log of ``walk`` was before: the original of a copy.
    """
    nearby = {anchor.directory for anchor in anchors.values() if anchor.seq and here.has_machine_of(anchor)}
    directories, files = {walk.path.parent.resolve()}, []
    for directory in (*extra, *map(Path, sorted(nearby | walk.former))):
        at = directory.resolve()
        # Of a moved directory nothing is left; `is_missed` then tells of the log.
        if at not in directories and (directory in extra or (at / FILE_NAME).exists()):
            files.append(at / FILE_NAME)
        directories.add(at)
    return files


def _known(anchors: AnchorStore, verdict: Verdict) -> dict[str, Anchor]:
    try:
        return dict(anchors.all())
    except IntegrityError:
        verdict.add(LogFault(UNANCHORED, more=", or its anchor there was changed"))
        return {}


def _check_ends(walk: Walk, after: Mapping[str, Anchor]) -> None:
    """Compare the ends of a log with its anchor, which is that of before reading for the last entry."""
    verdict, now, anchor = walk.verdict, after.get(walk.verdict.log or ""), walk.anchor
    if now is None:
        if verdict.entries:
            verdict.add(LogFault(UNANCHORED, walk.shown(None)))
        return
    if verdict.first is not None and verdict.first > now.first:
        verdict.add(LogFault(MISSING, walk.shown(None), now.first, verdict.first - 1))
    if anchor is None:
        return
    verdict.anchored = anchor.seq
    if walk.seq < max(anchor.seq, walk.told):
        verdict.add(LogFault(CUT_OFF, walk.name, walk.seq + 1, max(anchor.seq, walk.told)))
    elif walk.anchored not in (anchor.hash, None) and not _told(verdict, anchor.seq):
        verdict.add(LogFault(CHANGED, walk.name, anchor.seq, anchor.seq))
    if walk.told > now.seq:
        verdict.remarks.append(
            f"The vault is older than the log: it had recorded entry {walk.told:,}, and knows only entry {now.seq:,}, "
            f"recorded at {now.time}."
        )
    elif walk.seq > anchor.seq:
        after_it, cause = walk.seq - anchor.seq, "as in the second after a request, or after a crash"
        if lag(anchor, walk.line) > LAG_SECONDS:
            cause = f"at {anchor.time}, as after an older vault was put back"
        verdict.remarks.append(f"The vault was told of the log's end {after_it:,} entries ago, {cause}.")


def _told(verdict: Verdict, seq: int) -> bool:
    return any(
        fault.kind == CHANGED and fault.seq and fault.last and fault.seq <= seq <= fault.last
        for fault in verdict.faults
    )


def _compared(walk: Walk, other: Walk, chain: HashChain) -> str:
    """Return whether ``other``, a log with the id of ``walk``, is a :data:`COPY` of it or a :data:`FORK`; say so."""
    # Of a copy, the shorter one is a beginning of the longer one: the hash of its last line is in the other's chain.
    short, long = sorted((walk, other), key=lambda walk: walk.seq)
    if short.seq < (long.verdict.first or 0) or reaches(long.path, chain, short.hash):
        walk.verdict.remarks.append(f"{other.path.parent} has a copy of this log, up to entry {other.seq}.")
        return COPY
    walk.verdict.add(LogFault(FORK, more=f": {other.path.parent} has one, up to entry {other.seq}"))
    return FORK


def _list(
    verdict: Verdict,
    walks: list[Walk],
    copies: Mapping[Path, str],
    anchors: Mapping[str, Anchor],
    here: LogLocation,
    *,
    is_shared: bool,
) -> None:
    """List all logs, and report those whose files are missing."""
    host, read = here.place.partition(":")[0], set()
    for walk in walks:
        if walk.verdict.log is None:
            continue
        anchor = anchors.get(walk.verdict.log)
        time = anchor.time if anchor else ""
        place = (host, str(walk.path.parent.resolve()))
        verdict.logs.append(KnownLog(walk.verdict.log, *place, walk.seq, time, copies.get(walk.path, VERIFIED)))
        read.add(walk.verdict.log)
    for anchor in sorted(anchors.values(), key=lambda anchor: anchor.time, reverse=True):
        if anchor.log in read or not anchor.seq:
            continue
        state = UNREADABLE if here.has_machine_of(anchor) else ELSEWHERE
        if is_missed(anchor, here, is_shared=is_shared):
            state = GONE
        log = KnownLog(anchor.log, anchor.host, anchor.directory, anchor.seq, anchor.time, state)
        verdict.logs.append(log)
        if state == GONE:
            verdict.add(LogFault(GONE, more=f": {log.where}"))


def _check_mentioned(verdict: Verdict, walks: list[Walk], anchors: Mapping[str, Anchor]) -> None:
    """Report logs that only an entry mentions, because the vault no longer knows them."""
    forgotten = {log for walk in walks for log in walk.forgotten}
    read = {walk.verdict.log for walk in walks}
    mentioned = {mention["trail"]: mention for walk in walks for mention in walk.mentioned if "trail" in mention}
    for id, mention in mentioned.items():
        if id in read or id in anchors:
            continue
        host, _, directory = str(mention.get("place", "")).partition(":")
        log = KnownLog(id, host or "?", directory or "?", mention.get("seq", 0), mention.get("time", "?"), GONE)
        if id in forgotten:
            verdict.remarks.append(f"The vault was told to forget a missing log: {log.where}.")
        else:
            verdict.logs.append(log)
            verdict.add(LogFault(GONE, more=f", and the vault no longer knows it: {log.where}"))


class Walk:
    """Reads the lines of the log ``path``, oldest first, and reports faults to ``verdict``, by the vault's ``anchors``.

    A line is authentic if the next line has its hash, so each is judged when the next one is known. ``log`` is the id
    of the log if no line names it.
    """

    def __init__(
        self,
        path: Path,
        chain: HashChain,
        verdict: Verdict,
        anchors: Mapping[str, Anchor],
        log: str | None,
        *,
        whole_names: bool = False,
    ) -> None:
        self.path = path
        self.verdict = verdict
        self.mentioned: list[Mapping[str, Any]] = []
        """Other logs, as entries about a daemon's start name them."""

        self.former: set[str] = set()
        """Directories where the log was before, as such entries tell."""

        self.forgotten: list[str] = []
        """Logs that the owner had the vault forget."""

        self._whole_names = whole_names
        self._chain = chain
        self._log = log
        self._known = anchors
        self.seq = 0
        """The number of the last entry in its place."""

        self.name: str | None = None
        """The file of that entry."""

        self.anchored: str | None = None
        """The hash of the last entry that the vault has anchored."""

        self.hash = ""
        """The hash of that entry's line."""

        self.line = b""
        self.told = 0
        """The last entry that the vault had anchored, as the log and the note beside it tell; 0 if they do not."""

        self._claimed = 0
        self._waiting: tuple[str, bytes, ChainLink] | None = None
        self._missing: list[tuple[int, int, str]] = []
        self._late: list[int] = []
        self._unchained = 0

    @property
    def anchor(self) -> Anchor | None:
        """The anchor of the log, if the vault has one."""
        return self._known.get(self.verdict.log or self._log or "")

    def through(self) -> Walk:
        """Read all files of the log, and return this walk.

        :raises OSError: a file cannot be read.
        """
        # Before the files, and before the caller reads the anchors again: what is noted by now is in both.
        log, seq = noted(self.path, self._chain)
        with opened(self.path) as files:
            for file in reversed(files):
                self.file(self.shown(Path(file.name)) or "", file)
        self.finish()
        self.told = max(self.told, seq if log == self.verdict.log else 0)
        return self

    def shown(self, file: Path | None) -> str | None:
        """Return how a fault names ``file``, or the whole log: with its directory, unless that was asked for alone."""
        if self._whole_names:
            return str(file or self.path)
        return file.name if file else None

    def file(self, name: str, file: BinaryIO) -> None:
        """Read a file."""
        file.seek(0)
        for number, line in enumerate(file, 1):
            link = link_of(line)
            if link is not None:
                self.verdict.log = self.verdict.log or link.log
                self._judge(link)
                self._waiting = name, line, link
                if any(event in line for event in _EVENTS) or _FORGOTTEN in line:
                    self._event(name, line)
            elif self._waiting is None and line.startswith(b'{"seq":') and line.endswith(b"}\n"):
                self._unchained += 1
            elif line.endswith(b"\n"):
                self.verdict.add(LogFault(NO_ENTRY, name, line=number))
            else:
                self.verdict.remarks.append(f"{name} ends in half a line, as after a crash.")
                # Or a daemon writes it just now. Its rest must not be read as another line.
                break

    def finish(self) -> None:
        """Judge the last line, and report missing entries."""
        self._judge(None)
        if self.verdict.entries:
            self.verdict.log = self.verdict.log or self._log
        for first, last, name in self._missing:
            # A line that came late was not missing: it splits the gap in which it should have been.
            for late in sorted(seq for seq in self._late if first <= seq <= last):
                if late > first:
                    self.verdict.add(LogFault(MISSING, name, first, late - 1))
                first = late + 1
            if first <= last:
                self.verdict.add(LogFault(MISSING, name, first, last))
        if self._unchained:
            self.verdict.remarks.append(f"{self._unchained:,} entries are of a time before the log was a chain.")

    def _judge(self, following: ChainLink | None) -> None:
        if self._waiting is None:
            return
        name, line, link = self._waiting
        hash = self._chain.hash(line)
        seq = link.seq
        # The next line vouches for this one by its hash; without that, the number in it may be forged.
        sure = following is None or following.previous == hash
        self.told = max(self.told, link.anchored if sure else 0)
        self.verdict.entries += 1
        if self.verdict.first is None:
            self.verdict.first = seq = seq if sure or following is None else following.seq - 1
        elif link.previous == self.hash:
            seq = self._following(name, seq, sure=sure)
        # The number fits, but not the hash: the line before this one is another than the one that was written.
        elif seq in (self.seq + 1, self._claimed + 1):
            self.verdict.add(LogFault(CHANGED, self.name, self.seq, self.seq))
        # Neither fits: lines in between are gone, or come later, out of place.
        elif seq > self.seq + 1:
            self._missing.append((self.seq + 1, seq - 1, name))
        else:
            self._out_of_place(name, seq)
            return
        # Both numbers count on: that of its place, and that which the line claims. A forged line must not make all
        # lines after it look forged.
        self.seq, self.hash, self.name, self.line, self._claimed = seq, hash, name, line, link.seq
        self.verdict.last = seq
        if self.anchor and seq == self.anchor.seq:
            self.anchored = hash

    def _event(self, name: str, line: bytes) -> None:
        """Report what a daemon recorded about the log itself."""
        try:
            entry = json.loads(line)
        except ValueError:
            return
        event, seq = entry.get("event"), entry.get("seq")
        if entry.get("path") == "/audit/forget" and entry.get("status") == 200:
            self.forgotten.append(entry.get("forgotten", ""))
        if event == FORKED:
            by = entry.get("by", {})
            more = f": another daemon had anchored one by entry {seq}, at {by.get('place')}"
            self.verdict.add(LogFault(FORK, name, more=more))
        if event not in (BEGAN, RESUMED):
            return
        self.mentioned += [*entry.get("gone", ()), *entry.get("others", ())]
        if "unanchored" in entry:
            self.verdict.add(LogFault(UNANCHORED, name))
        if "dropped" in entry:
            self.verdict.remarks.append(f"A daemon dropped half a line before entry {seq} ({name}), as after a crash.")
        if "moved" in entry:
            before = str(entry["moved"].get("place"))
            self.former.add(before.partition(":")[2])
            self.verdict.remarks.append(f"The log was at {before} before entry {seq} ({name}).")
        if "behind" in entry:
            last = entry["behind"].get("seq")
            self.verdict.remarks.append(f"The vault knew only entry {last} before entry {seq} ({name}).")

    def _following(self, name: str, seq: int, *, sure: bool) -> int:
        """Return the number of an entry after the last one, given the number ``seq`` in it."""
        # Entries that the vault has anchored were written, so they were not lost.
        is_anchored = self.anchor is not None and self.seq < self.anchor.seq < seq
        if seq > self.seq + 1 and sure and not is_anchored:
            self.verdict.add(LogFault(LOST, name, self.seq + 1, seq - 1))
            return seq
        return self.seq + 1

    def _out_of_place(self, name: str, seq: int) -> None:
        late = any(first <= seq <= last for first, last, _ in self._missing)
        if late:
            self._late.append(seq)
        self.verdict.add(LogFault(REORDERED if late else PUT_IN, name, seq, seq))
