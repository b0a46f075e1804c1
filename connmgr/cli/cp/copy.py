"""One run of ``connmgr cp``: copies each source to its place."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from connmgr.cli.cp import single
from connmgr.cli.cp.ledger import HERE, THERE, Ledger
from connmgr.cli.cp.places import STREAM, Place, Remote, own_name, within
from connmgr.cli.exits import Failure
from connmgr.client import Client, ClientError, Progress, Unreachable


class Options(NamedTuple):
    """The options of the command: ``recursive`` copies directories, ``keep`` keeps links and modes.

    With ``checksum`` equal files are found by their content. ``umask`` removes permissions from copies of local files.
    """

    recursive: bool
    keep: bool
    excludes: tuple[str, ...]
    mode: int | None
    checksum: bool
    umask: int


class Copy:
    """Copies by one client, and records the results in ``ledger``."""

    def __init__(self, client: Client, options: Options, progress: Progress | None) -> None:
        self.ledger = Ledger()
        self.has_trees = False
        self._client = client
        self._options = options
        self._progress = progress

    def run(self, sources: Sequence[Place], end: Place) -> None:
        """Copy all of ``sources`` to ``end``. If one of several fails, this is recorded, and the others are copied.

        :raises Failure: the only source failed, or ``end`` is not a directory although there are several.
        """
        into = len(sources) > 1
        if into and not self._is_directory(end):
            raise Failure(f"{end} is not a directory; copying several files needs one.")
        for start in sources:
            if len(sources) == 1:
                self._one(start, end, into=into)
                continue
            try:
                self._one(start, end, into=into)
            except Unreachable:
                raise
            except (ClientError, Failure) as error:
                side = THERE if isinstance(start, Remote) else HERE
                self.ledger.fail(side, start, error.message)

    def _one(self, start: Place, end: Place, *, into: bool) -> None:
        if not isinstance(start, Remote) and not isinstance(end, Remote):
            raise click.UsageError("One of the two must be a file of a connection, CONNECTION:path.")
        if self._is_tree(start):
            self._tree(start, end, into=into)
        else:
            target = within(end, own_name(start)) if into else end
            if self._options.checksum and self._is_there(start, target):
                self.ledger.equal += 1
                return
            manner = single.Manner(self._options.mode, self._options.keep, self._options.recursive, self._options.umask)
            size = single.copy(self._client, start, target, manner, self._progress)
            self.ledger.files += 1
            self.ledger.bytes += size

    def _is_tree(self, place: Place) -> bool:
        if not isinstance(place, Remote):
            is_directory = place != STREAM and Path(place).expanduser().is_dir()
        else:
            is_directory = self._options.recursive and single.stat_of(self._client, place).type == "directory"
        if is_directory and not self._options.recursive:
            raise Failure(f"{place} is a directory; -r copies directories.")
        return is_directory

    def _is_there(self, start: Place, end: Place) -> bool:
        """Whether ``end``, or the file of the same name in the directory ``end``, has the content of ``start``."""
        if STREAM in (start, end):
            return False
        both = start, within(end, own_name(start)) if self._is_directory(end) else end
        sizes = [self._size(place) for place in both]
        if None in sizes or sizes[0] != sizes[1]:
            return False
        from connmgr.cli.cp.checksums import of_file

        first, second = (of_file(self._client, place) for place in both)
        return first is not None and first == second

    def _size(self, place: Place) -> int | None:
        """Return the size of a file in bytes, None if it is missing or no regular file."""
        try:
            if isinstance(place, Remote):
                entry = single.stat_of(self._client, place)
                return entry.size if entry.type == "file" else None
            status = Path(place).expanduser().stat()
            return status.st_size if stat.S_ISREG(status.st_mode) else None
        except OSError:
            return None
        except ClientError as error:
            if error.code != "no_such_file":
                raise
            return None

    def _tree(self, start: Place, end: Place, *, into: bool) -> None:
        if end == STREAM:
            raise click.UsageError("Standard output takes single files; a directory needs one to go to.")
        # It imports the readers of archives, which takes longer than copying a single file.
        from connmgr.cli.cp.tree import Manner, Tree

        self.has_trees = True
        target = within(end, own_name(start)) if into or self._is_directory(end) else end
        options = self._options
        manner = Manner(options.keep, options.excludes, options.checksum, options.umask)
        tree = Tree(self._client, self.ledger, manner, self._progress)
        try:
            if isinstance(start, str) and isinstance(target, Remote):
                tree.up(Path(start).expanduser(), target)
            elif isinstance(start, Remote) and isinstance(target, str):
                tree.down(start, Path(target).expanduser())
            elif isinstance(start, Remote) and isinstance(target, Remote):
                tree.across(start, target)
        except OSError as error:
            raise Failure(f"{error.filename or target}: {error.strerror}") from error

    def _is_directory(self, place: Place) -> bool:
        if not isinstance(place, Remote):
            return place != STREAM and Path(place).expanduser().is_dir()
        if not place.path:
            return True
        try:
            return single.stat_of(self._client, place).type == "directory"
        except ClientError as error:
            if error.code != "no_such_file":
                raise
            return False
