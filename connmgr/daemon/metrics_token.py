"""The static token that allows reading /metrics and nothing else: a file that the user creates."""

from __future__ import annotations

from pathlib import Path

from connmgr.daemon.files import read_private
from connmgr.errors import StartupError

MIN_CHARACTERS = 24
"""A shorter one could be guessed."""

MAX_FILE_BYTES = 1000


def read(path: Path) -> str:
    """Return the token in the file at ``path``, which is this user's own and closed to others.

    :raises StartupError: there is no such file, it is not safe, or its content is no token.
    """
    text = read_private(path, MAX_FILE_BYTES)
    if text is None:
        raise StartupError(f"The metrics token file {path} does not exist: openssl rand -hex 32 prints a token for it.")
    token = text.strip()
    if len(token) < MIN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise StartupError(
            f"The metrics token in {path} is not one word of {MIN_CHARACTERS} or more ASCII characters: "
            "openssl rand -hex 32 prints one."
        )
    return token
