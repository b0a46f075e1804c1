"""Copies directories to a connection, from one, or between two."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from connmgr.cli.cp.checksums import comparing
from connmgr.cli.cp.ledger import HERE, THERE, Ledger
from connmgr.cli.cp.pack import Changed, pack
from connmgr.cli.cp.places import Place, Remote
from connmgr.cli.cp.plan import DIRECTORY, FILE, LINK, Found, Plan, here, leads_out, of_entry, of_same_time, plan
from connmgr.cli.cp.unpack import Unpacker, path_in
from connmgr.client import Client, ClientError, Extracted, Progress, Unreachable
from connmgr.client.archives import FAILED

BATCH_BYTES = 64 << 20
BATCH_FILES = 5000
"""An archive ends after so many files or bytes; its files then get their names."""

UNEXPECTED_BYTES = 64 << 20
"""Bytes of files that were not asked for, which a connection may send."""

NOT_SENT = "It was not sent: it cannot be read, or is gone"

HOPELESS = {"no_such_directory", "permission_denied", "wrong_file_type", "no_space", "tar_missing", "no_shell"}
"""Codes of errors that the next archive would also run into."""


class Manner(NamedTuple):
    """How a directory is copied: ``keep`` keeps links and whole modes, ``excludes`` are left out.

    Existing files are compared by size and time, with ``checksum`` by SHA-256. Copies of local files lack the
    permissions of ``umask``.
    """

    keep: bool
    excludes: Sequence[str]
    checksum: bool
    umask: int


@dataclass
class Tree:
    """The copy of one directory."""

    client: Client
    ledger: Ledger
    manner: Manner
    progress: Progress | None

    def up(self, start: Path, end: Remote) -> None:
        """Copy a local directory into one of a connection, which is created if missing."""
        found, there = here(start, self.ledger), self._there(end, may_be_missing=True)
        self.send(start, self._plan(found, there, str(start), end), end)

    def send(self, start: Path, chosen: Plan, end: Remote) -> None:
        """Send the ``chosen`` files below ``start`` into a directory of a connection."""
        moved = self._mover(chosen)
        for batch in _batches([*chosen.directories, *chosen.links, *chosen.files]):
            if not self._send(start, batch, end, moved):
                return

    def down(self, start: Remote, end: Path) -> None:
        """Copy a directory of a connection into a local one, which is created if missing."""
        found = here(end, self.ledger) if end.is_dir() else []
        chosen = self._plan(self._there(start), found, start, str(end))
        self._receive(start, chosen, end)

    def across(self, start: Remote, end: Remote) -> None:
        """Copy a directory of a connection into one of another, which is created if missing."""
        chosen = self._plan(self._there(start), self._there(end, may_be_missing=True), start, end)
        if chosen.is_empty:
            return
        moved, asked = self._mover(chosen), [*chosen.files, *chosen.links]
        failed: set[str] = set()
        with self.client.clone() as reading:
            for members in chosen.requests:
                with reading.fs.archive(start.connection, start.directory, members, session=start.session) as archive:
                    done = self._extracted(end, _watched(iter(archive), moved))
                failed |= self._note(done, end)
        there = {one.path for one in self._there(end, may_be_missing=True)}
        for one in asked:
            if one.path not in there and not _is_in_any(one.path, failed):
                self.ledger.fail(THERE, start.named(one.path), NOT_SENT)
                failed.add(one.path)
        self._count(asked, failed)

    def _plan(self, source: Sequence[Found], target: Sequence[Found], start: Place, end: Place) -> Plan:
        equal = comparing(self.client, start, end) if self.manner.checksum else of_same_time
        return plan(source, target, self.manner.excludes, self.ledger, keep=self.manner.keep, equal=equal)

    def _there(self, place: Remote, *, may_be_missing: bool = False) -> list[Found]:
        try:
            found = self.client.fs.list(place.connection, place.directory, recursive=True, session=place.session)
        except ClientError as error:
            if may_be_missing and error.code == "no_such_file":
                return []
            raise
        if any(leads_out(one.name) for one in found):
            raise ClientError(f"{place} lists files that are not in it.", "transfer_failed", 0)
        return [of_entry(one) for one in found]

    def _mover(self, chosen: Plan) -> Callable[[int], None]:
        """Return the function that is called with the number of bytes as they move."""
        total, done = chosen.bytes, 0

        def moved(size: int) -> None:
            nonlocal done
            done += size
            if self.progress is not None:
                self.progress(done, max(total, done))

        return moved

    def _send(self, start: Path, batch: list[Found], end: Remote, moved: Callable[[int], None]) -> bool:
        """Send an archive; return whether the next one may succeed."""
        while batch:
            sent: list[Found] = []
            try:
                done = self._extracted(end, pack(start, batch, self.ledger, sent, moved))
            except Changed as changed:
                self.ledger.fail(HERE, start / changed.found.path, "It became shorter while it was read")
                batch = [one for one in batch if one.path != changed.found.path]
                continue
            except ClientError as error:
                if isinstance(error, Unreachable):
                    raise
                names = ", ".join(one.path for one in batch[:3])
                self.ledger.fail(THERE, end, f"{error.message} Not there: {names}{', …' * (len(batch) > 3)}")
                return error.code not in HOPELESS
            self._count([one for one in sent if one.kind != DIRECTORY], self._note(done, end))
            break
        return True

    def _extracted(self, end: Remote, pieces: Iterator[bytes]) -> Extracted:
        return self.client.fs.extract(
            end.connection, pieces, end.directory, exact=self.manner.keep, session=end.session
        )

    def _note(self, done: Extracted, end: Remote) -> set[str]:
        """Record the members of an archive that could not be put in place, and return their paths."""
        for failed in done.failed:
            self.ledger.fail(THERE, end.named(failed.path), failed.message)
        return {failed.path for failed in done.failed}

    def _count(self, sent: Sequence[Found], failed: set[str]) -> None:
        arrived = [one for one in sent if not _is_in_any(one.path, failed)]
        self.ledger.files += len(arrived)
        self.ledger.bytes += sum(one.size for one in arrived if one.kind == FILE)

    def _receive(self, start: Remote, chosen: Plan, end: Path) -> None:
        unpacker, moved = Unpacker(end, self.manner.umask), self._mover(chosen)
        expected, complaints = {one.path: one for one in (*chosen.files, *chosen.links)}, list[str]()
        try:
            for one in chosen.directories:
                self._try(end, one, lambda one=one: unpacker.directory(one))  # type: ignore[misc]
            for members in chosen.requests if expected else ():
                with self.client.fs.archive(
                    start.connection, start.directory, members, session=start.session
                ) as archive:
                    complaints += self._unpack(archive, expected, end, unpacker, moved)
        finally:
            unpacker.close(times=self.manner.keep)
        for line in complaints:
            self.ledger.fail(THERE, start, line.removeprefix("tar: "))
        for path in () if complaints else expected:
            self.ledger.fail(THERE, start.named(path), NOT_SENT)

    def _unpack(
        self, archive: object, expected: dict[str, Found], end: Path, unpacker: Unpacker, moved: Callable[[int], None]
    ) -> list[str]:
        """Unpack, removing what arrives from ``expected``; return the far side's messages about unreadable files."""
        unexpected, complaints = 0, list[str]()
        with tarfile.open(fileobj=archive, mode="r|", encoding="utf-8", errors="surrogateescape") as members:  # type: ignore[call-overload]
            for member in members:
                complaints += member.pax_headers.get(FAILED, "").splitlines()
                one = expected.pop(path_in(member), None)
                if one is None:
                    unexpected += member.size
                    if unexpected > UNEXPECTED_BYTES:
                        raise ClientError("The connection sends files that nobody asked for.", "transfer_failed", 0)
                elif self._try(end, one, lambda m=member, one=one: _unpacked(unpacker, members, m, one, moved)):  # type: ignore[misc]
                    self.ledger.files += 1
                    self.ledger.bytes += member.size
                members.members.clear()
        return complaints

    def _try(self, end: Path, one: Found, work: Callable[[], None]) -> bool:
        try:
            work()
        except OSError as error:
            self.ledger.fail(HERE, end / one.path, error.strerror or str(error))
            return False
        return True


def _unpacked(
    unpacker: Unpacker, members: tarfile.TarFile, member: tarfile.TarInfo, one: Found, moved: Callable[[int], None]
) -> None:
    modes = one._replace(mode=member.mode, modified=int(member.mtime))
    if member.islnk():
        unpacker.again(modes, member.linkname.removeprefix("./"))
    elif member.issym():
        if one.kind == LINK:
            unpacker.link(modes, member.linkname)
    else:
        content = members.extractfile(member)
        if content is None:
            raise OSError(0, "It is a file no more")
        unpacker.file(modes, content, moved)


def _batches(entries: Sequence[Found]) -> Iterator[list[Found]]:
    batch: list[Found] = []
    size = files = 0
    for one in entries:
        if batch and (size >= BATCH_BYTES or files >= BATCH_FILES):
            yield batch
            batch, size, files = [], 0, 0
        batch.append(one)
        size += one.size if one.kind == FILE else 0
        files += one.kind != DIRECTORY
    if batch:
        yield batch


def _is_in_any(path: str, trees: set[str]) -> bool:
    if not trees:
        return False
    parts = path.split("/")
    return any("/".join(parts[:count]) in trees for count in range(1, len(parts) + 1))


def _watched(pieces: Iterator[bytes], moved: Callable[[int], None]) -> Iterator[bytes]:
    for piece in pieces:
        moved(len(piece))
        yield piece
