"""Directories on their way: archives in the format tar that are read and sent in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode

from connmgr.client.transfer import Download

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


Archived = IO[bytes] | Iterator[bytes] | Download


def target_of(path: str, fields: Mapping[str, Any]) -> str:
    """Return the target of a request whose ``fields`` are its query; surrogates stand for bytes that are not UTF-8."""
    members = {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}
    return f"{path}?{urlencode(members, errors='surrogateescape')}"
