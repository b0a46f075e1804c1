"""The subjects of a request: connections, categories and paths, found in its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from connmgr.errors import UnknownType
from connmgr.fields import references
from connmgr.plugin import Subjects
from connmgr.registry import Registry
from connmgr.vault import Vault

CONNECTIONS = ("connection", "connections")
CATEGORIES = ("category", "categories", "parent")
PATHS = ("path", "source", "target")
WORKS = ("job", "terminal")
NAMES = frozenset((*CONNECTIONS, *CATEGORIES, *PATHS, *WORKS, "data", "session"))
"""The fields of a request that name subjects; ``data`` names connections too, wherever its type has references."""


class Work(NamedTuple):
    """A job or a terminal: its connection, and the id of the token that started it, None for the owner."""

    connection: str
    token: str | None


Find = Callable[[str], Work | None]


class SubjectsOf:
    """Finds the subjects of requests. ``works`` has, for ``job`` and ``terminal``, a function that finds one by id."""

    def __init__(self, registry: Registry, vault: Vault, works: Mapping[str, Find]) -> None:
        self._registry = registry
        self._vault = vault
        self._works = works

    def __call__(self, request: Mapping[str, Any]) -> Subjects:
        """Return the subjects of a loaded request, including all that its connections run over."""
        named = {*self.connections(request), *(work.connection for _, work in self.works(request) if work)}
        return Subjects(
            frozenset(self._vault.connections.with_carriers(named)),
            frozenset(self.categories(request)),
            tuple(_values(request, PATHS)),
            request.get("session"),
        )

    def connections(self, request: Mapping[str, Any]) -> list[str]:
        """Return the connections that a request names, each once, in order; those in ``data`` are last."""
        return list(dict.fromkeys([*_values(request, CONNECTIONS), *self._references(request.get("data"))]))

    def categories(self, request: Mapping[str, Any]) -> list[str]:
        """Return the categories that a request names."""
        return list(dict.fromkeys(_values(request, CATEGORIES)))

    def works(self, request: Mapping[str, Any]) -> Iterator[tuple[str, Work | None]]:
        """Yield the fields of a request that name a job or a terminal, with it, or None if it is unknown."""
        for name, find in self._works.items():
            if isinstance(id := request.get(name), str):
                yield name, find(id)

    def _references(self, data: object) -> Iterator[str]:
        """Yield the connections that a connection's data name; the view refuses malformed data."""
        if not isinstance(data, Mapping) or not isinstance(data.get("type"), str):
            return
        try:
            schema = self._registry.get(data["type"]).schema()
        except UnknownType:
            return
        for named in references(schema, data):
            value = named.get("storeId") if isinstance(named, Mapping) else named
            if isinstance(value, str):
                yield value.lower()


def _values(request: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Any]:
    for name in names:
        value = request.get(name)
        if isinstance(value, list):
            yield from value
        elif value is not None:
            yield value
