"""Hosts of containers: a refresh adds a connection for each container below the connection to its host."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from connmgr.errors import RuntimeUnreachable
from connmgr.plugin import Child, Deadline, Transport, Wrapper
from connmgr_containers.fields import LOCAL_MACHINE, HostSchema
from connmgr_containers.runtime import Reason, explained, run


class Host(Wrapper):
    """A host of containers; its shell is the shell of the connection it goes through."""

    usage_category: ClassVar[str] = "group"
    schema = HostSchema
    example: ClassVar[Mapping[str, Any]] = {"host": LOCAL_MACHINE}
    via = "host"
    program: str
    reasons: Sequence[Reason] = ()

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        return list(argv)

    def children(self, transport: Transport, data: Mapping[str, Any], *, timeout: float) -> Iterable[Child]:
        deadline = Deadline(timeout)
        listings = [self._listed(transport, argv, deadline) for argv in self.listing(data)]
        try:
            return list(self.found(data, *listings))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise RuntimeUnreachable(f"{self.program} lists what it has in a form that is not known.") from error

    @abstractmethod
    def listing(self, data: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        """Return the argv of each program that lists the host's containers."""

    @abstractmethod
    def found(self, data: Mapping[str, Any], *listings: str) -> Iterable[Child]:
        """Yield the containers in the output of those programs; any exception means that it cannot be parsed."""

    def _listed(self, transport: Transport, argv: Sequence[str], deadline: Deadline) -> str:
        printed = run(transport, argv, deadline)
        if printed.status:
            raise explained(self.program, self.reasons, printed.said, "that host", f"{self.program} lists nothing")
        return printed.stdout.decode(errors="replace")


def chosen(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the fields ``names`` that have a value in ``data``."""
    return {name: data[name] for name in names if data.get(name)}
