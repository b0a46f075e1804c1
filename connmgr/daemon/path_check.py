"""Checks that no other user can replace a file, by a directory or link on its path."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from connmgr.errors import StartupError
from connmgr.processes import is_trusted, is_unmapped


def check_path(path: Path) -> None:
    """Check every directory and symbolic link on ``path``, as sshd does with ``StrictModes``.

    Each must belong to this user or root. Others must not be able to write to it, unless it is sticky. The private
    group of this user, with no other member, is allowed to.
    :raises StartupError: others could replace the file, or a directory cannot be examined.
    """
    try:
        for directory in _above(path):
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


def _above(path: Path) -> Iterator[Path]:
    """Yield the directories above ``path``, the nearest first: as written, then with links resolved."""
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
    """Whether ``gid`` is the group with this user's name and no other members."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}
