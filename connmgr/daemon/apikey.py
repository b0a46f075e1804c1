"""The API key: a file in the data directory, for clients that cannot read the auth file."""

from __future__ import annotations

import secrets
from pathlib import Path

from connmgr.daemon.files import private_directory, read_private, replace_private

NAME = "api.key"
_LIMIT = 200


def read(data_dir: Path) -> str | None:
    """Return the API key, or None where none was made yet.

    :raises StartupError: its file is open to others, or not ours.
    """
    text = read_private(data_dir / NAME, _LIMIT)
    return text.strip() or None if text is not None else None


def make(data_dir: Path, *, rotate: bool) -> str:
    """Return the API key, a new one if there is none or it is to ``rotate``; a running daemon takes it at once.

    :raises StartupError: the data directory or the key's file cannot be used.
    """
    private_directory(data_dir, "data directory")
    key = None if rotate else read(data_dir)
    if key is None:
        key = secrets.token_urlsafe(32)
        replace_private(data_dir / NAME, key + "\n")
    return key
