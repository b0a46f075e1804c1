"""The subjects that ``connmgr doctor`` examines, and its findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connmgr.settings import Settings

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """A finding about ``subject``, with ``advice`` if something should be done."""

    subject: str
    result: str
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Examined:
    """The settings, the ``url`` of their daemon, and its answer to /daemon/status, or None without access."""

    settings: Settings
    url: str
    status: dict[str, Any] | None

    @property
    def environment(self) -> dict[str, Any] | None:
        """Return what the daemon says of its environment, None without a daemon or with one of an older version."""
        return None if self.status is None else self.status.get("environment")
