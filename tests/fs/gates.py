"""A gate with patterns, and a tree with links out of the allowed directory."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from connmgr import errors
from connmgr.fs import files
from connmgr.fs.archives import Archive, Tally, extract
from connmgr.fs.bodies import Blob
from connmgr.fs.checksums import Checksums
from connmgr.fs.remote import RemoteFileSystem
from connmgr.fs.search import SearchedText, TextLine, search
from tests.fs.remote_hosts import content_of
from tests.fs.trees import archive_of

REFUSAL = "No rule of the caller's allows that path."
SECRET = b"nobody's business"


class Patterns:
    """Allows paths by patterns in which ``**`` is anything, ``*`` a part of a name, and ``x/**`` also ``x``."""

    def __init__(self, *allowed: bytes, denied: tuple[bytes, ...] = ()) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self._allowed = allowed
        self._denied = denied

    def check(self, action: str, path: bytes) -> None:
        self.asked.append((action, path))
        assert path.startswith(b"/"), path
        assert not {b"", b".", b".."} & set(path.split(b"/")[1:]) or path == b"/", path
        if not self.allows(action, path):
            raise errors.PolicyDenied(REFUSAL)

    def allows(self, action: str, path: bytes) -> bool:
        return _any(self._allowed, path) and not _any(self._denied, path)

    def covers(self, action: str, directory: bytes) -> None:
        self.check(action, directory)
        whole = any(one.endswith(b"/**") and _any((one,), directory + b"/x/y") for one in self._allowed)
        if not whole or any(one.startswith(directory + b"/") for one in self._denied):
            raise errors.PolicyDenied(REFUSAL)


def _any(patterns: tuple[bytes, ...], path: bytes) -> bool:
    return any(_expression(pattern).fullmatch(path) for pattern in patterns)


def _expression(pattern: bytes) -> re.Pattern[bytes]:
    text = re.escape(pattern).replace(rb"/\*\*", b"(/.*)?").replace(rb"\*\*", b".*").replace(rb"\*", b"[^/]*")
    return re.compile(text, re.DOTALL)


def plant_ways_out(folder: Path) -> None:
    """Make ``allowed`` with links that lead out, ``secret`` beside it, and links outside that lead in."""
    allowed, secret = folder / "allowed", folder / "secret"
    for directory in (allowed / "sub", secret / "sub", folder / "allowed-not"):
        directory.mkdir(parents=True)
    for path in (allowed / "file", allowed / "sub" / "inner", allowed / "new\nline"):
        path.write_bytes(b"content")
    for path in (secret / "file", secret / "sub" / "inner", folder / "allowed-not" / "file"):
        path.write_bytes(SECRET)
    links = {
        "allowed/to-file": "../secret/file",
        "allowed/to-missing": "../secret/missing",
        "allowed/to-dir": "../secret",
        "allowed/to-missing-dir": "../nowhere",
        "allowed/through": "to-dir/file",
        "allowed/chain": "chain-2",
        "allowed/chain-2": "to-file",
        "allowed/loop": "loop",
        "allowed/to-root": "/",
        "allowed/to-above": "..",
        "allowed/to-proc": "/proc/self/root/etc/passwd",
        "allowed/by-secret": "../secret/../allowed/file",
        "allowed/by-missing": "../missing/../allowed/file",
        "allowed/odd\n": "../secret/file",
        "allowed/sub/up": "../../secret/file",
        "allowed/in": "sub/inner",
        "allowed/in-dir": "sub",
        "to-allowed": "allowed",
        "to-allowed-file": "allowed/file",
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)


OPEN = [
    "allowed/file",
    "./allowed/file",
    "allowed/./file",
    "allowed//file",
    "allowed/sub/../file",
    "allowed/in-dir/../file",
    "to-allowed/file",
    "to-allowed-file",
    "allowed/in",
    "allowed/in-dir/inner",
    "allowed/new\nline",
    "{folder}/allowed/file",
    "//{folder}/allowed/file",
    "/proc/self/root/{folder}/allowed/file",
    "allowed/sub/./..//in-dir/.././file",
]
"""Allowed paths, in odd spellings."""

SHUT = [
    "secret/file",
    "secret/missing",
    "secret/file/beyond",
    "secret/missing/beyond",
    "secret/sub/inner",
    "missing",
    "missing/file",
    "allowed-not/file",
    "allowed-not/missing",
    "ALLOWED/file",
    "allowed /file",
    "allowed\n/file",
    "allowed\\/file",
    "allowed*/file",
    "{allowed,}/file",
    "-allowed/file",
    "all\xffowed/file",
    "$(echo allowed)/file",
    "allowed/../secret/file",
    "allowed/../secret/missing",
    "allowed/../missing",
    "allowed/../allowed-not/file",
    "allowed/./../secret/file",
    "allowed//..//secret/file",
    "allowed/sub/../../secret/file",
    "allowed/sub/../../missing/x",
    "allowed/in-dir/../../secret/file",
    "secret/../allowed/file",
    "secret/sub/../../allowed/file",
    "missing/../allowed/file",
    "secret/file/../../allowed/file",
    "secret/./../allowed/file",
    "allowed/to-dir/file",
    "allowed/to-dir/missing",
    "allowed/to-dir/sub/inner",
    "allowed/to-dir/../allowed/file",
    "allowed/to-missing-dir/../allowed/file",
    "allowed/to-missing-dir/file",
    "allowed/to-above/secret/file",
    "allowed/to-above/missing",
    "allowed/to-root/etc/passwd",
    "allowed/to-root/etc/missing",
    "allowed/to-root/missing/x",
    "/etc/passwd",
    "//etc/passwd",
    "/./etc/passwd",
    "/../etc/passwd",
    "/etc/missing",
    "/etc/../etc/passwd",
    "/proc/self/root/etc/passwd",
    "/proc/self/root/etc/missing",
    "/proc/self/root/{folder}/secret/file",
    "/proc/self/root/{folder}/secret/missing",
    "/proc/self/cwd/etc/passwd",
    "/proc/1/root/etc/passwd",
    "/proc/1/cwd/etc/missing",
    "/proc/self/environ",
    "/proc/self/fd/0",
    "/proc/self/fd/6/x",
    "/dev/fd/0",
    "/dev/fd/9",
    "/dev/fd/0/x",
    "/dev/stdin",
    "/dev/null",
    "/dev/tty",
    "/root/.ssh/id_ed25519",
    "~",
    "~/file",
    "~/missing",
    "~root/file",
    "/sys/../etc/passwd",
    "../{name}/secret/file",
    "../{name}/../../etc/passwd",
    "{folder}/allowed/../secret/file",
    "{folder}/allowed/../missing",
]
"""Paths that are not allowed, of existing and missing files."""

LEADING_OUT = [
    "allowed/to-file",
    "allowed/to-missing",
    "allowed/through",
    "allowed/chain",
    "allowed/chain-2",
    "allowed/to-proc",
    "allowed/by-secret",
    "allowed/by-missing",
    "allowed/odd\n",
    "allowed/sub/up",
    "allowed/in-dir/up",
    "to-allowed/to-file",
    "allowed/to-dir",
    "allowed/to-missing-dir",
    "allowed/to-root",
    "allowed/to-above",
]
"""Allowed links with targets that are not allowed."""

Operation = Callable[[RemoteFileSystem, bytes, Blob], object]


def archived(place: RemoteFileSystem, path: bytes, *members: bytes) -> bytes:
    archive = Archive(place, path, members)
    try:
        return b"".join(archive)
    finally:
        archive.close()


def sums(place: RemoteFileSystem, path: bytes, *members: bytes) -> list[object]:
    found = Checksums(place, path, members)
    try:
        return [one for some in found for one in some]
    finally:
        found.close()


def searched(place: RemoteFileSystem, path: bytes, text: str) -> list[TextLine]:
    return search(place, path, SearchedText(text, "*", 100, ignore_case=False), 30)[0]


FOLLOWING: dict[str, Operation] = {
    "read": lambda place, path, _: content_of(place, path),
    "stat what it leads to": lambda place, path, _: files.stat_file(place, path, follow=True),
    "list": lambda place, path, _: list(files.list_directory(place, path)),
    "list below": lambda place, path, _: list(files.list_directory(place, path, recursive=True)),
    "archive": lambda place, path, _: archived(place, path),
    "checksum": lambda place, path, _: sums(place, path),
    "search": lambda place, path, _: searched(place, path, "content"),
    "write": lambda place, path, blob: files.write(place, path, blob, 0o600),
    "extract": lambda place, path, _: extract(place, path, [archive_of(("planted", {}))], exact=False, tally=Tally()),
}
"""Operations that follow the last link of a path."""

NAMING: dict[str, Operation] = {
    "stat": lambda place, path, _: files.stat_file(place, path, follow=False),
    "mkdir": lambda place, path, _: files.make_directory(place, path, None, parents=False, timeout=20),
    "mkdir with parents": lambda place, path, _: files.make_directory(place, path, 0o700, parents=True, timeout=20),
    "remove": lambda place, path, _: files.remove(place, path, recursive=False, timeout=20),
    "remove all": lambda place, path, _: files.remove(place, path, recursive=True, timeout=20),
    "move from": lambda place, path, _: files.move(place, path, b"allowed/taken", overwrite=True, timeout=20),
    "move to": lambda place, path, _: files.move(place, b"allowed/file", path, overwrite=True, timeout=20),
    "archive a member": lambda place, path, _: archived(place, *_member(path)),
    "checksum of a member": lambda place, path, _: sums(place, *_member(path)),
}
"""Operations on the last name of a path itself."""


def _member(path: bytes) -> tuple[bytes, bytes]:
    head, _, tail = path.rpartition(b"/")
    return (head or b".", tail) if tail not in (b"", b".", b"..") else (path, b"x")


@dataclass(frozen=True)
class Facts:
    """Return a file's type, mode, times of change, and content."""

    mode: int
    changed: int
    content: bytes


def facts_of(directory: Path) -> dict[str, Facts]:
    """Return the same of all files below ``directory``."""
    return dict(_facts_of(directory))


def _facts_of(directory: Path) -> Iterator[tuple[str, Facts]]:
    for path in [directory, *directory.rglob("*")]:
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        yield str(path), Facts(status.st_mode, status.st_ctime_ns, content)
