"""Files that only this user may read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from connmgr.cli.exits import Failure

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check_new(path: Path, *, force: bool) -> None:
    """Check that :func:`write_private` may write ``path``, before what it shall contain is made.

    :raises Failure: its directory is missing, or it exists; with ``force``, if it is anything but a regular file.
    """
    if not path.parent.is_dir():
        raise Failure(f"{path} cannot be written: {path.parent} is not a directory.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise Failure(f"{path} cannot be written: {path.parent} is not writable for you.")
    if not os.path.lexists(path):
        return
    if not force:
        raise Failure(f"{path} exists already: choose another file, or overwrite it with --force.")
    if not stat.S_ISREG(path.lstat().st_mode):
        raise Failure(f"{path} is not a regular file, and is not overwritten: choose another file.")


def write_private(path: Path, text: str, *, replace: bool = True) -> None:
    """Write ``text`` to ``path`` atomically, with mode 0600; missing directories are created.

    :raises Failure: it cannot be written, or exists although it is not to be replaced.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, CREATE, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            if replace:
                draft.replace(path)
            else:
                # Unlike a rename, a link never replaces a file that appeared meanwhile.
                os.link(draft, path)
                draft.unlink()
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from error
