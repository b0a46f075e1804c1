"""What commands change: the files at the paths that a token's rules name, looked at before a command and afterwards.

The daemon does not know what a command writes. Where rules over paths let its token write certain files, these are few
enough to look at: their states and checksums before and after tell which of them have changed meanwhile. Contents are
in memory while commands run; of a changed file the one before is then kept as any other (:mod:`connmgr.undo.store`).
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import NamedTuple

from connmgr.errors import ConnmgrError
from connmgr.fs import files
from connmgr.fs.checksums import Checksums
from connmgr.fs.remote import RemoteFileSystem
from connmgr.undo.changes import Keeper, look
from connmgr.undo.store import ABSENT_FILE, FileState

MAX_FILES = 200
"""Most files that are looked at for one command."""

MAX_BYTES = 16 << 20
"""Most bytes of these files together."""

ALL_BYTES = 64 << 20
"""Most bytes of contents in memory, of all commands; the oldest of whoever has the most make room."""

MAX_UNDER_WAY = 1000
"""Most snapshots of jobs under way, of all tokens; the oldest of whoever has the most makes room."""

Files = dict[bytes, FileState]


class TooMuchError(Exception):
    """There are too many files, or too large ones; the message says which."""


class _Name(NamedTuple):
    """Which content: by the machine that has told its SHA-256, since no machine must get what another one has."""

    connection: str
    digest: str | None
    sha256: str


class _Content(NamedTuple):
    """The content of a file, and whose command needs it."""

    holder: str | None
    data: bytes


@dataclass(frozen=True)
class Snapshot:
    """The files at ``roots`` before a command of a ``keeper``'s token."""

    keeper: Keeper
    roots: Sequence[bytes]
    action: str
    files: Files


class Snapshots:
    """The snapshots of jobs under way, and the contents of all. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._contents: OrderedDict[_Name, _Content] = OrderedDict()
        self._under_way: OrderedDict[str, Snapshot] = OrderedDict()

    def take(self, fs: RemoteFileSystem, keeper: Keeper, roots: Sequence[bytes], action: str) -> Snapshot:
        """Look at the files at ``roots``, and read each file whose content was not read before.

        :raises TooMuchError: they are too many, or too large together.
        """
        states = dict(_files(fs, roots, keeper))
        for path, state in states.items():
            if state.kind == "file" and state.sha256 is not None and self._content(_name(keeper, state.sha256)) is None:
                with ExitStack() as copying:
                    file = look(fs, path, keeper.limit, follow=False, large=_once(copying, keeper))
                    # It may have changed since, and counts as it is now.
                    states[path] = file.state
                    if file.content is not None and file.state.sha256 is not None:
                        name = _name(keeper, file.state.sha256)
                        self._remember(name, _Content(keeper.changer.holder, file.content))
        return Snapshot(keeper, roots, action, states)

    def settle(self, fs: RemoteFileSystem, snapshot: Snapshot) -> list[str]:
        """Keep what has changed since a snapshot, and return the ids of these changes.

        :raises TooMuchError: there are too many files now.
        """
        after = dict(_files(fs, snapshot.roots, snapshot.keeper))
        changed = []
        for path in sorted({*snapshot.files, *after}):
            before, now = snapshot.files.get(path, ABSENT_FILE), after.get(path, ABSENT_FILE)
            if not now.holds(before):
                keeper = snapshot.keeper
                content = None if before.sha256 is None else self._content(_name(keeper, before.sha256))
                changed.append(keeper.note(path, snapshot.action, before, now, content))
        return changed

    def begin(self, job: str, snapshot: Snapshot) -> None:
        """Hold the snapshot of a job until :meth:`ended`."""
        with self._lock:
            self._under_way[job] = snapshot
            if len(self._under_way) > MAX_UNDER_WAY:
                counts = Counter(one.keeper.changer.holder for one in self._under_way.values())
                # Of several with the same number the one that begins now.
                own = snapshot.keeper.changer.holder
                most = max(counts, key=lambda holder: (counts[holder], holder == own))
                oldest = next(job for job, one in self._under_way.items() if one.keeper.changer.holder == most)
                del self._under_way[oldest]

    def ended(self, job: str) -> Snapshot | None:
        """Return the snapshot of a job that has ended, once; None if there is none."""
        with self._lock:
            return self._under_way.pop(job, None)

    def _content(self, name: _Name) -> bytes | None:
        with self._lock:
            if name in self._contents:
                self._contents.move_to_end(name)
            content = self._contents.get(name)
            return None if content is None else content.data

    def _remember(self, name: _Name, content: _Content) -> None:
        with self._lock:
            self._contents[name] = content
            counts: Counter[str | None] = Counter()
            for each in self._contents.values():
                counts[each.holder] += len(each.data)
            while counts.total() > ALL_BYTES:
                most = max(counts, key=lambda holder: counts[holder])
                oldest = next(name for name, each in self._contents.items() if each.holder == most)
                counts[most] -= len(self._contents.pop(oldest).data)


def _name(keeper: Keeper, sha256: str) -> _Name:
    return _Name(keeper.connection, keeper.digest, sha256)


def _once(copying: ExitStack, keeper: Keeper) -> Callable[[], object]:
    """Return what :func:`look` calls before a large content is in memory, until ``copying`` ends."""
    return lambda: copying.enter_context(keeper.large())


def _files(fs: RemoteFileSystem, roots: Sequence[bytes], keeper: Keeper) -> Iterator[tuple[bytes, FileState]]:
    """Yield the files at ``roots``, each with its real path and state; links and directories are left out."""
    number = total = 0
    for root in roots:
        # Without its content, if it is a directory.
        with ExitStack() as copying:
            root_file = replace(look(fs, root, keeper.limit, follow=False, large=_once(copying, keeper)), content=None)
        if root_file.state.kind != "directory":
            yield root_file.path, root_file.state
            number, total = number + 1, total + (root_file.state.size or 0)
            continue
        entries = [entry for entry in files.list_directory(fs, root_file.path, recursive=True) if entry.type == "file"]
        number, total = number + len(entries), total + sum(entry.size for entry in entries)
        if number > MAX_FILES or total > MAX_BYTES:
            shown = root.decode(errors="replace")
            raise TooMuchError(f"below {shown} are more than {MAX_FILES} files, or {MAX_BYTES} bytes")
        sums: dict[bytes, str] = {}
        with closing(Checksums(fs, root_file.path)) as checksums:
            for burst in checksums:
                sums |= {entry.name: entry.sha256 for entry in burst}
        for entry in entries:
            modified = int(entry.modified.timestamp())
            state = FileState("file", entry.size, sums.get(entry.name), entry.mode, entry.uid, entry.gid, modified)
            yield b"/".join([root_file.path.rstrip(b"/"), entry.name]), state


def why_not_kept(error: Exception) -> str:
    """Return why what a command changed is not kept."""
    return error.message if isinstance(error, ConnmgrError) else str(error)
