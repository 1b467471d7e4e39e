"""Metrics for Prometheus. Those that TF Serving also has bear its names, so that one dashboard reads both servers.

Latencies are in microseconds, as in TF Serving.
"""

import functools
from collections.abc import Sequence

import prometheus_client

MICROSECONDS = tuple(10 * 1.8**power for power in range(33))  # 10 us to 25 min, as TF Serving's buckets
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PREFIX = ":tensorflow:serving:"


class Metrics:
    """The metrics of one server. Servers in the same process share none."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        # A gauge that only rises: the library would append `_total` to a counter's name.
        self._requests = prometheus_client.Gauge(
            f"{PREFIX}request_count", "Requests by model and status.", ["model_name", "status"], registry=self.registry
        )
        microseconds = functools.partial(prometheus_client.Histogram, buckets=MICROSECONDS, registry=self.registry)
        self._latency = microseconds(
            f"{PREFIX}request_latency",
            "Microseconds from a request's arrival to its answer.",
            ["model_name", "API", "entrypoint"],
        )
        self._runtime = microseconds(
            f"{PREFIX}runtime_latency", "Microseconds of a batch in the model.", ["model_name"]
        )
        self._batch_size = prometheus_client.Histogram(
            f"{PREFIX}batching_session:processed_batch_size", "Rows in a batch.", buckets=ROWS, registry=self.registry
        )
        self._queuing = microseconds(
            f"{PREFIX}batching_session:queuing_latency", "Microseconds that a task waited for its batch."
        )
        self._versions = prometheus_client.Gauge(
            "official_bert_model_version_available",
            "1 for each version that is loaded.",
            ["model_name", "version"],
            registry=self.registry,
        )
        self._in_flight = prometheus_client.Gauge(
            "official_bert_requests_in_flight", "Requests that have no answer yet.", registry=self.registry
        )

    def request_done(self, model: str, status: str, api: str, entrypoint: str, seconds: float) -> None:
        """Counts an answered request. `model` must be a configured model, because Prometheus never drops a label."""
        self._requests.labels(model, status).inc()
        self._latency.labels(model, api, entrypoint).observe(seconds * 1e6)

    def model_ran(self, model: str, seconds: float) -> None:
        """Counts a run of a model."""
        self._runtime.labels(model).observe(seconds * 1e6)

    def batch_formed(self, rows: int, waits: Sequence[float]) -> None:
        """Counts a batch, its rows, and the seconds that each of its tasks waited."""
        self._batch_size.observe(rows)
        for seconds in waits:
            self._queuing.observe(seconds * 1e6)

    def version_available(self, model: str, version: int, available: bool) -> None:
        """Records that a version became available or was unloaded."""
        if available:
            self._versions.labels(model, str(version)).set(1)
        else:
            self._versions.remove(model, str(version))

    def in_flight(self, change: int) -> None:
        """Adds `change` to the number of requests in flight."""
        self._in_flight.inc(change)

    def page(self) -> bytes:
        """Returns the metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)
