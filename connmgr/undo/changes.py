"""Keeping what a request is about to change in one file, and undoing such changes, on the remote host.

``keep`` surrounds an operation: it looks at the path, stores its state and content, lets the operation run, and notes
what it has made. ``undo`` does the reverse, by the same means, so that an undo can be undone, too. Both compare before
they write: a file that somebody else has changed meanwhile is left alone.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from connmgr import errors
from connmgr.errors import RequestError, TransferFailed
from connmgr.fs import files, remote
from connmgr.fs.files import NOTHING, FileAttributes
from connmgr.fs.remote import RemoteFileSystem
from connmgr.undo.store import ABSENT_FILE, ChangeStore, FileChange, FileState, newer

STEP_SECONDS = 60.0
"""How long a short program on the remote host may take."""

FACTS_BYTES = 4096 + 1
"""Most bytes of a real path and its NUL."""

SMALL_BYTES = 64 * 1024
"""A content up to this size does not count as large."""

SET_ID = 0o6000
"""The bits of a mode with which a program runs as the file's owner, or for its group."""

_KINDS = frozenset({"file", "large", "unreadable", "directory", "link", "other", "absent"})


@dataclass(frozen=True)
class Seen:
    """What is at a path: its state, its real path, and the content of a file if it was read.

    ``has_sums`` tells whether the remote host can compare a file by its SHA-256.
    """

    state: FileState
    path: bytes
    content: bytes | None = None
    why_not: str | None = None
    """Why the content of a file was not read."""

    has_sums: bool = True


def look(
    fs: RemoteFileSystem,
    path: bytes,
    limit: int,
    *,
    follow: bool = True,
    large: Callable[[], object] = lambda: None,
) -> Seen:
    """Return what is at ``path``, with the content of a file of at most ``limit`` bytes.

    If ``fs`` has a gate, it must allow writing to ``path``. ``large`` is called before a large content is in memory.
    """
    with fs.run(remote.STATE, [path, str(limit), "" if follow else "name"]) as exchange:
        words = exchange.answer().decode(errors="replace").split()
        data = bytearray()
        for piece in exchange.data():
            if not data and not (len(words) > 1 and words[1].isdigit() and int(words[1]) <= SMALL_BYTES):
                large()
            data += piece
            if len(data) > limit + FACTS_BYTES:
                raise TransferFailed("The file became larger while it was read.")
        if not exchange.succeeded():
            raise TransferFailed("The link broke while the file was read.")
    if len(data) > SMALL_BYTES + FACTS_BYTES:
        # It grew since its size was told.
        large()
    real, nul, content = bytes(data).partition(b"\0")
    del data
    if len(words) != 7 or words[0] not in _KINDS or not nul or not real.startswith(b"/"):
        raise TransferFailed("The remote host's description of the file is malformed.")
    kind, facts, has_sums = words[0], words[1:6], words[6] == "sums"
    size, uid, gid, modified = (int(facts[at]) if facts[at].isdigit() else None for at in (0, 2, 3, 4))
    mode = int(facts[1], 8) if facts[1].isdigit() and set(facts[1]) <= set("01234567") else None
    why_not = {"large": f"it has more than {limit} bytes (max-undo-file)", "unreadable": "its user may not read it"}
    state = FileState(
        "file" if kind in why_not else kind,
        len(content) if kind == "file" else size,
        hashlib.sha256(content).hexdigest() if kind == "file" else None,
        mode,
        uid,
        gid,
        modified,
    )
    return Seen(state, real, content if kind == "file" else None, why_not.get(kind), has_sums)


@dataclass(frozen=True)
class Changer:
    """Who changes files: a token, with its ancestors, or a client of the owner."""

    by: str
    token: str | None = None
    lineage: tuple[str, ...] = ()
    holder: str | None = None


@dataclass
class Keeping:
    """One change while it is made; the operation sets ``after``, unless that has to be looked up."""

    change: FileChange
    seen: Seen
    after: FileState | None = None
    dropped: bool = False

    @property
    def guard(self) -> str:
        """The SHA-256 that the file must have when it is written to, so that what is replaced is what was copied.

        :data:`NOTHING` if there must be no file, and empty if the remote host cannot compare.
        """
        if not self.seen.has_sums:
            return ""
        state = self.seen.state
        return NOTHING if state.kind == "absent" else (state.sha256 or "")


@dataclass(frozen=True)
class Keeper:
    """Keeps what requests of one ``changer`` change on one connection."""

    store: ChangeStore
    changer: Changer
    connection: str
    limit: int
    """Most bytes of a file of which a copy is kept."""

    digest: str | None = None
    """The digest of the connection and of all that it runs over, when its link was opened."""

    def large(self) -> AbstractContextManager[None]:
        """Have a large content in memory during the block (:meth:`ChangeStore.large`)."""
        return self.store.large(self.changer.holder, STEP_SECONDS)

    @contextmanager
    def keep(
        self,
        fs: RemoteFileSystem,
        path: bytes,
        action: str,
        *,
        follow: bool = True,
        why_not: Mapping[str, str] | None = None,
        undoes: str | None = None,
    ) -> Iterator[Keeping]:
        """Keep what is at ``path`` while the block changes it, and note the state afterwards; see :class:`Keeping`.

        ``why_not`` tells by kinds of files why nothing can be put back. If the block fails, the change is forgotten,
        unless it is unknown whether it was made.
        """
        with ExitStack() as copying:
            change, before = self._begun(fs, path, action, follow, why_not, undoes, copying)
        # The content is stored, and not kept in memory for as long as the operation takes.
        keeping = Keeping(change, replace(before, content=None))
        try:
            yield keeping
        except RequestError:
            # The remote host said that it did nothing. After any other failure the change may have been made.
            self.store.drop(change.id)
            raise
        if keeping.dropped:
            self.store.drop(change.id)
            return
        after = keeping.after
        if after is None:
            with ExitStack() as copying:
                after = look(
                    fs, before.path, self.limit, follow=follow, large=lambda: copying.enter_context(self.large())
                ).state
        self.store.finish(change.id, after)

    def _begun(
        self,
        fs: RemoteFileSystem,
        path: bytes,
        action: str,
        follow: bool,
        why_not: Mapping[str, str] | None,
        undoes: str | None,
        copying: ExitStack,
    ) -> tuple[FileChange, Seen]:
        before = look(fs, path, self.limit, follow=follow, large=lambda: copying.enter_context(self.large()))
        reason = (why_not or {}).get(before.state.kind) or before.why_not
        if reason is None and self.store.is_off:
            reason = "the daemon keeps no copies (max-undo)"
        change = self._change(before.path, action, before.state, reason, undoes)
        return self.store.begin(change, None if reason else before.content), before

    def note(self, path: bytes, action: str, before: FileState, after: FileState, content: bytes | None) -> str:
        """Keep a change that was made already, with the ``content`` before it; return its id."""
        reason = None
        if before.kind == "file" and content is None:
            reason = "its content was too large, or its user may not read it"
        change = self.store.begin(self._change(path, action, before, reason, None), content)
        self.store.finish(change.id, after)
        return change.id

    def _change(
        self, path: bytes, action: str, before: FileState, reason: str | None, undoes: str | None
    ) -> FileChange:
        return FileChange(
            id=str(uuid.uuid4()),
            at=time.time(),
            action=action,
            connection=self.connection,
            path=path,
            before=before,
            not_kept=reason,
            token=self.changer.token,
            by=self.changer.by,
            lineage=self.changer.lineage,
            holder=self.changer.holder,
            digest=self.digest,
            undoes=undoes,
        )


@dataclass(frozen=True)
class Undone:
    """What became of the undo of one change: its ``state``, why, and the change that it made itself."""

    change: FileChange
    state: str
    """``restored``, ``restorable`` in a dry run, ``unchanged``, ``changed_since``, ``not_kept`` or ``failed``."""

    message: str | None = None
    restored_as: str | None = None


@dataclass
class Undo:
    """Undoes changes, the newest first, each only if the file is still what the change made of it.

    In a dry run nothing is written; ``planned`` has the state in which its earlier undos would have left each path.
    """

    keeper: Keeper
    fs: RemoteFileSystem
    known: Collection[FileChange]
    """The changes that the caller may see, to tell who has changed a file since."""

    dry_run: bool = False
    force: bool = False
    planned: dict[bytes, FileState] = field(default_factory=dict)

    def undo(self, change: FileChange) -> Undone:
        """Undo one change; an error of the remote host is its outcome."""
        if change.not_kept is not None:
            return Undone(change, "not_kept", f"No copy was kept: {change.not_kept}.")
        if change.digest not in (None, self.keeper.digest) and (self.keeper.changer.token or not self.force):
            # What a token may not read must not be written to a machine that it has chosen since.
            return Undone(change, "changed_since", "The connection, or one that it runs over, was changed since.")
        try:
            with self.keeper.large():
                return self._undo(change)
        except errors.FileChanged as error:
            return Undone(change, "changed_since", error.message)
        except errors.ConnmgrError as error:
            return Undone(change, "failed", error.message)

    def _undo(self, change: FileChange) -> Undone:
        current = look(self.fs, change.path, self.keeper.limit, follow=False)
        if current.path != change.path:
            return Undone(change, "changed_since", "Its directory has become a link that leads elsewhere.")
        now = self.planned.get(change.path, current.state)
        if now.holds(change.before):
            return Undone(change, "unchanged", "It is as it was before.")
        if not self.force and (why := self._differs(change, now)):
            return Undone(change, "changed_since", why)
        if self.dry_run:
            self.planned[change.path] = change.before
            return Undone(change, "restorable")
        return Undone(change, "restored", restored_as=self._restore(change, current).id)

    def _differs(self, change: FileChange, now: FileState) -> str | None:
        """Return how the file differs from what the change made of it, and who was that; None if it does not."""
        if change.after is not None and now.holds(change.after):
            return None
        if change.after is None:
            return "The state in which the request left the file is unknown: the link or the daemon ended too early."
        others = [other for other in newer(self.known, change) if other.undoes != change.id]
        who = next((f"{other.by or 'a client'} at {_moment(other.at)}" for other in others), "somebody else")
        return f"Changed since by {who}: {_shown(now)} is there, not {_shown(change.after)}."

    def _restore(self, change: FileChange, current: Seen) -> FileChange:
        before, kind = change.before, current.state.kind
        if before.kind == "file" and kind in ("file", "absent"):
            same = before.sha256 is not None and current.state.sha256 == before.sha256
            # A set-id bit is put on a copy of the content, because others may have the file open for writing.
            if same and not (before.mode or 0) & SET_ID:
                return self._attributes(change, current)
            return self._write(change, current)
        if before.kind == kind == "directory":
            return self._attributes(change, current)
        with self._keep(change, current) as (fs, keeping):
            if before.kind == "absent":
                only = self._expected(change, current)
                files.remove(fs, change.path, recursive=False, timeout=STEP_SECONDS, only=only)
                keeping.after = ABSENT_FILE
            elif before.kind == "directory" and kind == "absent":
                files.make_directory(
                    fs, change.path, before.mode, parents=False, timeout=STEP_SECONDS, owner=_owner(before)
                )
            else:
                raise errors.WrongFileType(
                    f"Another kind of file is there now ({kind}, not {before.kind}); it was left as it is."
                )
        return keeping.change

    def _write(self, change: FileChange, current: Seen) -> FileChange:
        before, content = change.before, self.keeper.store.content(change)
        modified = None if before.modified is None else datetime.fromtimestamp(before.modified, timezone.utc)
        is_new = current.state.kind == "absent"
        mode = None if is_new or before.mode == current.state.mode else before.mode
        if mode is not None and self.fs.gate is not None:
            raise errors.PolicyDenied(
                f"Its mode was {before.mode:04o}, which a token with rules over paths cannot put back; the owner can."
            )
        with self._keep(change, current) as (fs, keeping):
            replaces = NOTHING if is_new else self._expected(change, current)
            guard = replaces if current.has_sums else ""
            attributes = FileAttributes(before.mode, modified, guard, _owner(before))
            files.put_back(fs, change.path, content, attributes, before.sha256 or "")
        return keeping.change

    def _expected(self, change: FileChange, current: Seen) -> str:
        """Return the SHA-256 of the one file that may be overwritten or removed; empty for any, if that is forced."""
        if current.state.kind != "file" or not current.has_sums:
            return ""
        after = None if change.after is None or self.force else change.after.sha256
        expected = current.state.sha256 or after or ""
        if not expected and not self.force:
            raise errors.FileChanged(f"It cannot be compared with what the request made of it: {current.why_not}.")
        return expected

    def _attributes(self, change: FileChange, current: Seen) -> FileChange:
        with self._keep(change, current) as (fs, keeping):
            self._change_attributes(fs, change, current)
        return keeping.change

    def _change_attributes(self, fs: RemoteFileSystem, change: FileChange, current: Seen) -> None:
        to, now = change.before, current.state
        owner, group = (
            None if id is None or id == there else str(id) for id, there in ((to.uid, now.uid), (to.gid, now.gid))
        )
        if to.mode is None and owner is None and group is None:
            return
        facts = "" if now.mode is None or now.uid is None else f"{now.mode:o} {now.uid} {now.gid}"
        files.change_attributes(
            fs,
            change.path,
            to.mode,
            owner,
            group,
            timeout=STEP_SECONDS,
            facts=facts,
            sha256=(now.sha256 or "") if current.has_sums else "",
        )

    @contextmanager
    def _keep(self, change: FileChange, current: Seen) -> Iterator[tuple[RemoteFileSystem, Keeping]]:
        """Keep what the undo of ``change`` replaces; raise FileChanged if that is not ``current`` any more.

        The file system that is yielded has no other path than this one. Whoever may write above it could otherwise
        have the rest of the undo done elsewhere, with the rights of the shell's user.
        """
        fs = replace(self.fs, pinned=change.path)
        with self.keeper.keep(fs, change.path, "undo.restore", follow=False, undoes=change.id) as keeping:
            # Its directory may have got another name since it was entered.
            if keeping.seen.path != change.path or not keeping.seen.state.holds(current.state):
                raise errors.FileChanged("The file changed while it was being put back; it was left as it is now.")
            yield fs, keeping


def _owner(state: FileState) -> str:
    """Return user and group for chown(1); empty if they are not known."""
    return "" if state.uid is None or state.gid is None else f"{state.uid}:{state.gid}"


def _shown(state: FileState) -> str:
    if state.kind != "file":
        return "nothing" if state.kind == "absent" else f"a {state.kind}"
    size = "a file" if state.size is None else f"a file of {state.size} bytes"
    digest = "" if state.sha256 is None else f" with SHA-256 {state.sha256[:12]}"
    return size + digest + ("" if state.mode is None else f", mode {state.mode:04o}")


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def written(keeping: Keeping, size: int, sha256: str) -> FileState:
    """Return the state of a file after such content was written to it: it kept its attributes, if it existed."""
    before = keeping.seen.state if keeping.seen.state.kind == "file" else FileState("file")
    return replace(before, size=size, sha256=sha256, modified=None)
