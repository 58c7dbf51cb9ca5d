"""How many samples a config gets: until its median is known well enough, or it is surely too slow to win.

The interval of the median is that of the order statistics: of n independent samples the number below the median of
their distribution is binomial (n, 1/2), whatever the distribution, so the r-th smallest and the r-th largest sample
enclose it with probability ``1 - 2 P(B < r)``. It needs no normality, which run times do not have. H. A. David and
H. N. Nagaraja, "Order Statistics", 3rd edition, section 7.1; recommended for run times by T. Hoefler and R. Belli,
"Scientific Benchmarking of Parallel Computing Systems", SC 2015, section 3.1. The probability is of each look at the
samples, and there is one after each sample.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Sequence
from functools import cache
from math import comb

from tunedex.tuner.settings import Timing

#: Takes one sample and returns it in microseconds per call.
Stopwatch = Callable[[], float]


def take(
    stopwatch: Stopwatch,
    timing: Timing,
    best_us: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Samples of one config in the order in which they were taken, as many as `Timing` wants.

    ``best_us`` is the best time so far, which says who is slow; ``clock`` gives seconds.
    """
    samples: list[float] = []
    ordered: list[float] = []
    end = clock() + timing.most_s
    while len(samples) < timing.max_samples:
        samples.append(stopwatch())
        insort(ordered, samples[-1])
        if best_us and _slow(ordered, timing, best_us):
            break
        if len(samples) >= timing.min_samples and (_settled(ordered, timing) or clock() > end):
            break
    return samples


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample at ``share`` of the way through the sorted ``samples`` (nearest rank, a half up)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * (len(ordered) - 1) + 0.5))]


def median_interval(ordered: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """The narrowest pair of symmetric order statistics of the sorted samples that encloses the median of their
    distribution with at least ``confidence``; None where there are too few (under six for 95 %)."""
    rank = _rank(len(ordered), confidence)
    return (ordered[rank - 1], ordered[-rank]) if rank else None


@cache
def _rank(count: int, confidence: float) -> int:
    """The largest r with ``1 - 2 P(B < r) >= confidence`` for B binomial (count, 1/2); 0 where there is none."""
    missed, rank = 0, 0
    while rank < count // 2:
        missed += comb(count, rank)
        if missed / 2 ** (count - 1) > 1 - confidence:
            break
        rank += 1
    return rank


def _settled(ordered: Sequence[float], timing: Timing) -> bool:
    interval = median_interval(ordered, timing.confidence)
    if interval is None:
        return False
    return interval[1] - interval[0] <= 2 * timing.target_share * abs(quantile(ordered, 0.5))


def _slow(ordered: Sequence[float], timing: Timing, best_us: float) -> bool:
    if len(ordered) == 2 and ordered[0] > timing.give_up_factor * best_us:
        return True
    interval = median_interval(ordered, timing.confidence)
    return interval is not None and interval[0] > (1 + timing.lag_share) * best_us
