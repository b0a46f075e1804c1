"""Directories on their way: archives in the format tar that are read and sent in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode

from connmgr.client.errors import Unreachable
from connmgr.client.wire import Response, WireError

PIECE_BYTES = 256 * 1024
TAR = "application/x-tar"

FAILED = "CONNMGR.failed"
"""The pax header of an archive's last directory ``./`` that tells what could not be read, a line each."""


class Failed(NamedTuple):
    """What could not be put in its place: its path in the archive, and why."""

    path: str
    message: str


class Extracted(NamedTuple):
    """What an archive held, directories left out, and what of it could not be put in its place."""

    files: int
    bytes: int
    failed: tuple[Failed, ...]

    @classmethod
    def read(cls, answer: Mapping[str, Any], path_of: Callable[[Any], str]) -> Extracted:
        failed = tuple(Failed(path_of(one["path"]), one["message"]) for one in answer["failed"])
        return cls(answer["files"], answer["bytes"], failed)


class ArchiveDownload:
    """An archive that is being read: a file for :mod:`tarfile`, opened with ``mode="r|"``.

    It occupies the client's connection until it is closed, as a context manager does.
    """

    def __init__(self, response: Response, close: Callable[[], None]) -> None:
        self._response = response
        self._close = close

    def __enter__(self) -> ArchiveDownload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the archive in pieces; raise :class:`Unreachable` where it breaks off."""
        while piece := self.read(PIECE_BYTES):
            yield piece

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes, none at the end.

        :raises Unreachable: the archive broke off.
        """
        try:
            return self._response.read1(size)
        except (OSError, WireError) as error:
            raise Unreachable("The archive broke off before its end.", sent=True) from error

    def close(self) -> None:
        """Release the connection, and give up what was not read."""
        self._close()
        self._response.close()


Archived = IO[bytes] | Iterator[bytes] | ArchiveDownload


def target_of(path: str, fields: Mapping[str, Any]) -> str:
    """Return the target of a request whose ``fields`` are its query; surrogates stand for bytes that are not UTF-8."""
    members = {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}
    return f"{path}?{urlencode(members, errors='surrogateescape')}"
