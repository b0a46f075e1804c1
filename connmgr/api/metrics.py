"""``GET /metrics``: counts and times for Prometheus, behind the bearer token as everything is."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import flask

from connmgr import __version__
from connmgr.api.services import Services, services

if TYPE_CHECKING:
    from prometheus_client import Metric

PATH = "/metrics"
BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper ends of the classes of durations, in seconds."""

EXEC = "/shell/exec"


@dataclass
class Durations:
    """How many durations fell into each class, the last one for what is longer than all, and their sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the classes as Prometheus has them: each counts those below it too."""
        ends = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        return [(end, float(sum(self.counts[: place + 1]))) for place, end in enumerate(ends)]


class Metrics:
    """Counts requests. The library that writes them for Prometheus is loaded when somebody asks."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, int], int] = {}
        self._durations: dict[str, Durations] = {}

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request to the endpoint ``path``, empty where there is none, that took ``seconds``."""
        with self._lock:
            self._requests[path, status] = self._requests.get((path, status), 0) + 1
            self._durations.setdefault(path, Durations()).add(seconds)

    def families(self, services: Services) -> Iterator[Metric]:
        """Yield everything that can be measured now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        requests = CounterMetricFamily("connmgr_requests", "Requests answered.", labels=("path", "status"))
        times = HistogramMetricFamily("connmgr_request_seconds", "Until a request was answered.", labels=("path",))
        commands = HistogramMetricFamily("connmgr_exec_seconds", "Until a command was answered.")
        with self._lock:
            for (path, status), number in self._requests.items():
                requests.add_metric((path, str(status)), number)
            for path, durations in self._durations.items():
                times.add_metric((path,), durations.cumulative(), durations.total)
            run = self._durations.get(EXEC, Durations())
            commands.add_metric((), run.cumulative(), run.total)
        yield from (requests, times, commands)
        yield CounterMetricFamily("connmgr_audit_lost", "Entries that could not be written.", value=services.audit.lost)
        for name, help, value in _gauges(services, self.began):
            yield GaugeMetricFamily(name, help, value=value)
        build = GaugeMetricFamily("connmgr_build_info", "The version that runs.", labels=("version",))
        build.add_metric((__version__,), 1)
        yield build


def _gauges(services: Services, began: float) -> Iterator[tuple[str, str, float]]:
    yield "connmgr_uptime_seconds", "Since the daemon has started.", time.monotonic() - began
    yield "connmgr_open_shells", "Shell sessions that run.", len(services.shells.status())
    yield "connmgr_slots_in_use", "Requests that wait for machines.", services.slots.in_use
    yield "connmgr_slots", "Requests that may wait for machines.", services.slots.count
    yield "connmgr_blobs", "Blobs that are stored.", services.blobs.number
    yield "connmgr_blob_bytes", "Bytes of all blobs.", services.blobs.used
    yield "connmgr_client_sessions", "Tokens that are valid.", services.tokens.number


class _Collector:
    """What a registry of the library asks."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Any]:
        return self._services.metrics.families(self._services)


def page() -> flask.Blueprint:
    """Return the route of ``/metrics``."""
    blueprint = flask.Blueprint("metrics", __name__)

    def metrics() -> flask.Response:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder

        # One of our own: the library's knows of other things than this daemon.
        registry = CollectorRegistry()
        registry.register(_Collector(services()))
        encode, kind = choose_encoder(flask.request.headers.get("Accept", ""))
        return flask.Response(encode(registry), content_type=kind)

    blueprint.add_url_rule(PATH, "metrics", metrics)
    return blueprint
