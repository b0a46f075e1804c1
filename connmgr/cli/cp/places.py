"""What the operands of ``connmgr cp`` name: files of this machine, and files of connections."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import click
from click.shell_completion import CompletionItem

from connmgr.cli.address import reach
from connmgr.cli.names import ConnectionName
from connmgr.cli.outcome import ensure_shell
from connmgr.cli.output import visible
from connmgr.client import Client

STREAM = "-"
WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class Remote:
    """A path on a connection; the empty path is the shell's directory."""

    connection: str
    path: str
    session: str | None
    name: str = ""
    """What the connection is called, for messages."""

    def named(self, name: str) -> Remote:
        """Return the path of ``name`` within this one."""
        return replace(self, path=f"{self.path.rstrip('/')}/{name}" if self.path else name)

    @property
    def is_directory(self) -> bool:
        """Whether it can only be a directory."""
        return not self.path or self.path.endswith("/")

    @property
    def own_name(self) -> str:
        """The last name in the path; none where the path says only what it holds, as ``dir/.`` does."""
        return "" if self.path.endswith(("/.", "/..")) or self.path in (".", "..", "~") else Path(self.path).name

    @property
    def directory(self) -> str:
        """The path for requests on a directory."""
        return self.path or "."

    @property
    def has_wildcards(self) -> bool:
        return bool(WILDCARDS & set(self.path))

    def __str__(self) -> str:
        return visible(f"{self.name}:{self.path}")


Place = Remote | str
"""A file of a connection, or the path of one of this machine, or ``-``."""


class CopyPath(ConnectionName):
    """A local path, ``CONNECTION:path``, or ``-``."""

    name = "path"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        files = [CompletionItem(incomplete, type="file")]
        if is_local(incomplete):
            return files
        return [CompletionItem(f"{item.value}:") for item in super().shell_complete(ctx, param, incomplete)] or files


def is_local(text: str) -> bool:
    """Whether ``text`` is a path of this machine whatever else it holds."""
    return text == STREAM or text.startswith(("/", ".", "~"))


def place_of(client: Client, text: str, session: str | None) -> Place:
    """Return what ``text`` names; the shell of a connection is started if it does not run."""
    if is_local(text) or ":" not in text:
        return text
    name, _, path = text.partition(":")
    id = reach(client, name)
    ensure_shell(client, id, session, name)
    return Remote(id, path, session, name)


def within(place: Place, name: str) -> Place:
    """Return the place of ``name`` in a directory; the directory itself for no name."""
    if not name:
        return place
    return place.named(name) if isinstance(place, Remote) else str(Path(place) / name)


def own_name(place: Place) -> str:
    """Return the name that a copy of ``place`` bears; none for a path that says only what a directory holds."""
    if isinstance(place, Remote):
        return place.own_name
    return "" if place.endswith(("/.", "/..")) or place in (".", "..") else PurePosixPath(place).name
