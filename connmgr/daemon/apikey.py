"""The API key: a file in the data directory, for clients that cannot read the auth file."""

from __future__ import annotations

import secrets
from pathlib import Path

from connmgr.daemon.files import private_directory, read_private, replace_private

FILE_NAME = "api.key"
_MAX_FILE_BYTES = 200


def read(data_dir: Path) -> str | None:
    """Return the API key, None if none was made, or raise :class:`StartupError` for an unsafe file."""
    text = read_private(data_dir / FILE_NAME, _MAX_FILE_BYTES)
    return text.strip() or None if text is not None else None


def make(data_dir: Path, *, rotate: bool) -> str:
    """Return the API key; make it if it is missing or to ``rotate``. A running daemon accepts the new one at once.

    :raises StartupError: the data directory or the key's file cannot be used.
    """
    private_directory(data_dir, "data directory")
    key = None if rotate else read(data_dir)
    if key is None:
        key = secrets.token_urlsafe(32)
        replace_private(data_dir / FILE_NAME, key + "\n")
    return key
