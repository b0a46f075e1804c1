"""The state of a tunnel, as the API shows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

STOPPED, CONNECTING, OPEN, RETRYING, FAILED = "stopped", "connecting", "open", "retrying", "failed"


@dataclass(frozen=True)
class Status:
    """The state of a tunnel; ``address`` is where it listens, times are aware and in UTC."""

    state: str
    address: tuple[str, int] | None = None
    since: datetime | None = None
    retries: int = 0
    next_retry: datetime | None = None
    last_error: tuple[str, str] | None = None
    """The code and the message of the last error."""

    relay: str | None = None
    streams: int = 0
    waiting: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
