"""SHA-256 of many files of a remote host at once, computed there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import chain

from connmgr.contract.fs import ChecksumResponse
from connmgr.engine.rpc import STALL_SECONDS, Exchange
from connmgr.errors import InvalidRequest, TransferFailed
from connmgr.fs import remote
from connmgr.fs.archives import FILE, HARD_LINK, Archive, TarReader
from connmgr.fs.remote import DISK_BYTES_A_SECOND, LISTING_BYTES, RECORD_BYTES, ProgramRuns, RemoteFileSystem
from connmgr.plugin import Deadline

SIGN_SECONDS = 5.0
"""After so many seconds without a checksum, a blank is sent to the client, which shows whether it is still there."""

_SIZE = re.compile(rb" *([0-9]{1,18})\r?\n")
_SUM = re.compile(rb"([0-9a-f]{64}) [ *](?:\./)?(.+)", re.DOTALL)


class Checksums:
    """The checksums of the files in a directory, or of a single file; close it afterwards.

    ``members`` are the wanted paths in the directory, with everything below them; without them, all.
    """

    def __init__(self, fs: RemoteFileSystem, path: bytes, members: Sequence[bytes] = ()) -> None:
        """Begin to compute them.

        :raises InvalidRequest: one of ``members`` leads out of the directory.
        """
        self.count = 0
        names = [_below(name) for name in members]
        # With a gate the sums are computed here, from an archive: sha256sum and the like open a file by its name, which
        # may have become a link since the rule was checked.
        self._archive = Archive(fs, path, members) if fs.gate is not None else None
        self._runs = ProgramRuns(fs, remote.CHECKSUM, path, names) if self._archive is None else None

    def __iter__(self) -> Iterator[list[ChecksumResponse]]:
        """Yield the checksums in bursts, in any order, and an empty list if none came for a while.
        Links and unreadable files have none. Raises TransferFailed.
        """
        runs = [_archived(self._archive)] if self._archive else map(_checksums, self._runs or ())
        for burst in chain.from_iterable(runs):
            self.count += len(burst)
            yield burst

    def close(self) -> None:
        """End the remote program. Calling it again does nothing."""
        for source in (self._runs, self._archive):
            if source is not None:
                source.close()


def _archived(archive: Archive) -> Iterator[list[ChecksumResponse]]:
    """Yield the checksums of the files in ``archive``, computed here."""
    sums: dict[bytes, str] = {}
    reader, signed = TarReader(archive), Deadline(SIGN_SECONDS)
    for member in reader:
        digest = hashlib.sha256()
        for piece in reader.content():
            digest.update(piece)
            if signed.passed:
                signed = Deadline(SIGN_SECONDS)
                yield []
        name = member.name.removeprefix(b"./")
        if member.kind == FILE:
            sums[name] = digest.hexdigest()
        if member.kind in (FILE, HARD_LINK) and (sha256 := sums.get(member.target.removeprefix(b"./") or name)):
            yield [ChecksumResponse(name=name, sha256=sha256)]


def _checksums(exchange: Exchange) -> Iterator[list[ChecksumResponse]]:
    rest, total, deadline = b"", 0, Deadline(STALL_SECONDS)
    while True:
        while not deadline.passed and not exchange.arrives(SIGN_SECONDS):
            yield []
        # A remote host that sends nothing gets no extra time after the deadline.
        if not (piece := next(exchange.data(deadline.left()), b"")):
            break
        total += len(piece)
        *records, rest = (rest + piece).split(b"\0")
        if total > LISTING_BYTES or len(rest) > RECORD_BYTES:
            raise TransferFailed("The remote host sent more than the requested checksums.")
        burst = []
        for record in records:
            if match := _SUM.fullmatch(record):
                burst.append(ChecksumResponse(name=match[2], sha256=match[1].decode()))
                deadline = Deadline(STALL_SECONDS)
            elif size := _SIZE.fullmatch(record):
                deadline = Deadline(STALL_SECONDS + int(size[1]) / DISK_BYTES_A_SECOND)
            else:
                raise TransferFailed("The remote host sent a malformed line instead of a SHA-256.")
        if burst:
            yield burst
    if not exchange.succeeded() or rest != exchange.mark + b" end":
        raise TransferFailed("The link broke before all checksums had arrived.")


def _below(name: bytes) -> bytes:
    if name.startswith(b"/") or b".." in name.split(b"/"):
        raise InvalidRequest("members: a path must stay within the directory.")
    return b"./" + name
