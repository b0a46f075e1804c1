"""The form of names in paths: lower-cased, so that filters ignore case, and without the separator."""

from __future__ import annotations

from connmgr.errors import InvalidRequest

SEPARATOR = "/"
MAX_NAME_CHARACTERS = 255
"""Longest name: PostgreSQL cannot index values of any length."""


def fold(text: str) -> str:
    """Return ``text`` in lower case by character; :meth:`str.lower` would depend on neighbouring characters."""
    return text.lower() if text.isascii() else "".join(map(str.lower, text))


def segment(name: str) -> str:
    """Return ``name`` as in a path, lower-cased, ``_`` for ``/``; raise :class:`InvalidRequest` if it is too long."""
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidRequest(f"name: longer than {MAX_NAME_CHARACTERS} characters.")
    return fold(name).replace(SEPARATOR, "_")
