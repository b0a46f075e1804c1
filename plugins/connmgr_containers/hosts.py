"""Hosts of others: connections to the host itself, below which a refresh puts what its runtime has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from connmgr.plugin import Deadline, Transport, Wrapper
from connmgr_containers.runtime import Reason, explained, run


class Host(Wrapper):
    """A place that has others; its shell is the host's own."""

    usage_category: ClassVar[str] = "group"
    via = "host"
    program: str
    reasons: Sequence[Reason] = ()

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        return list(argv)

    def listed(self, transport: Transport, argv: Sequence[str], timeout: float) -> str:
        """Return what ``argv`` prints, a listing.

        :raises connmgr.errors.OperationError: it failed, or did not end within ``timeout`` seconds.
        """
        printed = run(transport, argv, Deadline(timeout))
        if printed.status:
            raise explained(self.program, self.reasons, printed.said, "that host", f"{self.program} lists nothing")
        return printed.stdout.decode(errors="replace")
