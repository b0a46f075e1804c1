"""Transfers of directories: tar archives that are read and sent in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode

from connmgr.client.transfer import Download

TAR = "application/x-tar"

FAILED = "CONNMGR.failed"
"""The pax header of an archive's last directory ``./`` that lists unreadable files, one per line."""


class Failed(NamedTuple):
    """An entry that could not be moved to its place: its path in the archive, and the reason."""

    path: str
    message: str


class Extracted(NamedTuple):
    """The number of entries unpacked, without directories, and those that could not be moved to their place."""

    files: int
    bytes: int
    failed: tuple[Failed, ...]

    @classmethod
    def read(cls, answer: Mapping[str, Any], path_of: Callable[[Any], str]) -> Extracted:
        failed = tuple(Failed(path_of(one["path"]), one["message"]) for one in answer["failed"])
        return cls(answer["files"], answer["bytes"], failed)


Archived = IO[bytes] | Iterator[bytes] | Download


def target_of(path: str, fields: Mapping[str, Any]) -> str:
    """Return the URL's path with ``fields`` as query; surrogates stand for bytes that are not UTF-8."""
    members = {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}
    return f"{path}?{urlencode(members, errors='surrogateescape')}"
