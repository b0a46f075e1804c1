"""What an approval is about, in lines that a person reads before deciding: whole, and nothing in it can deceive."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any


def described(approval: Mapping[str, Any], when: str) -> Iterator[str]:
    """Yield the lines that show an approval whole; ``when`` follows who asks, in the first."""
    asked = dict(approval["asked"])
    yield f"{quoted(approval['tokenName'])} asks{when}:"
    yield f"  {asked.pop('action', 'something')} on {', '.join(map(quoted, asked.pop('names', [])))}"
    for id in asked.pop("connections", []):
        yield f"    {_visible(id)}"
    for member, value in asked.items():
        yield f"  {_visible(member)}"
        yield from (f"    {line}" for line in _lines(value))
    yield from beyond_ascii(json.dumps(approval, ensure_ascii=False))


def beyond_ascii(text: str) -> Iterator[str]:
    """Yield lines that name the characters of ``text`` beyond ASCII, for they may look like others."""
    beyond = sorted({c for c in text if not c.isascii()})
    if beyond:
        yield "  characters beyond ASCII, which may look like others"
        yield from (f"    U+{ord(c):04X} {unicodedata.name(c, 'without a name')}" for c in beyond)


def quoted(value: object) -> str:
    """Return a value as JSON, in which what controls or reorders a terminal's text is written as an escape."""
    return _visible(json.dumps(value, ensure_ascii=False))


def _lines(value: object) -> Iterator[str]:
    """Yield the lines of one member, each word quoted."""
    if isinstance(value, Mapping):
        yield from (f"{quoted(str(name))} = {quoted(one)}" for name, one in value.items())
    elif isinstance(value, list):
        yield from map(quoted, value)
    elif isinstance(value, str) and "\n" in value:
        yield from map(quoted, value.splitlines(keepends=True))
    else:
        yield quoted(value)


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
