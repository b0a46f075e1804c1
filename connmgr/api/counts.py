"""Counts requests and their durations."""

from __future__ import annotations

import copy
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper bounds of the classes of durations, in seconds."""


@dataclass
class Durations:
    """The number of durations in each class, and their sum in seconds. The last class has no upper bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the classes in Prometheus's form: each includes those below it."""
        ends = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        return [(end, float(sum(self.counts[: place + 1]))) for place, end in enumerate(ends)]


class Counts:
    """The numbers of answered requests by endpoint and status, and their durations; thread-safe."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        """The time.monotonic() at which the daemon was started."""
        self._lock = threading.Lock()
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._durations: defaultdict[str, Durations] = defaultdict(Durations)

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count a request to the endpoint ``path`` that took ``seconds``; ``path`` is empty for unknown endpoints."""
        with self._lock:
            self._requests[path, status] += 1
            self._durations[path].add(seconds)

    def snapshot(self) -> tuple[dict[tuple[str, int], int], dict[str, Durations]]:
        """Return the current numbers of requests by path and status, and the durations by path."""
        with self._lock:
            return dict(self._requests), copy.deepcopy(self._durations)
