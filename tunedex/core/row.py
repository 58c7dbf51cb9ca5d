"""A published row: one tuned config of one problem on one device, and the rules that choose among rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tunedex.core.config import Config
from tunedex.core.limits import NO_LIMITS, Limits, Objective
from tunedex.core.measurement import Measurement, require_time

#: A config must be faster by this share to replace another: less is within the noise of a measurement.
MARGIN = 0.02


@dataclass(frozen=True)
class Row:
    """One tuned config of one problem on one device, as published.

    ``rank`` 0 is the best by the rules; the others are the Pareto set and the runners-up. ``default_us`` and
    ``library_us`` are of the same final as the measurement. ``source`` is ``local``, ``imported`` or ``shipped``.
    """

    rank: int
    config: Config
    measurement: Measurement
    kernel_version: str
    environment: str
    default_us: float | None = None
    library_us: float | None = None
    roofline_share: float | None = None
    warm_us: float | None = None
    source: str = "local"
    measured_at: str = ""

    @property
    def speedup(self) -> float | None:
        """The default's time over this one's; None where the default has no time."""
        return self.default_us / self.measurement.time_us if self.default_us else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "config": self.config.to_dict(),
            "measurement": self.measurement.to_dict(),
            "kernel_version": self.kernel_version,
            "environment": self.environment,
            "default_us": self.default_us,
            "library_us": self.library_us,
            "roofline_share": self.roofline_share,
            "warm_us": self.warm_us,
            "source": self.source,
            "measured_at": self.measured_at,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """What `to_dict` gives; `Snapshot.from_dict` checks what it holds."""
        values = dict(data)
        values["config"] = Config.from_dict(values["config"])
        values["measurement"] = Measurement.from_dict(values["measurement"])
        return cls(**values)

    def check(self) -> None:
        """Check a row whose fields are of their types: whoever chooses among rows divides by their times.

        Raises:
            ValueError: a time is none, the error is no number from 0, or the config is none.
        """
        self.measurement.check()
        for name in ("default_us", "library_us", "warm_us"):
            if (time_us := getattr(self, name)) is not None:
                require_time(name, time_us)
        self.config.check()


def choose(rows: Iterable[Row], limits: Limits = NO_LIMITS) -> Row | None:
    """The row to serve within ``limits``; None where no row meets them.

    By latency, the row of the lowest rank among those allowed stays unless another is faster by more than the
    margin, and so does the library call; ties go to the lower rank, so the same rows give the same choice. At one
    problem, latency and throughput order alike.
    """
    allowed = sorted((row for row in rows if allows(row, limits)), key=lambda row: row.rank)
    if not allowed:
        return None
    if limits.objective is Objective.ERROR:
        return min(allowed, key=lambda row: (row.measurement.error, row.measurement.time_us, row.rank))
    if limits.objective is Objective.MEMORY:
        return min(allowed, key=lambda row: (memory_of(row), row.measurement.time_us, row.rank))
    fastest = min(allowed, key=_speed)
    for kept in (allowed[0], min((row for row in allowed if row.config.library), key=_speed, default=None)):
        if kept and not beats(fastest.measurement.time_us, kept.measurement.time_us):
            return kept
    return fastest


def allows(row: Row, limits: Limits) -> bool:
    """Whether ``row`` meets ``limits``. Several streams timed in a graph serve only who runs in a graph."""
    measurement = row.measurement
    accurate = measurement.lossless if limits.max_error is None else measurement.error <= limits.max_error
    return (
        accurate
        and (limits.max_latency_us is None or measurement.time_us <= limits.max_latency_us)
        and (limits.max_memory is None or memory_of(row) <= limits.max_memory)
        and (limits.same_bits is None or measurement.output_hash == limits.same_bits)
        and (row.config.streams == 1 or not measurement.policy.graph or limits.policy == "graph")
    )


def _speed(row: Row) -> tuple[float, int]:
    return row.measurement.time_us, row.rank


def memory_of(row: Row) -> float:
    """Peak memory in bytes; unknown counts as without bound."""
    peak = row.measurement.peak_memory_bytes
    return float("inf") if peak is None else peak


def beats(time_us: float, other_us: float, margin: float = MARGIN) -> bool:
    """Whether ``time_us`` is faster than ``other_us`` by more than ``margin``."""
    return time_us < other_us * (1 - margin)
