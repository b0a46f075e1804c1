"""The paths that ``connmgr cp`` copies from and to. It loads no library, because the front copies single files."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple

from connmgr.printable import visible

STREAM = "-"
WILDCARDS = frozenset("*?[")


class RemotePath(NamedTuple):
    """A path on a connection; the empty path is the shell's directory."""

    connection: str
    path: str
    session: str | None
    name: str = ""
    """The connection's path in the vault, for messages."""

    def named(self, name: str) -> RemotePath:
        """Return the path of ``name`` within this one."""
        return self._replace(path=f"{self.path.rstrip('/')}/{name}" if self.path else name)

    @property
    def is_directory(self) -> bool:
        """Whether it can only be a directory."""
        return not self.path or self.path.endswith("/")

    @property
    def own_name(self) -> str:
        """The last name in the path; empty for a path such as ``dir/.``, which means only the content."""
        return "" if self.path.endswith(("/.", "/..")) or self.path in (".", "..", "~") else Path(self.path).name

    @property
    def directory(self) -> str:
        """The path for requests on a directory."""
        return self.path or "."

    @property
    def has_wildcards(self) -> bool:
        return has_wildcards(self.path)

    def __str__(self) -> str:
        return visible(f"{self.name}:{self.path}")


CopyOperand = RemotePath | str
"""A file of a connection, a local path, or ``-``."""


def has_wildcards(path: str) -> bool:
    """Whether the machine's shell would expand ``path``."""
    return bool(WILDCARDS & set(path))


def is_remote(text: str) -> bool:
    """Whether ``text`` names a file of a connection."""
    return ":" in text and not is_local(text)


def is_local(text: str) -> bool:
    """Whether ``text`` begins like a local path, whatever follows."""
    return text == STREAM or text.startswith(("/", ".", "~"))


def within(operand: CopyOperand, name: str) -> CopyOperand:
    """Return the operand of ``name`` in a directory, or the directory itself if ``name`` is empty."""
    if not name:
        return operand
    return operand.named(name) if isinstance(operand, RemotePath) else str(Path(operand) / name)


def own_name(operand: CopyOperand) -> str:
    """Return the name that a copy of ``operand`` gets; empty for a path that means only a directory's content."""
    if isinstance(operand, RemotePath):
        return operand.own_name
    return "" if operand.endswith(("/.", "/..")) or operand in (".", "..") else PurePosixPath(operand).name
