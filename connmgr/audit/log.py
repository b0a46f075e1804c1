"""The audit log: who did what to which machine, in files to which entries are only appended.

In reading order: the chain of hashes through all entries; the writer of a log; how a starting daemon resumes the log
that it finds, or begins one; the note beside the log of how far the vault has recorded it; and the files: the one being
written, and the older ones that stay.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hmac
import json
import logging
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from connmgr.audit.entry import CommandText, entry_of, moment
from connmgr.contract.message import time_from_json
from connmgr.errors import AuditUnavailable, ConnmgrError, IntegrityError, StartupError, VaultUnavailable
from connmgr.paths import write_file
from connmgr.vault.anchors import Anchor, Anchors
from connmgr.vault.backends import sync_directory
from connmgr.vault.database import Database
from connmgr.vault.principals import Principals

logger = logging.getLogger("connmgr.audit")

FILE_NAME = "audit.log"

MAX_BYTES = 16 * 1024 * 1024
"""Largest file; then the next one begins."""

KEPT_FILES = 8
"""Number of files kept: ``audit.log``, then ``audit.log.1``, the newest of the older ones, and so on.

One more is kept until the vault has stored the new beginning of the log; no further file begins until then.
"""

ANCHOR_SECONDS = 1.0
"""The end of the log is anchored in the vault this long after an entry."""

_BLOCK_BYTES = 64 * 1024
_ATTEMPTS = 20

MAX_DROPPED = 1000
"""Most bytes of an incomplete line that are kept for the entry about it."""

MAX_OTHERS = 50
"""Most other logs that an entry names; it counts all."""

NOTE_NAME = "audit.anchored"
"""The file beside a log that says which entry the vault has anchored last (:func:`noted`)."""

LAG_SECONDS = 60.0
"""A vault whose anchor is older than the log's last entry by more than this was put back, or away for long.

So it is told for logs without a note, as older versions and copies of the log's files have them.
"""

BEGAN = "began"
"""The ``event`` of the first entry of a log in a vault that knows other logs, which are its ``others``."""

RESUMED = "resumed"
"""The ``event`` of an entry written at a daemon's start, if the log is not as the last daemon left it.

It has ``dropped``, an incomplete line; ``unanchored``; ``moved``, the place where the log was before; ``behind``, the
older end that the vault knew; or ``gone``, logs of the vault whose files are missing.
"""

FORKED = "forked"
"""The ``event`` of an entry about another daemon, ``by``, that has anchored a copy of this log as its own."""

AFTER_LOST = "lost"
"""The ``event`` of an entry that follows lost ones where no request does: only a later number shows that some are
missing."""

_NOTHING_DONE = "The audit log cannot be written, so nothing was done."

# Made once, because making an encoder takes longer than encoding.
_ENCODER = json.JSONEncoder(separators=(",", ":"))

_HASH_BYTES = 32
_HEAD = re.compile(
    rb'\{"seq":([0-9]{1,18}),"previous":"([0-9a-f]{64})",(?:"trail":"([0-9a-f]{16})",)?'
    rb'(?:"anchored":([0-9]{1,18}),)?.*\}\n',
    re.DOTALL,
)
_NOTE_BYTES = 128
_NOTE = re.compile(rb"([0-9a-f]{64}) ([0-9a-f]{16}) ([0-9]{1,18})\n")


@dataclass(frozen=True)
class ChainLink:
    """The part of an entry that the chain needs: its number, the hash of the line before it, and the log if named.

    ``anchored`` is the number of an entry that the vault had anchored by then; 0 if the entry does not tell.
    """

    seq: int
    previous: str
    log: str | None
    anchored: int = 0


class HashChain:
    """The hashes of a log, under ``key`` (32 bytes): each entry contains the hash of the line before it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def hash(self, line: bytes) -> str:
        """Return the hash of an entry's line, including its line feed, in 64 hexadecimal digits."""
        return blake2b(line, key=self._key, digest_size=_HASH_BYTES).hexdigest()

    def beginning(self, log: str) -> str:
        """Return the value in place of a hash in the first entry of ``log``."""
        # No line of a log begins like this.
        return self.hash(b"beginning of " + log.encode())

    def note(self, log: str, seq: int) -> bytes:
        """Return the content of the file :data:`NOTE_NAME` of ``log``, whose entry ``seq`` is anchored."""
        # No line of a log begins like this either.
        return f"{self.hash(f'anchored {log} {seq}'.encode())} {log} {seq}\n".encode()


def chain_and_anchors(principals: Principals, database: Database) -> tuple[HashChain, Anchors]:
    """Return the chain and the anchors of a vault's logs, under keys that rotations of its key do not change."""
    chain, anchors = (principals.lasting_key(purpose) for purpose in (b"connmgr.chain", b"connmgr.anchors"))
    return HashChain(chain), Anchors(database, anchors)


def link_of(line: bytes) -> ChainLink | None:
    """Return the link of a complete line of a log; None for anything else, including entries without a chain."""
    head = _HEAD.fullmatch(line)
    return head and ChainLink(int(head[1]), head[2].decode(), head[3].decode() if head[3] else None, int(head[4] or 0))


class AnchorStore(Protocol):
    """What the log needs of :class:`connmgr.vault.anchors.Anchors`."""

    is_shared: bool

    def all(self) -> Mapping[str, Anchor]: ...
    def put(self, anchor: Anchor, *, takes_over: bool = False) -> Anchor | None: ...
    def remove(self, log: str) -> None: ...


class AuditLog:
    """Appends entries to ``path``, one JSON object per line. Safe to use from several threads.

    ``mac`` is the keyed hash recorded for a command's text; ``text`` decides what is recorded of the text itself.
    ``names`` returns the names of a request's subjects. Entries are numbered and chained, also across restarts. An
    entry that cannot be written is ``lost``: the daemon's log says so, and its number is missing. ``ship`` is called
    with each written entry.

    What the vault has anchored is told in two places, each time after the vault has stored it: in the next entry, which
    the chain protects, and at once in a note beside the log. A vault that knows less than either is an older one.
    """

    def __init__(
        self,
        path: Path,
        chain: HashChain,
        anchors: AnchorStore,
        mac: Callable[[bytes], bytes],
        *,
        text: CommandText | None = None,
        names: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {},
        max_bytes: int = MAX_BYTES,
        ship: Callable[..., object] = lambda **_: None,
    ) -> None:
        """Open the log, and anchor it.

        :raises connmgr.errors.StartupError: a file cannot be written, is not ours, or is open to others.
        """
        self.path, self.chain, self.anchors = path, chain, anchors
        self._mac, self._names, self._ship = mac, names, ship
        self.text = text or CommandText()
        """Decides what of commands and their output is shown."""

        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._syncing, self._anchoring = threading.Lock(), threading.Lock()
        self._synced = 0
        self._failing = self._adrift = self._forked = False
        self._closing, self._news = threading.Event(), threading.Event()
        self._here = LogLocation.of(path)
        self._writer = secrets.token_hex(8)
        self._first = self._size = 0
        self._anchored = self._told = 0
        self.vault_before: Anchor | None = None
        """What the vault knew of this log as the daemon started, if that was less than it had known before: then
        somebody has put its database back."""

        self.lost = 0
        self._descriptor = open_for_writing(path)
        self._file = _identity(self._descriptor)
        remarks = self._resume()
        # Before the first entry, because a log without an anchor counts as tampered with.
        self.anchor(takes_over=True)
        if remarks:
            self._remark(remarks)
        self._thread = threading.Thread(target=self._anchor_regularly, name="audit-anchor", daemon=True)
        self._thread.start()

    def record(
        self, facts: Mapping[str, Any], about: Mapping[str, Any], details: Mapping[str, Any], begun: int | None = None
    ) -> None:
        """Append an entry about a request and its result; ``begun`` is the number of the entry about its beginning."""
        entry = self._entry(facts, about, details)
        with suppress(AuditUnavailable):
            self._append(entry if begun is None else {**entry, "begun": begun})

    def begin(self, facts: Mapping[str, Any], about: Mapping[str, Any]) -> int:
        """Append an entry about the beginning of a request, and return its number when it is on the disk.

        :raises AuditUnavailable: that failed.
        """
        number = self._append({**self._entry(facts, about, {}), "phase": "begun"})
        try:
            self._sync(number)
        except OSError as error:
            raise AuditUnavailable(_NOTHING_DONE) from error
        return number

    def note(self, facts: Mapping[str, Any], details: Mapping[str, Any]) -> int:
        """Append an entry about a step of a request; return its number, or raise :class:`AuditUnavailable`."""
        return self._append(self._entry(facts, {}, details))

    def anchor(self, *, takes_over: bool = False) -> None:
        """Store the end of the log in the vault; if that fails, it is logged, and the next anchor replaces it."""
        # An earlier end must not be stored after a later one.
        with self._anchoring:
            is_whole = self._follow_lost()
            # Before the end is read: an entry that comes in between sets it again, and is anchored a second later.
            self._news.clear()
            other = None
            try:
                # Within the block: where the process has no descriptor left, the thread must not end.
                with self._lock:
                    now, descriptor = self._now(), os.dup(self._descriptor)
                try:
                    # An anchored entry must survive a power failure.
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                other = self.anchors.put(now, takes_over=takes_over)
                if other is None:
                    self._anchored = now.seq
                    self._remove_oldest(now.first)
                    # Not durable: a note that a power failure takes back tells less, and nothing wrong.
                    write_file(note_of(self.path), self.chain.note(now.log, now.seq), is_durable=False)
                self._adrift = False
            except (OSError, ConnmgrError) as error:
                if not self._adrift:
                    logger.warning("The end of the audit log is not anchored in the vault, or not noted: %s", error)
                self._adrift = True
                self._news.set()
            if not is_whole:
                self._news.set()
        if other is not None:
            self._tell_fork(other)

    def close(self) -> None:
        """Anchor the end and close the file; nothing can be recorded afterwards."""
        self._closing.set()
        self._news.set()
        self._thread.join()
        self.anchor()
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1

    def _entry(self, facts: Mapping[str, Any], about: Mapping[str, Any], details: Mapping[str, Any]) -> dict[str, Any]:
        entry = entry_of(facts, about, details, self._mac, self.text)
        return {**entry, **self._names(entry)}

    def _append(self, entry: Mapping[str, Any]) -> int:
        """Write an entry, ship it, and return its number.

        :raises AuditUnavailable: it could not be written; it was shipped all the same.
        """
        lost: Exception | None = None
        with self._lock:
            self._number += 1
            anchored = self._anchored
            told = {"anchored": anchored} if anchored > self._told else {}
            numbered: dict[str, Any] = {"seq": self._number, "previous": self._hash, **told, **entry}
            try:
                self._write(numbered)
                self._failing = False
                self._told = anchored
            except (OSError, StartupError) as error:
                lost = error
                self.lost += 1
                if not self._failing:
                    logger.error("The audit log cannot be written, entries are lost: %s", error)  # noqa: TRY400
                self._failing = True
        if not self._news.is_set():
            self._news.set()
        self._shipped(numbered)
        if lost is not None:
            raise AuditUnavailable(_NOTHING_DONE) from lost
        return int(numbered["seq"])

    def _shipped(self, numbered: Mapping[str, Any]) -> None:
        """Ship an entry. The lock is not held: a plugin may take long, and entries of others must not wait for it."""
        try:
            self._ship(entry=numbered)
        except Exception:
            # A plugin may raise any exception; the log itself is intact.
            logger.exception("A plugin failed to take note of entry %d.", numbered["seq"])

    def _follow_lost(self) -> bool:
        """Append an entry if the last ones were lost; return whether the log has a later entry than any lost one."""
        with self._lock:
            if self._number == self._last:
                return True
            head = {"seq": self._number + 1, "previous": self._hash}
            numbered = {**head, "time": moment(), "event": AFTER_LOST, "entries": self._number - self._last}
            try:
                self._write(numbered)
            except (OSError, StartupError):
                return False
            self._number += 1
            self._failing = False
        self._shipped(numbered)
        return True

    def _write(self, numbered: dict[str, Any]) -> None:
        self._find_file()
        line = _ENCODER.encode(numbered).encode() + b"\n"
        # Not for the first entry of a file: one that is longer than a file may be would rotate for ever.
        if self._size and self._size + len(line) > self._max_bytes and not self._has_surplus():
            self._rotate()
        if not self._size:
            # Each file names its log, so that a file alone can be assigned to an anchor.
            head = {"seq": numbered["seq"], "previous": numbered["previous"], "trail": self.id}
            line = _ENCODER.encode({**head, **numbered}).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written < len(line):
            # An incomplete line must not stand before the next one.
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written
        self._last, self._hash = numbered["seq"], self.chain.hash(line)

    def _find_file(self) -> None:
        """Open the file at the log's path if it is another one by now, and cut off half a line that somebody has left.

        Programs such as logrotate rename, copy and cut files under their writers. What is written to a file that has no
        name any more would be lost without a word, and an entry behind half a line could not be read.
        """
        with suppress(FileNotFoundError):
            status = self.path.lstat()
            if (status.st_dev, status.st_ino) == self._file and status.st_size == self._size:
                return
        fresh = open_for_writing(self.path)
        os.close(self._descriptor)
        self._descriptor, self._file = fresh, _identity(fresh)
        drop_half_a_line(fresh)
        self._size = os.fstat(fresh).st_size
        logger.warning(
            "The file %s was moved, replaced or cut by another program; the audit log goes on in the one that is there "
            "now, and `connmgr audit verify` tells whether entries are missing.",
            self.path,
        )

    def _sync(self, number: int) -> None:
        """Return when the entry ``number`` is on the disk; one flush serves all waiting threads."""
        with self._syncing:
            if self._synced >= number:
                return
            with self._lock:
                last, descriptor = self._last, os.dup(self._descriptor)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._synced = last

    def _rotate(self) -> None:
        """Begin the next file: rename each file to the next higher number; the lock is held.

        A crash between two of the renames leaves a gap in the numbers of the files, or no current file. Neither
        matters: readers take the files that exist in the order of their numbers, and the next start creates the
        current one.
        """
        os.fsync(self._descriptor)
        # Created before anything is renamed: if that fails, all stays as it is.
        next_one = self.path.with_name(f"{self.path.name}.next")
        fresh = open_for_writing(next_one)
        for number in range(KEPT_FILES, 0, -1):
            with suppress(FileNotFoundError):
                older(self.path, number - 1).replace(older(self.path, number))
        next_one.replace(self.path)
        sync_directory(self.path.parent)
        os.close(self._descriptor)
        self._descriptor, self._file, self._size = fresh, _identity(fresh), os.fstat(fresh).st_size
        self._has_surplus()

    def _has_surplus(self) -> bool:
        """Whether the oldest file is one too many; the log then begins with the next one, which the vault is told.

        Until the vault knows, as while its database is away, the next file must not begin, since it would replace the
        oldest one: the vault demands these entries, so that they would look taken away.
        """
        if not older(self.path, KEPT_FILES).exists():
            return False
        # A crash between two renames may have left a gap after the oldest file.
        rest = (first_number(older(self.path, number)) for number in range(KEPT_FILES - 1, -1, -1))
        self._first = max(self._first, next(filter(None, rest), 0))
        return True

    def _remove_oldest(self, first: int) -> None:
        """Remove the oldest file if it is one too many, and the vault knows that the log now begins at ``first``.

        In the other order a crash in between would leave an anchor that demands the removed entries.
        """
        surplus = older(self.path, KEPT_FILES)
        with self._lock:
            if first_number(surplus) < first:
                surplus.unlink(missing_ok=True)

    def _now(self) -> Anchor:
        here = self._here
        return Anchor(
            self.id, here.place, self._first, self._last, self._hash, moment(), here.machine, writer=self._writer
        )

    def _anchor_regularly(self) -> None:
        while self._news.wait() and not self._closing.wait(ANCHOR_SECONDS):
            self.anchor()

    def _resume(self) -> Mapping[str, Any]:
        """Continue at the end of the log, or begin one; return remarks on its state."""
        dropped = drop_half_a_line(self._descriptor)
        remarks = {"dropped": dropped[:MAX_DROPPED].decode(errors="backslashreplace")} if dropped else {}
        self._size = os.fstat(self._descriptor).st_size
        point = resume_point(self.path, self._here, self.chain, self._known(), is_shared=self.anchors.is_shared)
        self.id, self._first, self._hash, self.vault_before = point.log, point.first, point.hash, point.older
        self._number = self._last = point.last
        if point.is_new and self._size:
            # The file has entries of an older version, without a chain.
            self._rotate()
        # A daemon that was killed may have left one.
        self._has_surplus()
        return {**remarks, **point.remarks}

    def _known(self) -> Mapping[str, Anchor]:
        try:
            return self.anchors.all()
        except (IntegrityError, VaultUnavailable) as error:
            logger.warning(
                "The audit log is not compared with its anchors in the vault, which cannot be read: %s", error
            )
            return {}

    def _remark(self, remarks: Mapping[str, Any]) -> None:
        """Record the differences found at the start from the state that the last daemon left."""
        event = BEGAN
        if remarks.keys() - {"others", "othersNumber"}:
            event = RESUMED
            logger.warning("The audit log is not as it was left; `connmgr audit verify` tells more.")
        # If this fails, the next start finds the same.
        with suppress(AuditUnavailable):
            self._append({"time": moment(), "event": event, **remarks})

    def _tell_fork(self, other: Anchor) -> None:
        """Record that another daemon continues a copy of this log; the vault anchors only one of the two."""
        if self._forked:
            return
        self._forked = True
        logger.error(
            "Another daemon, on %s in %s, writes a copy of this audit log; the vault no longer anchors this one. Stop "
            "one of them, and move its %s* elsewhere: it then begins a log of its own.",
            *(other.host, other.directory, FILE_NAME),
        )
        with suppress(AuditUnavailable):
            self._append({"time": moment(), "event": FORKED, "by": brief(other)})


@dataclass(frozen=True)
class LogLocation:
    """Where a log is: on a machine, and in a directory of it."""

    place: str
    """As in :attr:`Anchor.place`."""

    machine: str
    """As in :attr:`Anchor.machine`."""

    @classmethod
    def of(cls, path: Path) -> LogLocation:
        """Return the whereabouts of the log with the current file ``path``."""
        return cls(f"{os.uname().nodename}:{path.parent.resolve()}", machine_id())

    def has_machine_of(self, anchor: Anchor) -> bool:
        """Whether ``anchor`` was stored on this machine, even if the machine had another name then."""
        if self.machine and anchor.machine:
            return self.machine == anchor.machine
        return self.place.partition(":")[0] == anchor.host


@functools.cache
def machine_id() -> str:
    """Return an id of this machine that survives a change of its name; empty if the system has none.

    It is a hash of machine-id(5), which asks programs not to show the id itself to strangers.
    """
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with suppress(OSError):
            text = Path(path).read_bytes().strip()
            if len(text) == 32:
                return blake2b(text, person=b"connmgr.machine", digest_size=8).hexdigest()
    return ""


@dataclass(frozen=True)
class ResumePoint:
    """Where a log continues: its ``first`` entry, its ``last`` one, and the hash that the next one continues from."""

    log: str
    first: int
    last: int
    hash: str
    remarks: Mapping[str, Any]
    """Members of the entry :data:`RESUMED` or :data:`BEGAN` about it; none if there is nothing to tell."""

    is_new: bool = False
    older: Anchor | None = None
    """The anchor, if the vault had a later one before."""


def resume_point(
    path: Path, here: LogLocation, chain: HashChain, anchors: Mapping[str, Anchor], *, is_shared: bool
) -> ResumePoint:
    """Return where the log ``path`` continues, or begins; ``anchors`` are the vault's anchors by logs.

    A file and its anchor never agree after a crash: entries reach the file first, the vault a second later. So a file
    that goes on beyond its anchor is continued at its end, if the chain leads from there back to the anchored line.
    If the file ends before its anchor, or does not contain the anchored line, then the file was changed: the next
    entry continues from the anchor, which leaves a gap that shows.
    """
    end = find_end(path)
    here_before = [anchor for anchor in anchors.values() if anchor.place == here.place]
    log = end.log or (here_before[0].log if end.line and here_before else None)
    if log is None:
        unused = [anchor.log for anchor in here_before if not anchor.seq]
        log = unused[0] if unused else secrets.token_hex(8)
        others = [anchor for anchor in anchors.values() if anchor.seq]
        return ResumePoint(log, end.seq + 1, end.seq, chain.beginning(log), _others(others, here, is_shared), True)
    anchor, reached = anchors.get(log), chain.hash(end.line)
    if anchor is None:
        return ResumePoint(log, end.seq, end.seq, reached, {"unanchored": True})
    remarks: dict[str, Any] = {}
    before: Anchor | None = None
    if anchor.place != here.place:
        remarks["moved"] = brief(anchor)
    if anchor.seq > end.seq or not reaches(path, chain, anchor.hash):
        reached = anchor.hash
    else:
        before = anchor if is_older(anchor, path, chain) else None
        if before or lag(anchor, end.line) > LAG_SECONDS:
            remarks["behind"] = brief(anchor)
    return ResumePoint(log, anchor.first, max(anchor.seq, end.seq), reached, remarks, older=before)


def _others(others: list[Anchor], here: LogLocation, is_shared: bool) -> dict[str, Any]:
    """Return the remarks of a log that begins in a vault that knows ``others``."""
    gone = [anchor for anchor in others if is_missed(anchor, here, is_shared=is_shared)]
    others_in_use = [anchor for anchor in others if anchor not in gone]
    remarks: dict[str, Any] = {}
    for name, logs in (("gone", gone), ("others", others_in_use)):
        if logs:
            newest = sorted(logs, key=lambda log: log.time, reverse=True)
            remarks |= {name: [brief(anchor) for anchor in newest[:MAX_OTHERS]], f"{name}Number": len(logs)}
    return remarks


def is_missed(anchor: Anchor, here: LogLocation, *, is_shared: bool) -> bool:
    """Whether the files of a log should be on this machine, and are not where its anchor says.

    Only a vault that several machines share has logs that are rightly somewhere else. A directory that this user may
    not read counts as having them.
    """
    if not here.has_machine_of(anchor):
        return not is_shared
    try:
        return find_end(Path(anchor.directory) / FILE_NAME).log != anchor.log
    except PermissionError:
        return False
    except OSError:
        # A link, or a directory, in place of the file.
        return True


def brief(anchor: Anchor) -> dict[str, Any]:
    """Return how an entry describes another log, or this one at another time."""
    return {"trail": anchor.log, "place": anchor.place, "seq": anchor.seq, "time": anchor.time}


def lag(anchor: Anchor, last: bytes) -> float:
    """Return the seconds by which ``anchor`` is older than the entry in the line ``last``; 0 without an entry."""
    try:
        return (time_from_json(json.loads(last)["time"]) - time_from_json(anchor.time)).total_seconds()
    except (ValueError, KeyError, TypeError):
        return 0.0


def note_of(path: Path) -> Path:
    """Return the file with the note about the log with the current file ``path``."""
    return path.with_name(NOTE_NAME)


def noted(path: Path, chain: HashChain) -> tuple[str, int]:
    """Return a log and its last anchored entry, as the note beside ``path`` tells; an empty text and 0 without a note.

    A note that cannot be read, or that somebody without the key has written, counts as none: whoever can put it there
    can also remove the note.
    """
    with suppress(OSError), open(note_of(path), "rb", opener=_open_to_read) as file:
        content = file.read(_NOTE_BYTES)
        note = _NOTE.fullmatch(content)
        if note:
            log, seq = note[2].decode(), int(note[3])
            if hmac.compare_digest(content, chain.note(log, seq)):
                return log, seq
    return "", 0


def is_older(anchor: Anchor, path: Path, chain: HashChain) -> bool:
    """Whether ``anchor``, which is of the vault, is older than one of which the log ``path`` or its note tells."""
    log, seq = noted(path, chain)
    if log == anchor.log and seq > anchor.seq:
        return True
    with opened(path) as files:
        for file in files:
            for line in backwards(file, file.seek(0, os.SEEK_END)):
                link = link_of(line + b"\n")
                # An entry tells of earlier ones, and the newest entry that tells, of the latest.
                if link and (link.anchored or link.seq <= anchor.seq + 1):
                    return link.anchored > anchor.seq
    return False


def older(path: Path, number: int) -> Path:
    """Return the file ``number`` of the log with the current file ``path``, which is number 0."""
    return path.with_name(f"{path.name}.{number}") if number else path


def open_for_writing(path: Path) -> int:
    """Return a descriptor that appends to ``path``.

    :raises StartupError: the file cannot be written, is not ours, or is open to others.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise StartupError(f"The audit log {path} cannot be written: {error.strerror}.") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise StartupError(f"The audit log {path} must be a file of your own, closed to others: run chmod 600 {path}")
    sync_directory(path.parent)
    return descriptor


@contextlib.contextmanager
def opened(path: Path) -> Iterator[list[BinaryIO]]:
    """Open all files of a log for reading, the newest first, also while a daemon renames them.

    :raises OSError: one cannot be read.
    """
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as stack:
            current, files = _identity(path), _opened(path, stack)
            # If a file was renamed meanwhile, it is found by its new name, or opened again.
            if _identity(path) == current:
                yield files
                return
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))


def _opened(path: Path, stack: contextlib.ExitStack) -> list[BinaryIO]:
    files: dict[object, BinaryIO] = {}
    for number in range(KEPT_FILES + 1):
        with contextlib.suppress(FileNotFoundError):
            # pathlib knows no opener, and ruff no ExitStack around a call.
            file = open(older(path, number), "rb", opener=_open_to_read)  # noqa: SIM115
            stack.enter_context(file)
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "Not a file", str(older(path, number)))
            files.setdefault(_identity(file.fileno()), file)
    return list(files.values())


def _identity(file: Path | int) -> object:
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(file)  # noqa: PTH116 - a descriptor too
        return status.st_dev, status.st_ino
    return None


def backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """Yield the lines of ``file`` before the offset ``end``, without line feeds, the last one first.

    The first result is the text after the last line feed: empty, unless a line is incomplete.
    """
    rest = b""
    while end:
        size = min(end, _BLOCK_BYTES)
        end -= size
        file.seek(end)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed(lines)
    yield rest


def first_number(path: Path) -> int:
    """Return the number of the first entry in a file of a chained log, 0 for any other file or none."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        link = link_of(file.readline())
        return link.seq if link else 0
    return 0


@dataclass(frozen=True)
class End:
    """The last entry of a log: its number (0 without one), and in a chained log its line and the log's id."""

    seq: int
    line: bytes = b""
    log: str | None = None


def find_end(path: Path) -> End:
    """Return the end of the log ``path``.

    Entries of an older version, which have no chain, count only where no entry has one.
    """
    unchained, end = 0, None
    with opened(path) as files:
        for file in files:
            for line in () if end else backwards(file, file.seek(0, os.SEEK_END)):
                link = link_of(line + b"\n")
                if link:
                    end = End(link.seq, line + b"\n")
                    break
                unchained = unchained or _number(line)
            file.seek(0)
            first = link_of(file.readline())
            if end and first and first.log:
                return End(end.seq, end.line, first.log)
    return end or End(unchained)


def reaches(path: Path, chain: HashChain, hash: str) -> bool:
    """Whether the chain leads from the end of the log ``path`` back to the line with ``hash``, each line intact."""
    expected = None
    with opened(path) as files:
        for file in files:
            for line in backwards(file, file.seek(0, os.SEEK_END)):
                link, own = link_of(line + b"\n"), chain.hash(line + b"\n")
                # The text after a file's last line feed is empty.
                if line and (link is None or expected not in (None, own)):
                    return False
                if link and hash in (own, link.previous):
                    return True
                expected = link.previous if link else expected
    return False


def drop_half_a_line(descriptor: int) -> bytes:
    """Cut off the text after the last line feed, which a crash or a full disk has left, and return it."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        end = file.seek(0, os.SEEK_END)
        dropped = next(backwards(file, end))
    if dropped:
        os.ftruncate(descriptor, end - len(dropped))
    return dropped


def _open_to_read(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _number(line: bytes) -> int:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return int(json.loads(line)["seq"])
    return 0
