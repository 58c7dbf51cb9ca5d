"""What the store takes and gives besides core's values: trials, sweeps, revisions, misses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.limits import NO_LIMITS, Limits
from tunedex.core.measurement import Failure, Measurement
from tunedex.core.problem import Problem
from tunedex.core.row import Row


class Stage(StrEnum):
    """When a trial was taken: while searching, or in the interleaved final."""

    SEARCH = "search"
    FINAL = "final"


class SweepStatus(StrEnum):
    """``running`` also after a kill: a sweep that ends by itself says how."""

    RUNNING = "running"
    DONE = "done"
    PARTIAL = "partial"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """One config tried on one problem on one device in one environment.

    ``warm_us`` is the median with a warm L2 cache, taken in finals only; ``clock_mhz``, ``temperature_c`` and
    ``throttle`` are read beside the measurement where the device reports them. ``contended`` says whether other work
    ran on the device meanwhile, None where that is unknown. ``max_error`` is the bound under which the result was
    accepted or refused; None is the lossless rule.
    """

    problem: Problem
    device: str
    environment: str
    kernel_version: str
    config: Config
    outcome: Measurement | Failure
    stage: Stage = Stage.SEARCH
    sweep: int | None = None
    warm_us: float | None = None
    clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle: str | None = None
    id: int | None = None
    created_at: datetime | None = None
    max_error: float | None = None
    contended: bool | None = None


@dataclass(frozen=True)
class Tried:
    """That ``problem`` was tried on a device in an environment, in so many ``trials``."""

    device: str
    environment: str
    problem: Problem
    trials: int


@dataclass(frozen=True)
class Sweep:
    """One run of ``tuner sweep`` on one device, with the options and the limits it ran under."""

    device: str
    environment: str
    options: Mapping[str, Any]
    status: SweepStatus = SweepStatus.RUNNING
    id: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    limits: Limits = NO_LIMITS


@dataclass(frozen=True)
class CurvePoint:
    """A config that was faster than those before it: after how many trials of its problem, the failed ones included,
    and how many seconds of the sweep, and its time as searching took it."""

    trials: int
    seconds: float
    best_us: float
    config: Config


@dataclass(frozen=True)
class Curve:
    """The best time so far of one problem in one sweep, which tried ``trials`` configs, the last after ``seconds``."""

    problem: Problem
    trials: int
    seconds: float
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True)
class Best:
    """A published row with its problem and the revisions it is valid for: from ``since``, up to before ``until``."""

    device: str
    problem: Problem
    row: Row
    since: int
    until: int | None = None
    id: int | None = None


@dataclass(frozen=True)
class Miss:
    """A problem that was asked for on a device and had no exact answer."""

    device: str
    problem: Problem
    count: int
    first_seen: datetime
    last_seen: datetime
    id: int | None = None


@dataclass(frozen=True)
class Ceilings:
    """What a device reaches in practice in one environment, measured once.

    ``copy_bytes_s`` counts bytes read and written; ``flops_s`` maps a `Cost.peak` (``bfloat16``, ``tf32``, ...) to
    the rate of the vendor's matrix product. ``cache_bytes_s`` is the rate at which the L2 cache is read; None where
    there is none to speak of, or where it was not measured.
    """

    copy_bytes_s: float
    flops_s: Mapping[str, float] = field(default_factory=dict)
    cache_bytes_s: float | None = None

    def highest(self, other: Ceilings) -> Ceilings:
        """The higher of both in each rate."""
        peaks = {**other.flops_s, **self.flops_s}
        return Ceilings(
            max(self.copy_bytes_s, other.copy_bytes_s),
            {peak: max(self.flops_s.get(peak, 0.0), other.flops_s.get(peak, 0.0)) for peak in peaks},
            max(self.cache_bytes_s or 0.0, other.cache_bytes_s or 0.0) or None,
        )

    def at_most(self, copy_bytes_s: float | None, flops_s: Mapping[str, float]) -> Ceilings:
        """These, no rate above what the device can reach at all; one that is not known there stays as it is."""
        return Ceilings(
            min(self.copy_bytes_s, copy_bytes_s or self.copy_bytes_s),
            {peak: min(rate, flops_s.get(peak, rate)) for peak, rate in self.flops_s.items()},
            self.cache_bytes_s,
        )

    def floor_us(self, flops: float, peak: str, bytes_: float) -> float:
        """The shortest time: the longer of bytes / copy rate and FLOPs / product rate, in microseconds."""
        rate = self.flops_s.get(peak)
        return 1e6 * max(bytes_ / self.copy_bytes_s, flops / rate if rate else 0.0)


@dataclass(frozen=True)
class DeviceSummary:
    """A device and what is remembered of it.

    ``environments`` counts those it was measured in, ``kernels`` and ``problems`` those with a published best, and
    ``last_measured`` is the time of its newest trial or published row.
    """

    device: Device
    environments: int = 0
    kernels: int = 0
    problems: int = 0
    trials: int = 0
    last_measured: datetime | None = None


T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some of a list, in its order; ``next`` is what to pass as ``after`` for those that follow, None at the end."""

    items: list[T]
    next: str | None = None
