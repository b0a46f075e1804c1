"""Names as they stand in paths: lower-cased, so that filters need not care, and without the separator."""

from __future__ import annotations

from connmgr.errors import InvalidRequest

SEPARATOR = "/"
NAME_LENGTH = 255
"""The most characters that a name may have: PostgreSQL cannot index values of any length."""


def fold(text: str) -> str:
    """Return ``text`` in lower case, each character by itself.

    :meth:`str.lower` looks at a character's neighbours (a Greek sigma at the end of a word), so that a piece of a name
    in a filter could come out otherwise than in the name.
    """
    return text.lower() if text.isascii() else "".join(map(str.lower, text))


def segment(name: str) -> str:
    """Return ``name`` as it stands in a path: lower-cased, ``_`` for each ``/``.

    :raises InvalidRequest: it has more than :data:`NAME_LENGTH` characters.
    """
    if len(name) > NAME_LENGTH:
        raise InvalidRequest(f"name: longer than {NAME_LENGTH} characters.")
    return fold(name).replace(SEPARATOR, "_")
