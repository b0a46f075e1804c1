"""Accepts host keys into connmgr's own known_hosts file, and removes them from any known_hosts file."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from connmgr.errors import ConnectTimeout, HostKeyUnknown
from connmgr.plugin import Deadline
from connmgr_ssh import local_file
from connmgr_ssh.known_hosts import Entry, HostKey, means_itself, parse_line, read

_PATTERN = frozenset("*?!")


class AcceptedKeys:
    """connmgr's own known_hosts file: keys accepted on first sight. Safe to use from several threads."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        # If two threads connect to a new host, only one may accept its key, and neither may lose the other's line.
        self._writing = threading.Lock()

    def accept(self, name: str, key: HostKey, deadline: Deadline) -> Entry | None:
        """Store ``key`` for ``name`` and return None, or return an entry that another thread stored for ``name``.

        :raises HostKeyUnknown: it cannot be stored, or ``name`` would not mean this host alone in known_hosts.
        :raises ConnectTimeout: another thread wrote until the deadline.
        """
        if not means_itself(name):
            raise HostKeyUnknown(
                f"The key of {name}, {key.fingerprint}, is not known, and cannot be kept: that name would be a "
                "pattern, a list or a mark in known_hosts. Give the host a plain name, or set hostKey.",
                fingerprint=key.fingerprint,
                hostKey=str(key),
            )
        if self.path is None:
            raise HostKeyUnknown(f"The key of {name}, {key.fingerprint}, is not known, and cannot be kept anywhere.")
        with self._alone(name, deadline):
            for entry in read([self.path]):
                if not entry.marker and entry.speaks_of(name):
                    return entry
            before = local_file.read(self.path)[0] if self.path.exists() else b""
            if before and not before.endswith(b"\n"):
                before += b"\n"
            _replace(self.path, before + f"{name} {key}\n".encode(), 0o600)
        return None

    def remove(self, name: str, entries: Sequence[Entry], deadline: Deadline) -> list[str]:
        """Remove the lines of ``entries``; return for each why it stays, ``""`` if gone, or raise ConnectTimeout."""
        with self._alone(name, deadline):
            refusals = {file: _without(file, entries) for file in {entry.file for entry in entries}}
        return [_why_kept(entry) or refusals[entry.file] for entry in entries]

    @contextmanager
    def _alone(self, name: str, deadline: Deadline) -> Iterator[None]:
        if not self._writing.acquire(timeout=deadline.left()):
            raise ConnectTimeout(f"The keys of {name} could not be written within {deadline.seconds:g} seconds.")
        try:
            yield
        finally:
            self._writing.release()


def _why_kept(entry: Entry) -> str:
    hashed = entry.hosts.startswith("|")
    return "the line is a pattern that speaks of other hosts too" if _PATTERN & set(entry.hosts) and not hashed else ""


def _without(file: Path, entries: Sequence[Entry]) -> str:
    """Remove the lines of ``entries`` from ``file``; return why they stay, ``""`` if they are gone.

    As with ``ssh-keygen -R``, whole lines go, and FILE.old keeps the former content. Only the user's own files change.
    """
    gone = {(entry.hosts, entry.key) for entry in entries if entry.file == file and not _why_kept(entry)}
    if not gone:
        return ""
    # The target of a symbolic link is replaced, not the link.
    path = file.resolve()
    try:
        content, status = local_file.read(path)
        if status.st_uid != os.getuid():
            return "the file belongs to another user"
        lines = content.splitlines(keepends=True)
        found = [parse_line(line.decode(errors="replace"), file, 0) for line in lines]
        left = [
            line
            for line, entry in zip(lines, found, strict=True)
            if entry is None or entry.marker or (entry.hosts, entry.key) not in gone
        ]
        mode = stat.S_IMODE(status.st_mode)
        _replace(path.with_name(path.name + ".old"), content, mode)
        _replace(path, b"".join(left), mode)
    except OSError as error:
        return f"the file cannot be written: {error.strerror}"
    return ""


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Replace the content of ``path``, atomically and durably."""
    descriptor, temporary = tempfile.mkstemp(prefix=".known_hosts.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
