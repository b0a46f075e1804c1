"""``/fact`` of the client."""

from __future__ import annotations

from collections.abc import Sequence

from connmgr.client.group import Group
from connmgr.contract.fact import (
    MAX_LISTED,
    PARALLEL,
    SECONDS,
    FactGatherRequest,
    FactGatherResponse,
    FactQueryRequest,
    FactQueryResponse,
    GatheredFacts,
    MachineFacts,
)


class Facts(Group):
    """``/fact``; what the methods ``gather`` and ``query`` choose is as in :meth:`Shells.broadcast`."""

    def gather(
        self,
        connections: Sequence[str] | None = None,
        *,
        connection: str | None = None,
        category: str | None = None,
        type: str | None = None,
        where: str | None = None,
        parts: Sequence[str] | None = None,
        parallel: int = PARALLEL,
        timeout: float = SECONDS,
    ) -> list[GatheredFacts]:
        """Ask the machines of connections about themselves, and return the outcome on each.

        ``parts`` are ``system``, ``package`` and the first words of plugins' facts; without them everything is
        gathered. Each machine may take ``timeout`` seconds.
        """
        request = FactGatherRequest(
            connections=None if connections is None else list(connections),
            connection_filter=connection,
            category_filter=category,
            type_filter=type,
            where=where,
            parts=None if parts is None else list(parts),
            parallel=parallel,
            timeout=timeout,
        )
        return self._ask("/fact/gather", request, FactGatherResponse).gathered

    def query(
        self,
        connections: Sequence[str] | None = None,
        *,
        connection: str | None = None,
        category: str | None = None,
        type: str | None = None,
        where: str | None = None,
        names: Sequence[str] | None = None,
    ) -> list[MachineFacts]:
        """Return the facts that were gathered about the machines of connections; no machine is asked.

        ``names`` are patterns for the names of facts; without them all but packages are returned.
        """
        machines: list[MachineFacts] = []
        while True:
            request = FactQueryRequest(
                connections=None if connections is None else list(connections),
                connection_filter=connection,
                category_filter=category,
                type_filter=type,
                where=where,
                names=None if names is None else list(names),
                offset=len(machines),
                limit=MAX_LISTED,
            )
            answer = self._ask("/fact/query", request, FactQueryResponse)
            machines += answer.machines
            if len(machines) >= answer.total or not answer.machines:
                return machines
