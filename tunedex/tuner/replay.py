"""A search replayed on a recording: how close to the optimum it is after so many trials, with no device.

For every sampler alike, a trial is a distinct config of the recording, a failure too. What a search has found is the
fastest config so far, and its loss is that time / the optimum - 1; before the first config that runs, the loss is that
of the median config. A search that ends early keeps what it has found.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tunedex.interop.recordings import Recording
from tunedex.tuner.search.hints import Hint
from tunedex.tuner.search.points import Points
from tunedex.tuner.search.samplers import Sampler, study_of
from tunedex.tuner.settings import SETTINGS


class Proposer(Protocol):
    """What of a `Study` a replay asks."""

    def ask(self) -> int | None:
        """A point that was not proposed before; None where all were."""

    def tell(self, point: int, value: float | None) -> None:
        """The logarithm of a point's time; None for a failure."""


@dataclass(frozen=True)
class Landscape:
    """A recording as a search meets it: its configs as points, and what each of them answers."""

    recording: Recording

    @cached_property
    def points(self) -> Points:
        return Points.of(self.recording.configs)

    @cached_property
    def optimum_ms(self) -> float:
        return min(self.recording.measured_ms)

    @cached_property
    def median_ms(self) -> float:
        """The time of the median config, of those that ran."""
        return median(self.recording.measured_ms)

    def __len__(self) -> int:
        return len(self.recording.configs)

    def value(self, point: int) -> float | None:
        """What a sampler is told of ``point``: the logarithm of its time, None for a failure."""
        time_ms = self.recording.times_ms[point]
        return None if time_ms is None else math.log(time_ms)

    def losses(self, trace: Sequence[int], trials: int) -> NDArray[np.float64]:
        """The loss after each of ``trials`` trials, of which ``trace`` holds the points that were tried."""
        times = (self.recording.times_ms[point] for point in trace)
        best = np.minimum.accumulate([math.inf if time_ms is None else time_ms for time_ms in times] or [math.inf])
        best = np.where(np.isinf(best), self.median_ms, best)[:trials]
        return np.pad(best, (0, trials - len(best)), mode="edge") / self.optimum_ms - 1


@dataclass(frozen=True)
class Replay:
    """One search: the points in the order in which they were tried, and how long its sampler took for them all."""

    trace: tuple[int, ...]
    sampler_s: float


def replay_sampler(
    sampler: Sampler, landscape: Landscape, *, trials: int, seed: int, warm: Sequence[Recording] = ()
) -> Replay:
    """Replay ``sampler`` on ``landscape``. Of the samplers, `auto` alone learns from ``warm``."""
    points = landscape.points
    study = study_of(sampler, points, seed=seed, hints=[hint(points, recording) for recording in warm])
    return replay(study, landscape, trials, batch=SETTINGS.replaying.batch)


def hint(points: Points, recording: Recording) -> Hint:
    """What ``recording`` says of ``points``."""
    times = {
        frozenset(config.items()): None if time_ms is None else math.log(time_ms)
        for config, time_ms in zip(recording.configs, recording.times_ms, strict=True)
    }
    keys = (frozenset(points.values(point).items()) for point in range(len(points)))
    return Hint({point: times[key] for point, key in enumerate(keys) if key in times})


def replay(proposer: Proposer, landscape: Landscape, trials: int, *, batch: int = 1) -> Replay:
    """Let ``proposer`` search, told what it found after every ``batch`` proposals.

    Raises:
        RuntimeError: it proposes what is no point, or a point twice.
    """
    trace: dict[int, None] = {}
    clock = _Clock()
    while len(trace) < trials:
        with clock:
            asked = list(_some(proposer, min(batch, trials - len(trace))))
        for point in asked:
            if point in trace or not 0 <= point < len(landscape):
                raise RuntimeError(f"point {point} was proposed before, or is none")
            trace[point] = None
        with clock:
            for point in asked:
                proposer.tell(point, landscape.value(point))
        if not asked:
            break
    return Replay(tuple(trace), clock.spent_s)


@dataclass(frozen=True)
class Result:
    """What searches with unlike seeds found on one recording.

    ``losses`` has a row a seed and a column a trial; ``trials_to_near`` is, for each seed, the number of trials after
    which the loss is at most `Replaying.near_share`, infinite where it never is.
    """

    landscape: Landscape
    losses: NDArray[np.float64]
    ms_per_trial: float

    @classmethod
    def of(cls, landscape: Landscape, replays: Sequence[Replay], trials: int) -> Result:
        tried = sum(len(each.trace) for each in replays)
        return cls(
            landscape,
            np.array([landscape.losses(each.trace, trials) for each in replays]),
            1e3 * sum(each.sampler_s for each in replays) / max(1, tried),
        )

    @property
    def trials_to_near(self) -> list[float]:
        near = self.losses <= SETTINGS.replaying.near_share
        return [float(row.argmax() + 1) if row.any() else math.inf for row in near]

    def budgets(self) -> list[int]:
        """The numbers of trials after which the loss is told, up to those that were run."""
        trials = self.losses.shape[1]
        return [budget for budget in SETTINGS.replaying.budgets if budget < trials] + [trials]

    def loss(self, budget: int) -> float:
        """The mean over the seeds."""
        return float(self.losses[:, budget - 1].mean())

    def spread(self, budget: int) -> float:
        """The standard deviation over the seeds."""
        return float(self.losses[:, budget - 1].std())

    def to_dict(self) -> dict[str, object]:
        """As `tuner replay --json` prints it; a median of trials that is infinite is null."""
        near = median(self.trials_to_near)
        return {
            "configs": len(self.landscape),
            "optimum_ms": self.landscape.optimum_ms,
            "median_ms": self.landscape.median_ms,
            "seeds": len(self.losses),
            "loss": {str(budget): self.loss(budget) for budget in self.budgets()},
            "loss_deviation": {str(budget): self.spread(budget) for budget in self.budgets()},
            "trials_to_5_percent": near if math.isfinite(near) else None,
            "ms_per_trial": self.ms_per_trial,
        }


def _some(proposer: Proposer, count: int) -> Iterator[int]:
    """Up to ``count`` proposals."""
    for _ in range(count):
        if (point := proposer.ask()) is None:
            return
        yield point


class _Clock:
    """The seconds spent inside its blocks, all together."""

    spent_s = 0.0

    def __enter__(self) -> None:
        self._start_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.spent_s += time.perf_counter() - self._start_s
