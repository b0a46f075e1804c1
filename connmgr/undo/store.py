"""Keeps, for each change of a file by a token, the states before and after, and a copy of the content before.

Everything is in one directory of the daemon: ``ID.change`` describes a change, ``DIGEST.copy`` is a content, shared by
the changes that have it. Both are sealed by a key of the vault, since files hold secrets, too.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from connmgr.errors import Busy, IntegrityError
from connmgr.paths import write_file
from connmgr.secrets.sealing import Box
from connmgr.shares import of_tokens, room

DAY_SECONDS = 86400

MAX_CHANGES = 20_000
"""Most changes that are kept; tokens have shares of that, as of the bytes."""

_CHANGE, _COPY = ".change", ".copy"

logger = logging.getLogger("connmgr.undo")


@dataclass(frozen=True)
class FileState:
    """What is at a path; of attributes that are None nothing is known.

    ``kind`` is ``file``, ``directory``, ``link``, ``other`` or ``absent``. ``modified`` is in seconds since 1970.
    """

    kind: str
    size: int | None = None
    sha256: str | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    modified: int | None = None

    def holds(self, other: FileState) -> bool:
        """Whether this is still ``other``, as far as both are known; the time of the last change does not count."""
        if self.kind != other.kind:
            return False
        pairs = [(self.sha256, other.sha256), (self.mode, other.mode), (self.uid, other.uid), (self.gid, other.gid)]
        if self.kind == "file":
            # A directory's says nothing, and the content of a large file was not read.
            pairs.append((self.size, other.size))
        return all(mine == theirs for mine, theirs in pairs if mine is not None and theirs is not None)


ABSENT_FILE = FileState("absent")


@dataclass(frozen=True)
class FileChange:
    """One change: a request of a token, or of whoever undid an earlier change, made ``after`` out of ``before``.

    ``copy`` names the content before; None: none is kept, and ``not_kept`` says why if there was any. ``after`` is None
    while the request is under way, and if the daemon ended in it. ``lineage`` are the token and those above it.
    """

    id: str
    at: float
    action: str
    connection: str
    path: bytes
    before: FileState
    after: FileState | None = None
    copy: str | None = None
    not_kept: str | None = None
    token: str | None = None
    by: str = ""
    """The name of the token, or of the owner's client."""

    lineage: tuple[str, ...] = ()
    holder: str | None = None
    digest: str | None = None
    """The digest of the connection and of all that it runs over, when it was made; None: an older version made it."""

    undoes: str | None = None
    """The change that this one has undone."""

    undone_by: str | None = None
    """The change that has undone this one, and is not undone itself."""


class NoRoomForCopyError(Exception):
    """The copy of a file cannot be kept; the message says why."""


class ChangeStore:
    """The changes in one directory. Safe to use from several threads.

    A change is removed ``days`` days after it was made; 0 keeps it. All copies together have at most ``total`` bytes,
    of which each token has a share (:func:`connmgr.shares.of_tokens`). If they are used up, nothing is removed for a
    newer copy: the oldest copy of a file is what an undo returns to, and a token could push it out by other changes.
    """

    def __init__(
        self,
        directory: Path,
        key: Callable[[], bytes],
        *,
        total: int,
        days: float,
    ) -> None:
        self._directory = directory
        self._key = key
        self._total, self._days = total, days
        # Guards all below, and what is in the directory.
        self._lock = threading.RLock()
        self._box: Box | None = None
        self._changes: dict[str, FileChange] = {}
        self._large: dict[str, threading.RLock] = {}
        """For each token that has kept something: held by the request that has a large copy in memory."""

    @contextmanager
    def large(self, holder: str | None, seconds: float) -> Iterator[None]:
        """Have a large copy in memory during the block, alone among the requests of ``holder``; wait for that.

        Otherwise one token's requests would have 40 copies there, each several times.
        :raises Busy: others had one for so many ``seconds``.
        """
        if holder is None:
            yield
            return
        with self._lock:
            lock = self._large.setdefault(holder, threading.RLock())
        if not lock.acquire(timeout=seconds):
            raise Busy("Other requests of the token keep copies of large files; try again later.")
        try:
            yield
        finally:
            lock.release()

    @property
    def is_off(self) -> bool:
        """Whether no content is kept at all."""
        return self._total == 0

    def begin(self, change: FileChange, content: bytes | None) -> FileChange:
        """Store a change that is about to be made, and ``content``; return it with what became of the copy."""
        with self._lock:
            box = self._opened()
            self._tidy()
            if self._is_full(change.holder):
                return replace(change, not_kept=f"the daemon keeps {MAX_CHANGES} changes at most, or the token's share")
            try:
                if content is not None:
                    change = replace(change, copy=self._store_copy(box, change.holder, content))
            except NoRoomForCopyError as error:
                change = replace(change, not_kept=str(error))
            try:
                self._store(box, change)
            except OSError as error:
                return replace(change, not_kept=f"the daemon cannot store it: {error.strerror}")
            return change

    def finish(self, id: str, after: FileState) -> None:
        """Note the state that a change has made; one that is not stored is ignored."""
        with self._lock:
            if (change := self._changes.get(id)) is None:
                return
            self._update(replace(change, after=after))
            if change.undoes is not None and (undone := self._changes.get(change.undoes)) is not None:
                self._update(replace(undone, undone_by=id))
                # An undo of an undo: what it had undone is there again.
                if undone.undoes is not None and (first := self._changes.get(undone.undoes)) is not None:
                    self._update(replace(first, undone_by=None))

    def drop(self, id: str) -> None:
        """Forget a change that was not made."""
        with self._lock:
            if (change := self._changes.pop(id, None)) is None:
                return
            (self._directory / f"{id}{_CHANGE}").unlink(missing_ok=True)
            # Not a look at the whole directory, which a token could have at each request that fails.
            if change.copy is not None and all(other.copy != change.copy for other in self._changes.values()):
                (self._directory / f"{change.copy}{_COPY}").unlink(missing_ok=True)

    def all(self) -> list[FileChange]:
        """Return all changes, the newest first."""
        with self._lock:
            self._opened()
            self._tidy()
            return sorted(self._changes.values(), key=lambda change: change.at, reverse=True)

    def get(self, id: str) -> FileChange | None:
        """Return the change ``id``, None if it is unknown."""
        return next((change for change in self.all() if change.id == id), None)

    def content(self, change: FileChange) -> bytes:
        """Return the content before a change that has a copy.

        :raises IntegrityError: the copy was removed or changed.
        """
        with self._lock:
            box = self._opened()
            try:
                return box.open((self._directory / f"{change.copy}{_COPY}").read_bytes())
            except OSError as error:
                raise IntegrityError(
                    f"The copy for the change {change.id} cannot be read: {error.strerror}."
                ) from error

    def _opened(self) -> Box:
        """Return the box; read the directory first, at the first use, so that a start does not wait for it."""
        if self._box is None:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            box = Box(self._key())
            for path in self._directory.glob("*" + _CHANGE):
                try:
                    change = _loaded(box.open(path.read_bytes()))
                except (IntegrityError, OSError, ValueError, TypeError, KeyError) as error:
                    logger.warning("%s is not a change that this vault has written: %s", path.name, error)
                    continue
                self._changes[change.id] = change
            self._box = box
            self._sweep()
        return self._box

    def _is_full(self, holder: str | None) -> bool:
        of_one, together = of_tokens(MAX_CHANGES)
        counts = Counter(change.holder for change in self._changes.values())
        of_all = sum(number for each, number in counts.items() if each is not None)
        if holder is None:
            return counts.total() >= MAX_CHANGES
        return counts[holder] >= of_one or of_all >= together

    def _store_copy(self, box: Box, holder: str | None, content: bytes) -> str:
        used = ((change.holder, change.before.size or 0) for change in self._changes.values() if change.copy)
        if room(self._total, holder, used) < len(content):
            raise NoRoomForCopyError("the room for copies is used up (max-undo), or the token's share of it")
        name = box.digest(content).hex()
        path = self._directory / f"{name}{_COPY}"
        try:
            if not path.exists():
                write_file(path, box.seal(content))
        except OSError as error:
            raise NoRoomForCopyError(f"the daemon cannot store a copy: {error.strerror}") from error
        return name

    def _update(self, change: FileChange) -> None:
        try:
            self._store(self._opened(), change)
        except OSError as error:
            # In memory it is known. After a restart it counts as not finished, and is not undone without force.
            logger.warning("A change of a file cannot be stored: %s", error.strerror)
            self._changes[change.id] = change

    def _store(self, box: Box, change: FileChange) -> None:
        # A path may be any bytes.
        text = json.dumps(asdict(change) | {"path": os.fsdecode(change.path)})
        write_file(self._directory / f"{change.id}{_CHANGE}", box.seal(text.encode()))
        self._changes[change.id] = change

    def _tidy(self) -> None:
        """Remove the changes that are too old."""
        if not self._days:
            return
        oldest = time.time() - self._days * DAY_SECONDS
        old = [id for id, change in self._changes.items() if change.at < oldest]
        for id in old:
            del self._changes[id]
            (self._directory / f"{id}{_CHANGE}").unlink(missing_ok=True)
        if old:
            self._sweep()

    def _sweep(self) -> None:
        """Remove the copies that no change has any more, and what a killed daemon left half written."""
        used: Collection[str] = {f"{change.copy}{_COPY}" for change in self._changes.values() if change.copy}
        for path in self._directory.iterdir():
            if path.suffix != _CHANGE and path.name not in used:
                path.unlink(missing_ok=True)


def newer(changes: Collection[FileChange], than: FileChange) -> Iterator[FileChange]:
    """Yield the changes of the same path that were made after ``than``, the newest first."""
    same = [
        change
        for change in changes
        if (change.connection, change.path) == (than.connection, than.path) and change.at > than.at
    ]
    yield from sorted(same, key=lambda change: change.at, reverse=True)


def _loaded(data: bytes) -> FileChange:
    body: dict[str, Any] = json.loads(data)
    after = body["after"]
    states = {"before": FileState(**body["before"]), "after": None if after is None else FileState(**after)}
    return FileChange(**(body | states | {"path": os.fsencode(body["path"]), "lineage": tuple(body["lineage"])}))
