"""What the server counts, as Prometheus reads it. Every label takes its values from a small fixed set."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from tunedex.core.snapshot import Match

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4

#: Seconds; the finest are for answers from memory, the coarsest for a database that is slow.
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

#: The label of a request that no route takes: the path is the caller's, so it is no label.
UNMATCHED = "unmatched"
_METHODS = frozenset({"GET", "HEAD", "POST"})


class Metrics:
    """The counters of one app, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tunedex_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "tunedex_request_seconds", "Time to answer.", ("route",), buckets=BUCKETS_S, registry=self.registry
        )
        self._lookups = Counter("tunedex_lookups", "Lookups answered, by match.", ("match",), registry=self.registry)
        self._dropped = Counter("tunedex_misses_dropped", "Misses not held, for want of room.", registry=self.registry)
        self._stale = Counter(
            "tunedex_stale_snapshots",
            "Times a held snapshot answered because the database did not.",
            registry=self.registry,
        )
        self._revision = Gauge(
            "tunedex_revision", "The newest revision that a channel offers.", ("channel",), registry=self.registry
        )
        self._database_up = Gauge(
            "tunedex_database_up", "Whether the database answered the last scrape.", registry=self.registry
        )
        for match in Match:  # so that a rate exists before the first of a kind
            self._lookups.labels(match.value)

    def request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count one request; ``route`` is the route's template, None where none matched."""
        label = route or UNMATCHED
        self._requests.labels(method if method in _METHODS else "other", label, str(status)).inc()
        self._seconds.labels(label).observe(seconds)

    def lookup(self, match: Match) -> None:
        self._lookups.labels(match.value).inc()

    def dropped(self, count: int) -> None:
        self._dropped.inc(count)

    def stale(self) -> None:
        self._stale.inc()

    def revisions(self, newest: Mapping[str, int] | None) -> None:
        """The newest revision by channel; None where the database does not answer, which leaves the last known."""
        self._database_up.set(0 if newest is None else 1)
        for channel, revision in (newest or {}).items():
            self._revision.labels(channel).set(revision)

    def text(self) -> bytes:
        return generate_latest(self.registry)
