"""One run of ``connmgr cp``: each source is planned, transferred and reported. A single file is a tree of one.

A file passes as it is, so that its size has no limit and its machine needs no tar; a directory passes as archives.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from connmgr.cli.copy.plan import (
    DIRECTORY,
    HERE,
    REQUEST_PATHS,
    STREAM,
    THERE,
    CopyOperand,
    CopyOptions,
    CopyPlan,
    CopyReport,
    Equal,
    Pairs,
    RemotePath,
    TreeEntry,
    leads_out,
    of_entry,
    of_same_time,
    own_name,
    plan,
    within,
)
from connmgr.client import Client, ClientError, Download, Progress, Unreachable

_PLACE = "place"
"""The member of an error's details that is the name of a connection."""


class Copy:
    """Copies by one client, and records the results in ``report``."""

    def __init__(self, client: Client, options: CopyOptions, progress: Progress | None) -> None:
        self.report = CopyReport()
        self.has_trees = False
        self._client = client
        self._options = options
        self._progress = progress

    def run(self, sources: Sequence[CopyOperand], end: CopyOperand) -> None:
        """Copy all of ``sources`` to ``end``. If one of several fails, this is recorded, and the others are copied.

        :raises Failure: the only source failed, or ``end`` is not a directory although there are several.
        """
        if len(sources) == 1:
            self._copy(sources[0], end, has_name=False)
            return
        from connmgr.cli.exits import Failure

        if not self._is_directory(end):
            raise failure(f"{end} is not a directory; copying several files needs one.")
        for start in sources:
            try:
                self._copy(start, within(end, own_name(start)), has_name=True)
            except Unreachable:
                raise
            except (ClientError, Failure) as error:
                self.report.fail(THERE if isinstance(start, RemotePath) else HERE, start, error.message)

    def _copy(self, start: CopyOperand, end: CopyOperand, *, has_name: bool) -> None:
        """Copy a source to ``end``; a directory goes into an existing one, unless ``end`` ``has_name`` of the copy."""
        if not isinstance(start, RemotePath) and not isinstance(end, RemotePath):
            raise misuse("One of the two must be a file of a connection, CONNECTION:path.")
        source = self._source(start, end)
        if source is None or source.kind != DIRECTORY:
            self._copy_file(start, source, end)
            return
        if end == STREAM:
            raise misuse("A directory cannot be copied to standard output: name a directory as TARGET.")
        self._copy_directory(start, end if has_name or not self._is_directory(end) else within(end, own_name(start)))

    def _source(self, start: CopyOperand, end: CopyOperand) -> TreeEntry | None:
        """Describe a source; None for standard input, and for what goes to standard output as it is.

        :raises Failure: it is a directory, and directories are not copied; or it is on this machine, and missing.
        """
        if start == STREAM or (end == STREAM and not self._options.recursive):
            return None
        if isinstance(start, RemotePath):
            source = self._stat(start)
        else:
            from connmgr.cli.copy.local import of_status

            try:
                source = of_status("", Path(start).expanduser().stat())
            except OSError as error:
                raise failure(f"{start}: {error.strerror}") from error
        if source.kind == DIRECTORY and not self._options.recursive:
            raise failure(f"{start} is a directory; -r copies directories.")
        return source

    def _copy_file(self, start: CopyOperand, source: TreeEntry | None, end: CopyOperand) -> None:
        end, there = self._target(start, end)
        if source is not None and self._plan(start, [source], end, there, equal=lambda _: ()).is_empty:
            return
        size = self._transfer(start, source, end)
        self.report.files += 1
        self.report.bytes += size

    def _target(self, start: CopyOperand, end: CopyOperand) -> tuple[CopyOperand, list[TreeEntry]]:
        """Return where a file goes, ``end`` or a path in the directory ``end``, and the entry there to compare with."""
        there = None if end == STREAM else self._existing(end)
        if (there is not None and there.kind == DIRECTORY) or (isinstance(end, RemotePath) and end.is_directory):
            if start == STREAM:
                raise misuse("Standard input has no file name: name the file in TARGET.")
            end = within(end, own_name(start))
            there = self._existing(end) if self._options.checksum else None
        return end, [] if there is None else [there]

    def _transfer(self, start: CopyOperand, source: TreeEntry | None, end: CopyOperand) -> int:
        """Pass one file from ``start`` to ``end``, of which at least one is remote, and return its size in bytes.

        :raises Failure: reading or writing the local file failed.
        """
        if isinstance(start, RemotePath):
            if not isinstance(end, RemotePath):
                return self._download(start, source, end)
            # Two connections to the daemon: one reads while the other writes.
            with (
                self._client.clone() as reading,
                _naming(start),
                reading.fs.open(start.connection, start.path, session=start.session) as content,
            ):
                return self._upload(content, source, end)
        assert isinstance(end, RemotePath), "_copy refuses two local operands"  # noqa: S101
        try:
            if start == STREAM:
                return self._upload(sys.stdin.buffer, source, end)
            with Path(start).expanduser().open("rb") as file:
                return self._upload(file, source, end)
        except OSError as error:
            raise failure(f"{start}: {error.strerror}") from error

    def _upload(self, content: IO[bytes] | Download, source: TreeEntry | None, end: RemotePath) -> int:
        mode, modified = self._options.mode, None
        if source is not None:
            mode = source.mode & 0o777 if mode is None else mode
            modified = datetime.fromtimestamp(source.modified, timezone.utc) if self._options.recursive else None
        with _naming(end):
            return self._client.fs.upload(
                end.connection,
                content,
                end.path,
                mode=mode,
                modified=modified,
                progress=self._progress,
                session=end.session,
            )

    def _download(self, start: RemotePath, source: TreeEntry | None, end: str) -> int:
        if source is None or end == STREAM:
            return self._receive(start, sys.stdout.buffer)
        from connmgr.cli.copy.local import replacing

        options, target = self._options, Path(end).expanduser()
        mode = source.mode & 0o777 & ~options.umask if options.mode is None else options.mode
        modified = source.modified if options.recursive else None
        try:
            with replacing(target, mode, keeps_mode=not options.keep, modified=modified) as file:
                return self._receive(start, file)
        except OSError as error:
            raise failure(f"{target}: {error.strerror}") from error

    def _receive(self, start: RemotePath, file: IO[bytes]) -> int:
        with _naming(start):
            size = self._client.fs.download(start.connection, start.path, file, self._progress, session=start.session)
        file.flush()
        return size

    def _copy_directory(self, start: CopyOperand, end: CopyOperand) -> None:
        # It imports the readers of archives, which takes longer than copying a single file.
        from connmgr.cli.copy.archives import Archives

        self.has_trees = True
        try:
            source, target = self._listing(start), self._listing(end, may_be_missing=True)
            copy_plan = self._plan(start, source, end, target, equal=of_same_time)
            archives = Archives(self._client, self._options, self.report, self._progress)
            if not isinstance(start, RemotePath):
                assert isinstance(end, RemotePath), "_copy refuses two local operands"  # noqa: S101
                archives.send(Path(start).expanduser(), copy_plan, end)
            elif isinstance(end, RemotePath):
                archives.relay(start, copy_plan, end, lambda: self._listing(end, may_be_missing=True))
            else:
                archives.receive(start, copy_plan, Path(end).expanduser())
        except OSError as error:
            raise failure(f"{error.filename or end}: {error.strerror}") from error

    def _plan(
        self,
        start: CopyOperand,
        source: Sequence[TreeEntry],
        end: CopyOperand,
        target: Sequence[TreeEntry],
        *,
        equal: Equal,
    ) -> CopyPlan:
        """Return what to copy; with --checksum the content decides which files are equal, otherwise ``equal``."""
        options = self._options
        same = self._comparing(start, end) if options.checksum else equal
        return plan(source, target, options.excludes, self.report, keep=options.keep, equal=same)

    def _comparing(self, start: CopyOperand, end: CopyOperand) -> Equal:
        """Return a function that finds equal files by their SHA-256, which each side computes for itself.

        A file that cannot be read is equal to no other.
        """

        def equal(pairs: Pairs) -> set[str]:
            paths = [entry.path for entry, _ in pairs if entry.size]
            first, second = (self._checksums(operand, paths) if paths else {} for operand in (start, end))
            return {
                entry.path
                for entry, _ in pairs
                if not entry.size or first.get(entry.path, "") == second.get(entry.path)
            }

        return equal

    def _checksums(self, operand: CopyOperand, paths: Sequence[str]) -> dict[str, str]:
        """Return the SHA-256 of the files ``paths`` below an operand, of the operand itself for the empty path."""
        if not isinstance(operand, RemotePath):
            from connmgr.cli.copy.local import checksums

            return checksums(Path(operand).expanduser(), paths)
        if paths == [""]:
            of_file = self._client.fs.checksum(operand.connection, operand.path, session=operand.session)
            return dict(zip(paths, of_file.values(), strict=False))
        digests: dict[str, str] = {}
        for start in range(0, len(paths), REQUEST_PATHS):
            some = paths[start : start + REQUEST_PATHS]
            digests |= self._client.fs.checksum(operand.connection, operand.directory, some, session=operand.session)
        return digests

    def _listing(self, operand: CopyOperand, *, may_be_missing: bool = False) -> list[TreeEntry]:
        """Return all that is below a directory; nothing if it is missing and may be."""
        if not isinstance(operand, RemotePath):
            from connmgr.cli.copy.local import listing

            root = Path(operand).expanduser()
            return [] if may_be_missing and not root.is_dir() else listing(root, self.report)
        try:
            entries = self._client.fs.list(
                operand.connection, operand.directory, recursive=True, session=operand.session
            )
        except ClientError as error:
            if not may_be_missing or error.code != "no_such_file":
                raise
            return []
        # What a machine says is in its directory decides where files are written here.
        if any(leads_out(entry.name) for entry in entries):
            raise ClientError(
                f"{operand}: the machine listed files outside of this directory; nothing was copied from it.",
                "transfer_failed",
                0,
            )
        return [of_entry(entry) for entry in entries]

    def _is_directory(self, operand: CopyOperand) -> bool:
        there = None if operand == STREAM else self._existing(operand)
        return there is not None and there.kind == DIRECTORY

    def _existing(self, operand: CopyOperand) -> TreeEntry | None:
        """Describe what an operand names, None if it is missing."""
        try:
            if isinstance(operand, RemotePath):
                # The empty path is the shell's directory, which exists.
                return self._stat(operand) if operand.path else TreeEntry("", DIRECTORY, 0, 0, 0.0)
            from connmgr.cli.copy.local import of_status

            return of_status("", Path(operand).expanduser().stat())
        except OSError:
            return None
        except ClientError as error:
            if error.code != "no_such_file":
                raise
            return None

    def _stat(self, operand: RemotePath) -> TreeEntry:
        with _naming(operand):
            entry = self._client.fs.stat(operand.connection, operand.directory, session=operand.session)
        return of_entry(entry)._replace(path="")


def failure(message: str) -> Exception:
    """Return the failure with this ``message``; loading the command line takes longer than copying a small file."""
    from connmgr.cli.exits import Failure

    return Failure(message)


def misuse(message: str) -> Exception:
    """Return the refusal of a command line, which is loaded for it as for :func:`failure`."""
    import click

    return click.UsageError(message)


@contextlib.contextmanager
def _naming(operand: RemotePath) -> Iterator[None]:
    """Note in an error about a file which connection the file is on, unless the error comes from another one."""
    try:
        yield
    except ClientError as error:
        error.details.setdefault(_PLACE, operand.name)
        raise


@contextlib.contextmanager
def locating() -> Iterator[None]:
    """Put the connection before the path that the message of an error begins with.

    Not with --all, whose messages stand below the names of connections, equal ones once.
    """
    try:
        yield
    except ClientError as error:
        name = error.details.pop(_PLACE, None)
        if name is None or not error.message.startswith("/"):
            raise
        message = f"{name}:{error.message}"
        raise ClientError(message, error.code, error.status, error.details, error.retry_after) from error
