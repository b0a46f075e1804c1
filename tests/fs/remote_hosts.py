"""Remote hosts to work with files on: other shells as /bin/sh, other tools, and blobs to write there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connmgr.fs.bodies import Blob, Blobs
from connmgr.fs.files import FileReader
from connmgr.fs.remote import RemoteFileSystem
from connmgr.plugin import Channel, Pty, Transport
from connmgr_local.transport import LocalTransport
from tests.components import program

OWNER = object()
SHELLS = [
    pytest.param("dash", marks=pytest.mark.needs("dash")),
    pytest.param("bash", marks=pytest.mark.needs("bash")),
    pytest.param("busybox", marks=pytest.mark.needs("busybox")),
    pytest.param("mksh", marks=pytest.mark.needs("mksh")),
    pytest.param("ksh93", marks=pytest.mark.needs("ksh93")),
    pytest.param("zsh", marks=pytest.mark.needs("zsh")),
]
TOOLS = ["GNU", "few", "busybox"]
NECESSARY = ["cat", "chmod", "chown", "head", "ls", "mkdir", "mv", "printf", "readlink", "rm", "rmdir", "wc"]
"""Tools of every system."""

ODD_NAMES = [
    b"plain",
    "größe ✓ ".encode(),
    b'it\'s "new\nline"\n',
    b"\n",
    b"-rf",
    b"--",
    b"#!;&|<>(){}$(touch x)`touch x`$HOME\\",
    b"*",
    b"[a-z]?\tbell\a\x7f\x01",
    b"~root",
    b"\xff\xfe\x80 not UTF-8",
    b"100%s%n\\n\\0101: no space left",
    b"x" * 255,
]
"""File names that some program misreads."""


class Elsewhere(Transport):
    """This machine with another /bin/sh and only the tools of one directory."""

    def __init__(self, shell: Path, tools: str, home: Path) -> None:
        self._local = LocalTransport()
        self._words = ["/usr/bin/env", "-i", f"HOME={home}", f"PATH={tools}", str(shell)]

    def open_channel(self, argv: Sequence[str], *, pty: Pty | None = None, timeout: float) -> Channel:
        assert argv[0] == "/bin/sh"
        return self._local.open_channel([*self._words, *argv[1:]], pty=pty, timeout=timeout)

    def close(self) -> None:
        self._local.close()


def tools_and_shells(offset: int) -> list[Any]:
    """Return each shell with one of the three sets of tools, two shells for each set; ``offset`` shifts the choice."""
    found = []
    for number, shell in enumerate(SHELLS, offset):
        tools = TOOLS[number % 3]
        marks = [*shell.marks, *([pytest.mark.needs("busybox")] if tools == "busybox" else [])]
        found.append(pytest.param(tools, *shell.values, marks=marks))
    return found


def shell_called_sh(directory: Path, name: str) -> Path:
    """Return a link ``sh`` to a shell, which makes the shell behave as sh."""
    path = program(name)
    assert path
    link = directory / f"as-{name}" / "sh"
    link.parent.mkdir()
    link.symlink_to(path)
    return link


def busybox_tools(directory: Path) -> str:
    """Return a directory of busybox's tools."""
    busybox = program("busybox")
    assert busybox
    tools = directory / "busybox-tools"
    tools.mkdir()
    for name in [*NECESSARY, *["cp", "dd", "find", "sha256sum", "stat", "sync", "uname", "ps", "grep", "cut", "tr"]]:
        (tools / name).symlink_to(busybox)
    return str(tools)


def chosen_tools(directory: Path, names: Sequence[str]) -> str:
    """Return a directory with only the named tools of this machine."""
    tools = directory / "chosen-tools"
    tools.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    return str(tools)


@contextmanager
def stored(blobs: Blobs, content: bytes) -> Iterator[Blob]:
    """Lend a blob of the given content."""
    spool = blobs.spool()
    for start in range(0, len(content), 1 << 16):
        spool.append(content[start : start + (1 << 16)])
    with blobs.borrowed(OWNER, blobs.store(OWNER, spool)) as blob:
        yield blob


def content_of(place: RemoteFileSystem, path: bytes) -> bytes:
    """Read a file to its end."""
    reading = FileReader(place, path)
    try:
        content = b"".join(reading)
    finally:
        reading.close()
    assert len(content) == reading.size
    return content


def names_in(directory: Path) -> list[str]:
    """Return the names in a directory, in order."""
    return sorted(path.name for path in directory.iterdir())


def litter(directory: Path) -> list[str]:
    """Return what unfinished writes have left in a directory."""
    return [name for name in names_in(directory) if name.startswith(".connmgr-")]
