"""The audit trail: who has done what to which machine, in a file that is only ever appended to."""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from connmgr.errors import StartupError

logger = logging.getLogger("connmgr.audit")

MAX_BYTES = 16 * 1024 * 1024
FILES = 8
"""Beyond so many bytes a file is put aside as ``audit.log.1``, and of those so many in all are kept."""

# Made once: making it takes longer than encoding.
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_COMMANDS = {"command", "argv"}
_MEMBERS = {"path": "file", "session": "shell"}
# Bytes at the end of a trail in which its last entry is looked for.
LAST_BYTES = 1024 * 1024


class AuditTrail:
    """Appends entries to ``path``, one JSON object a line. Safe to use from several threads.

    ``mac`` is the keyed hash that stands for a command's text; with ``commands`` the text is kept too. Entries are
    numbered without a gap, from one daemon to the next. One that cannot be written is ``lost``: the request is answered
    all the same, the log says so, and its number is missing from the trail. ``ship`` is given each entry afterwards.
    """

    def __init__(
        self,
        path: Path,
        mac: Callable[[bytes], bytes],
        *,
        commands: bool,
        max_bytes: int = MAX_BYTES,
        ship: Callable[..., object] = lambda **_: None,
    ) -> None:
        """Open the trail.

        :raises StartupError: the file cannot be written, is not ours, or is open to others.
        """
        self._path = path
        self._mac = mac
        self._commands = commands
        self._max_bytes = max_bytes
        self._ship = ship
        self._lock = threading.Lock()
        self._descriptor = _open(path)
        self._size = os.fstat(self._descriptor).st_size
        self._number = _last_number(path) or _last_number(_older(path, 1))
        self._failing = False
        self.lost = 0

    def record(self, facts: Mapping[str, Any], about: Mapping[str, Any], details: Mapping[str, Any]) -> None:
        """Append an entry on the request that ``facts`` tell of: what it was ``about``, and how it went."""
        moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        entry: dict[str, Any] = {"time": moment.replace("+00:00", "Z")}
        entry |= {name: value for name, value in facts.items() if value is not None and name != "method"}
        entry |= {_MEMBERS.get(name, name): _printable(about[name]) for name in about if name not in _COMMANDS}
        command = shlex.join(about["argv"]) if "argv" in about else about.get("command")
        if command is not None:
            text = command.encode()
            entry |= {"commandMac": self._mac(text).hex(), "commandBytes": len(text)}
            if self._commands:
                entry["command"] = command
        entry |= details
        with self._lock:
            self._number += 1
            numbered = {"seq": self._number, **entry}
            self._append(_ENCODER.encode(numbered).encode() + b"\n")
        try:
            self._ship(entry=numbered)
        except Exception:
            # A plugin may raise anything, and the trail itself is whole.
            logger.exception("A plugin failed to take note of entry %d.", numbered["seq"])

    def close(self) -> None:
        """Close the file; nothing can be recorded afterwards."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, line: bytes) -> None:
        try:
            if self._size + len(line) > self._max_bytes:
                self._rotate()
            self._write(line)
            self._failing = False
        except OSError as error:
            self.lost += 1
            if not self._failing:
                logger.error("The audit trail cannot be written, entries are lost: %s", error.strerror or error)  # noqa: TRY400
            self._failing = True

    def _write(self, line: bytes) -> None:
        written = os.write(self._descriptor, line)
        if written < len(line):
            # Half a line must not stand before the next one.
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def _rotate(self) -> None:
        for number in range(FILES - 1, 0, -1):
            with suppress(FileNotFoundError):
                (_older(self._path, number - 1) if number > 1 else self._path).replace(_older(self._path, number))
        fresh = _open(self._path)
        os.close(self._descriptor)
        self._descriptor, self._size = fresh, os.fstat(fresh).st_size


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise StartupError(f"The audit trail {path} cannot be written: {error.strerror}.") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise StartupError(f"The audit trail {path} must be a file of your own, closed to others: run chmod 600 {path}")
    return descriptor


def _last_number(path: Path) -> int:
    """Return the number of the last whole entry in ``path``, or 0."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError, KeyError, TypeError):
                return int(json.loads(line)["seq"])
    return 0


def _printable(value: object) -> object:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
