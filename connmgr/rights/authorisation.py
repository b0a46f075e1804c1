"""Asks the plugins that decide who may do what, before a request is carried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from connmgr.errors import UnknownJob, UnknownType
from connmgr.fields import references
from connmgr.plugin import Caller, Subjects
from connmgr.registry import Registry
from connmgr.vault import Vault

CONNECTIONS = ("connection", "connections")
CATEGORIES = ("category", "categories", "parent")
PATHS = ("path", "source", "target")
"""The fields of a request that name subjects; ``data`` names connections too, wherever its type has references."""


class Authorisation:
    """Lets each plugin with the hook ``connmgr_authorise`` refuse a request; without one everything is allowed."""

    def __init__(self, registry: Registry, vault: Vault) -> None:
        self._registry = registry
        self._vault = vault
        self._hook = registry.plugins.hook.connmgr_authorise
        self.asks = bool(self._hook.get_hookimpls())
        """Whether any plugin decides; otherwise there is no need to find out what a request is about."""

    def check(self, caller: Caller, action: str, request: Mapping[str, Any]) -> None:
        """Return if ``caller`` may do ``action`` to what the loaded ``request`` is about.

        :raises connmgr.errors.PolicyDenied: a plugin refuses it. What else a plugin raises refuses it too.
        """
        if self.asks:
            self._hook(caller=caller, action=action, subjects=self.subjects(request))

    def subjects(self, request: Mapping[str, Any]) -> Subjects:
        """Return what a loaded request is about."""
        named = {
            *_values(request, CONNECTIONS),
            *self._references(request.get("data")),
            *self._of_job(request.get("job")),
        }
        return Subjects(
            frozenset(self._vault.connections.with_carriers(named)),
            frozenset(_values(request, CATEGORIES)),
            tuple(_values(request, PATHS)),
            request.get("session"),
        )

    def _of_job(self, job: object) -> Iterator[str]:
        """Yield the connection that a job runs on; one that is unknown is left to the view."""
        if isinstance(job, str):
            with suppress(UnknownJob):
                yield self._vault.jobs.get(job).connection

    def _references(self, data: object) -> Iterator[str]:
        """Yield the connections that the data of a connection names; what its type would refuse is left to the view."""
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
