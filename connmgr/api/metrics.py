"""``GET /metrics``: counts and times for Prometheus; it needs a bearer token, as all endpoints do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import flask

from connmgr import __version__
from connmgr.api.endpoint import Group
from connmgr.api.services import Durations, Services, services

if TYPE_CHECKING:
    from prometheus_client import Metric

EXEC = "/shell/exec"

group = Group("metrics", "Counts and times for Prometheus.", prefix="")


@group.endpoint(
    "/metrics",
    action="metrics.read",
    reads=True,
    audited=False,
    described=False,
    methods=("GET",),
    scraped=True,
)
def metrics() -> flask.Response:
    """Return all counts in the format that Prometheus asks for; its library is imported by the first request."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    # The library's own registry would report the process instead of the daemon.
    registry = CollectorRegistry()
    registry.register(_Collector(services()))
    encode, kind = choose_encoder(flask.request.headers.get("Accept", ""))
    return flask.Response(encode(registry), content_type=kind)


class _Collector:
    """The collector that the library's registry calls."""

    def __init__(self, daemon: Services) -> None:
        self._services = daemon

    def collect(self) -> Iterator[Metric]:
        """Yield everything that can be measured now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        daemon = self._services
        requests = CounterMetricFamily("connmgr_requests", "Requests answered.", labels=("path", "status"))
        times = HistogramMetricFamily("connmgr_request_seconds", "Until a request was answered.", labels=("path",))
        commands = HistogramMetricFamily("connmgr_exec_seconds", "Until a command was answered.")
        answered, durations = daemon.counts.snapshot()
        for (path, status), number in answered.items():
            requests.add_metric((path, str(status)), number)
        for path, taken in durations.items():
            times.add_metric((path,), taken.cumulative(), taken.total)
        run = durations.get(EXEC, Durations())
        commands.add_metric((), run.cumulative(), run.total)
        yield from (requests, times, commands)
        yield CounterMetricFamily("connmgr_audit_lost", "Entries that could not be written.", value=daemon.audit.lost)
        changes = daemon.vault.database.changes
        yield CounterMetricFamily("connmgr_vault_changes", "Transactions that changed the vault.", value=changes)
        targets = CounterMetricFamily("connmgr_run_targets", "Targets of runs that have ended here.", labels=("state",))
        for state, number in daemon.runs.ended_targets.items():
            targets.add_metric((state,), number)
        yield targets
        for name, help, value in _gauges(daemon):
            yield GaugeMetricFamily(name, help, value=value)
        build = GaugeMetricFamily("connmgr_build_info", "The version that runs.", labels=("version",))
        build.add_metric((__version__,), 1)
        yield build


def _gauges(daemon: Services) -> Iterator[tuple[str, str, float]]:
    yield "connmgr_uptime_seconds", "Since the daemon has started.", time.monotonic() - daemon.counts.began
    running = [shell for shell in daemon.shells.status() if shell.state != "lost"]
    yield "connmgr_open_shells", "Shell sessions that run.", len(running)
    yield "connmgr_slots_in_use", "Requests that wait for machines.", daemon.slots.in_use
    yield "connmgr_slots", "Requests that may wait for machines.", daemon.slots.count
    yield "connmgr_blobs", "Blobs that are stored.", daemon.blobs.number
    yield "connmgr_blob_bytes", "Bytes of all blobs.", daemon.blobs.used
    yield "connmgr_runs", "Runs that this daemon works on.", daemon.runs.active
    yield "connmgr_client_sessions", "Tokens that are valid.", daemon.tokens.number
