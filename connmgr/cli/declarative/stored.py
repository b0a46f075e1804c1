"""The connections in the vault, for comparison with the content of a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from connmgr.cli.selection import described
from connmgr.client import Client

KEPT = {"secret": "kept"}
"""Stands in a file for a secret that the vault keeps unchanged."""


@dataclass(frozen=True)
class To:
    """Stands in data for the connection of the entry ``key`` of the same file."""

    key: str


class Stored:
    """All connections of a vault, and its types; read once."""

    def __init__(self, client: Client, kind: str = "*") -> None:
        self.types = {one.name: one.schema for one in client.connection.types()}
        self.infos = {info["connection"]: info for info in described(client, kind)}
        self._by_name: dict[tuple[str, ...], list[str]] = {}
        self._by_data: dict[str, str] = {}
        for id, info in self.infos.items():
            self._by_name.setdefault(tuple(info["name"]), []).append(id)
            # Of equal connections the first one listed counts.
            self._by_data.setdefault(self.whole(info["rawData"]), id)

    def schema(self, kind: str) -> dict[str, Any]:
        """Return the schema of a type; an empty one if no plugin offers the type."""
        return self.types.get(kind, {})

    def named(self, path: Iterable[str]) -> list[str]:
        """Return the ids of the connections with this path."""
        return self._by_name.get(folded(path), [])

    def equal(self, data: Mapping[str, Any]) -> str | None:
        """Return the id of a connection with this ``data``, which has no secrets."""
        return self._by_data.get(self.whole(data))

    def category(self, id: str) -> tuple[str, ...]:
        """Return the path of a connection's category."""
        return tuple(self.infos[id]["category"])

    def whole(self, data: Mapping[str, Any]) -> str:
        """Return ``data`` with defaults filled in, as text; equal data give equal text."""
        return json.dumps({**self.defaults(data), **given(data)}, sort_keys=True, default=repr)

    def defaults(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the default values of this data's type."""
        properties = self.schema(data["type"]).get("properties", {})
        return {name: one["default"] for name, one in properties.items() if one.get("default") is not None}

    def differences(self, id: str, data: Mapping[str, Any]) -> list[str]:
        """Return the names of the fields in which a stored connection differs from ``data``."""
        defaults = self.defaults(data)
        ours, theirs = ({**defaults, **given(each)} for each in (data, self.infos[id]["rawData"]))
        return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))


def given(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``data`` without the fields that are null, which count as not given."""
    return {
        name: given(value) if isinstance(value, Mapping) else value for name, value in data.items() if value is not None
    }


def is_secret(value: Any) -> bool:
    """Whether a value is a sealed secret, as the daemon shows it."""
    return isinstance(value, Mapping) and "encryptedToken" in value


def folded(path: Iterable[str]) -> tuple[str, ...]:
    """Return names in the form in which the vault compares paths."""
    return tuple("".join(map(str.lower, name)).replace("/", "_") for name in path)


def marked(schema: Mapping[str, Any], mark: str, value: Any, change: Callable[[str, Any], Any], at: str = "") -> Any:
    """Return a copy of ``value`` with ``change(place, part)`` in place of each part that the JSON ``schema`` marks."""
    if value is None:
        return None
    if schema.get(mark):
        return change(at, value)
    if isinstance(value, Mapping):
        parts = schema.get("properties", {})
        return {
            name: marked(parts.get(name, {}), mark, inner, change, f"{at}.{name}".lstrip("."))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [marked(schema.get("items", {}), mark, inner, change, at) for inner in value]
    return value


def mapped(data: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of ``data`` with ``change`` applied to every value that is neither a list nor a plain dict."""
    changed = change(data)
    if changed is not data:
        return changed
    if isinstance(data, Mapping):
        return {name: mapped(value, change) for name, value in data.items()}
    return [mapped(value, change) for value in data] if isinstance(data, list) else data
