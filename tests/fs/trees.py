"""Trees of files to copy, and what must be equal afterwards."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

from connmgr.fs.archives import Archive, FailedMember, Tally, extract
from connmgr.fs.remote import RemoteFileSystem
from tests.fs.remote_hosts import ODD_NAMES

Facts = dict[bytes, tuple[str, int, int, bytes]]
WHEN = 1_600_000_000


def plant(directory: Path) -> None:
    """Create a tree with files of various names, sizes, modes and times, links, and empty directories."""
    names = [name for name in ODD_NAMES if len(name) < 255]
    for at, name in enumerate(map(os.fsdecode, names)):
        below = directory / name
        below.mkdir()
        for size in (0, 1, 511, 512, 513, 70_000 * (at == 0)):
            path = below / f"{size} {name[:90]}"
            path.write_bytes(os.urandom(size))
            path.chmod(0o640 if at % 2 else 0o755)
            os.utime(path, (WHEN + at, WHEN + at))
        (below / "link").symlink_to(f"../nowhere/{name}")
        (below / "empty").mkdir()
        (below / "empty").chmod(0o751)
    deep = directory / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    (deep / "f").write_text("at the bottom")
    (deep / "far").symlink_to("x/" * 150)


def facts(directory: Path) -> Facts:
    """Return type, mode, time in seconds, and content or target of each file."""
    return {bytes(path.relative_to(directory)): _fact(path) for path in directory.rglob("*")}


def _fact(path: Path) -> tuple[str, int, int, bytes]:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if path.is_symlink():
        return "link", 0, 0, bytes(path.readlink())
    if path.is_dir():
        return "directory", mode, 0, b""
    return "file", mode, int(status.st_mtime), path.read_bytes()


def packed(place: RemoteFileSystem, path: bytes, *members: bytes) -> bytes:
    """Return a directory of a remote host as an archive."""
    archive = Archive(place, path, members)
    try:
        return b"".join(archive)
    finally:
        archive.close()


def unpack(place: RemoteFileSystem, path: bytes, content: bytes, *, exact: bool = True) -> list[FailedMember]:
    """Extract an archive into a directory of a remote host; return the members that could not be written."""
    pieces = (content[start : start + 100_000] for start in range(0, len(content), 100_000))
    return extract(place, path, pieces, exact=exact, tally=Tally())


def archive_of(*members: tuple[str, dict[str, object]], layout: int = tarfile.PAX_FORMAT) -> bytes:
    """Return an archive of members by name, each with its special attributes; all have ``content``."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=layout) as archive:
        for name, special in members:
            info = tarfile.TarInfo(name)
            content = special.get("content", b"")
            assert isinstance(content, bytes)
            info.size = len(content)
            for key, value in special.items():
                if key != "content":
                    setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()
