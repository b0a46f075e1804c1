"""The audit trail: who did what to which machine, in files to which entries are only appended."""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from connmgr.errors import AuditUnavailable, ConnmgrError, IntegrityError, StartupError, VaultUnavailable
from connmgr.rights.chain import Chain
from connmgr.rights.trail_files import KEPT_FILES, drop_half_a_line, first_number, older, open_for_writing
from connmgr.rights.trail_query import text_of
from connmgr.rights.trail_resuming import RESUMED, Anchors, place_of, standing
from connmgr.vault.anchors import Anchor
from connmgr.vault.sqlite import sync_directory

logger = logging.getLogger("connmgr.audit")

MAX_BYTES = 16 * 1024 * 1024
"""Largest file; then the next one begins."""

ANCHOR_SECONDS = 1.0
"""The end of the trail is anchored in the vault this long after an entry."""

MAX_DROPPED = 1000
"""Most bytes of an incomplete line that are kept for the entry about it."""

_NOTHING_DONE = "The audit trail cannot be written, so nothing was done."

# Made once, because making an encoder takes longer than encoding.
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_COMMANDS = {"command", "argv"}
# Members of a request whose names are those of facts.
_MEMBERS = {"path": "file", "session": "shell", "id": "subject"}


class AuditTrail:
    """Appends entries to ``path``, one JSON object per line. Safe to use from several threads.

    ``mac`` is the keyed hash recorded in place of a command's text; with ``commands`` the text is recorded too.
    ``names`` returns the names of a request's subjects. Entries are numbered and chained, also across restarts. An
    entry that cannot be written is ``lost``: the log says so, and its number is missing in the trail. ``ship`` is
    called with each written entry.
    """

    def __init__(
        self,
        path: Path,
        chain: Chain,
        anchors: Anchors,
        mac: Callable[[bytes], bytes],
        *,
        commands: bool,
        names: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {},
        max_bytes: int = MAX_BYTES,
        ship: Callable[..., object] = lambda **_: None,
    ) -> None:
        """Open the trail, and anchor it.

        :raises connmgr.errors.StartupError: a file cannot be written, is not ours, or is open to others.
        """
        self.path, self.chain, self.anchors = path, chain, anchors
        self._mac, self._names, self._ship = mac, names, ship
        self._commands = commands
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._syncing, self._anchoring = threading.Lock(), threading.Lock()
        self._synced = 0
        self._failing = self._adrift = False
        self._closing, self._news = threading.Event(), threading.Event()
        self._place = place_of(path)
        self._first = 0
        self.lost = 0
        self._descriptor = open_for_writing(path)
        remarks = self._resume()
        # Before the first entry, because a trail without an anchor counts as tampered with.
        self.anchor()
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

    def anchor(self) -> None:
        """Store the end of the trail in the vault; if that fails, it is logged, and the next anchor replaces it."""
        # An earlier end must not be stored after a later one.
        with self._anchoring:
            self._news.clear()
            with self._lock:
                now, descriptor = self._now(), os.dup(self._descriptor)
            try:
                # An anchored entry must survive a power failure.
                os.fsync(descriptor)
                self.anchors.put(now)
                self._remove_oldest(now.first)
                self._adrift = False
            except (OSError, ConnmgrError) as error:
                if not self._adrift:
                    logger.warning("The end of the audit trail is not anchored in the vault: %s", error)
                self._adrift = True
                self._news.set()
            finally:
                os.close(descriptor)

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
        entry: dict[str, Any] = {"time": moment()}
        entry |= {name: value for name, value in facts.items() if value is not None and name != "method"}
        entry |= {_MEMBERS.get(name, name): _printable(about[name]) for name in about if name not in _COMMANDS}
        command = shlex.join(about["argv"]) if "argv" in about else about.get("command")
        if command is not None:
            text = command.encode()
            entry |= {"commandMac": self._mac(text).hex(), "commandBytes": len(text)}
            if self._commands:
                entry["command"] = command
        entry |= details
        return {**entry, **self._names(entry)}

    def _append(self, entry: Mapping[str, Any]) -> int:
        """Write an entry, ship it, and return its number.

        :raises AuditUnavailable: it could not be written; it was shipped all the same.
        """
        lost: Exception | None = None
        with self._lock:
            self._number += 1
            numbered: dict[str, Any] = {"seq": self._number, "previous": self._hash, **entry}
            try:
                self._write(numbered)
                self._failing = False
            except (OSError, StartupError) as error:
                lost = error
                self.lost += 1
                if not self._failing:
                    logger.error("The audit trail cannot be written, entries are lost: %s", error)  # noqa: TRY400
                self._failing = True
        if not self._news.is_set():
            self._news.set()
        try:
            self._ship(entry=numbered)
        except Exception:
            # A plugin may raise any exception; the trail itself is intact.
            logger.exception("A plugin failed to take note of entry %d.", numbered["seq"])
        if lost is not None:
            raise AuditUnavailable(_NOTHING_DONE) from lost
        return int(numbered["seq"])

    def _write(self, numbered: dict[str, Any]) -> None:
        line = _ENCODER.encode(numbered).encode() + b"\n"
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        if not self._size:
            # Each file names its trail.
            link = {"seq": numbered["seq"], "previous": numbered["previous"], "trail": self._trail}
            line = _ENCODER.encode({**link, **numbered}).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written < len(line):
            # An incomplete line must not stand before the next one.
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written
        self._last, self._hash = numbered["seq"], self.chain.hash(line)

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
        self._descriptor, self._size = fresh, os.fstat(fresh).st_size
        if older(self.path, KEPT_FILES).exists():
            self._first = max(self._first, first_number(older(self.path, KEPT_FILES - 1)))

    def _remove_oldest(self, first: int) -> None:
        """Remove the oldest file if it is one too many, and the vault knows that the trail now begins at ``first``."""
        surplus = older(self.path, KEPT_FILES)
        with self._lock:
            if first_number(surplus) < first:
                surplus.unlink(missing_ok=True)

    def _now(self) -> Anchor:
        return Anchor(self._trail, self._place, self._first, self._last, self._hash, moment())

    def _anchor_regularly(self) -> None:
        while self._news.wait() and not self._closing.wait(ANCHOR_SECONDS):
            self.anchor()

    def _resume(self) -> Mapping[str, Any]:
        """Continue at the end of the trail, or begin one; return remarks on its state."""
        dropped = drop_half_a_line(self._descriptor)
        remarks = {"dropped": dropped[:MAX_DROPPED].decode(errors="backslashreplace")} if dropped else {}
        self._size = os.fstat(self._descriptor).st_size
        found = standing(self.path, self._place, self.chain, self._known())
        self._trail, self._first, self._hash = found.trail, found.first, found.hash
        self._number = self._last = found.last
        if found.is_new and self._size:
            # The file has entries of an older version, without a chain.
            self._rotate()
        return {**remarks, **found.remarks}

    def _known(self) -> Mapping[str, Anchor]:
        try:
            return self.anchors.all()
        except (IntegrityError, VaultUnavailable) as error:
            logger.warning("How far the audit trail had come is not known: %s", error)
            return {}

    def _remark(self, remarks: Mapping[str, Any]) -> None:
        """Record the differences found at the start from the state that the last daemon left."""
        logger.warning("The audit trail is not as it was left; `connmgr audit verify` tells more.")
        # If this fails, the next start finds the same.
        with suppress(AuditUnavailable, VaultUnavailable):
            self._append({"time": moment(), "event": RESUMED, **remarks})
            for one in remarks.get("gone", ()):
                self.anchors.remove(one["trail"])


def moment() -> str:
    """Return the current time in the form of entries."""
    return text_of(datetime.now(timezone.utc))


def _printable(value: object) -> object:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
