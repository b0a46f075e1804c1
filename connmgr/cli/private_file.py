"""Files that only this user may read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from connmgr.cli.exits import Failure

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_private(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, with mode 0600; missing directories are created.

    :raises Failure: it cannot be written.
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
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from error
