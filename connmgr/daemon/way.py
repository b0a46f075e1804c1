"""Whether others could put a file of theirs in the place of ours: by a directory or a link on the way to it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from connmgr.errors import StartupError
from connmgr.peers import is_trusted, is_unmapped


def check_way(path: Path) -> None:
    """Check each directory on the way to ``path`` and each symbolic link, as sshd does with ``StrictModes``.

    Each must belong to this user or root, and be closed to writing by others, unless it is sticky. A group of which
    this user is the only member, as many systems make one for each user, is no other.
    :raises StartupError: others could replace the file, or a directory cannot be looked at.
    """
    try:
        for directory in _way(path):
            status = directory.lstat()
            if not is_trusted(status.st_uid) and (directory == path.parent or not is_unmapped(status.st_uid)):
                raise StartupError(
                    f"The auth file would not be safe: {directory} belongs to another user. "
                    "Choose a place for it with --auth-file."
                )
            if stat.S_ISDIR(status.st_mode) and _is_open(status):
                raise StartupError(
                    f"The auth file would not be safe: {directory} is open to others. "
                    f"Run chmod go-w {directory}, or choose a place for it with --auth-file."
                )
    except OSError as error:
        raise StartupError(f"The directory {path.parent} cannot be used: {error.strerror}.") from error


def _way(path: Path) -> Iterator[Path]:
    """Yield what lies above ``path``, the nearest first, as it is written and then with all links followed."""
    written = path.absolute().parent
    real = written.resolve(strict=True)
    yield from dict.fromkeys([written, *written.parents, real, *real.parents])


def _is_open(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_ISVTX:
        return False
    return bool(status.st_mode & stat.S_IWOTH) or (
        bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(status.st_gid)
    )


def _is_own_group(gid: int) -> bool:
    """Whether ``gid`` is the group that bears this user's name, and has no other members."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}
