"""The service's own figures for Prometheus, in a registry of the app's own (several apps live in one test process)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.core.views import JobState

# Held reads last up to their wait; the buckets are for the rest, where p99 is milliseconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


class _Gauges(Collector):
    """Values that are read when they are asked for."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        for name, value in self._read().items():
            yield GaugeMetricFamily(f"rankcall_{name}", name.replace("_", " "), value=value)


class Meters:
    """Counts requests by route, and renders `/metrics`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "rankcall_http_requests",
            "requests answered",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "rankcall_http_request_seconds",
            "time to the end of the answer",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._jobs = Gauge("rankcall_jobs", "jobs by state", ("state",), registry=self.registry)
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def gauges(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Adds values that are read at each scrape."""
        self.registry.register(_Gauges(read))

    def answered(self, method: str, route: str, status: int, elapsed_s: float) -> None:
        key = (method, route, status)
        children = self._known.get(key)
        if children is None:
            children = self._known[key] = (
                self._requests.labels(method, route, str(status)),
                self._seconds.labels(method, route),
            )
        children[0].inc()
        children[1].observe(elapsed_s)

    def render(self, jobs: Mapping[str, int]) -> bytes:
        """The text for Prometheus; `jobs` says how many there are of each state."""
        for state in get_args(JobState):
            self._jobs.labels(state).set(jobs.get(state, 0))
        return generate_latest(self.registry)
