"""Shows the whole request of an approval to a person; the request's content cannot imitate these lines."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from connmgr.printable import visible


def described(approval: Mapping[str, Any], when: str) -> Iterator[str]:
    """Yield the lines that show a whole approval; the first has the token's name and ``when``."""
    asked = dict(approval["asked"])
    yield f"{quoted(approval['tokenName'])} asks{when}:"
    yield f"  {asked.pop('action', 'something')} on {', '.join(map(quoted, asked.pop('names', [])))}"
    grounds = {one.get("connection"): one for one in asked.pop("on", [])}
    for id in asked.pop("connections", []):
        yield f"    {visible(id)}"
        yield from _ground(grounds.get(id))
    if "terminal" in asked:
        yield f"  terminal {'yes' if asked.pop('terminal') else 'no'}"
    for change in asked.pop("moved", []):
        yield f"  moved since it was asked before: {visible(change)}"
    for member, value in asked.items():
        yield f"  {visible(member)}"
        yield from (f"    {line}" for line in _lines(value))
    yield from beyond_ascii(json.dumps(approval, ensure_ascii=False))


def _ground(ground: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the lines that show where a request runs on one connection."""
    if ground is None:
        return
    hosts, user = ground.get("hosts") or [], ground.get("user")
    yield f"    host {', then '.join(map(quoted, hosts)) or 'the machine of the daemon'}"
    yield f"    user {quoted(user) if user else 'of the login there' if hosts else 'of the daemon'}"
    if "directory" in ground:
        directory = ground["directory"]
        yield f"    directory {quoted(directory) if directory else 'where a new shell starts'}"
    for name, value in (ground.get("variables") or {}).items():
        yield f"    {visible(name)} of the shell {'is no longer exported' if value is None else quoted(value)}"
    if others := ground.get("otherVariables"):
        yield f"    further variables of the shell {', '.join(map(visible, others))}"


def beyond_ascii(text: str) -> Iterator[str]:
    """Yield lines that name the characters of ``text`` beyond ASCII, which may look like others."""
    beyond = sorted({c for c in text if not c.isascii()})
    if beyond:
        yield "  characters beyond ASCII, which may look like others"
        yield from (f"    U+{ord(c):04X} {unicodedata.name(c, 'without a name')}" for c in beyond)


def quoted(value: object) -> str:
    """Return a value as JSON, with escapes for characters that control a terminal or reorder text."""
    return visible(json.dumps(value, ensure_ascii=False))


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
