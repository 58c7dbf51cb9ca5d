"""The rounds of a final: one sample of each config a round, until it is settled which of them is the fastest.

Every other round runs in reverse order, so that a drift of the clocks meets all configs alike; and two configs are
compared by the ratios of their samples of the same rounds, from which a drift cancels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from tunedex.core.measurement import Failure
from tunedex.tuner.sampling import Stopwatch, median_interval
from tunedex.tuner.settings import Finals

K = TypeVar("K", bound=Hashable)


def interleaved(
    stopwatches: Mapping[K, Stopwatch],
    seconds: float,
    finals: Finals,
    *,
    failure_of: Callable[[Exception], Failure],
    after_round: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, list[float] | Failure]:
    """Samples of each config in microseconds, or its failure, which ends its part and no other's.

    Rounds are taken for ``seconds`` by ``clock``, at least ``finals.min_rounds`` and at most ``finals.rounds``, and
    no more than it takes to settle the fastest. A config that surely lies far behind the leader is left out from then
    on, and has fewer samples. ``after_round`` is called after each round, outside of what is timed.
    """
    samples: dict[K, list[float]] = {name: [] for name in stopwatches}
    failures: dict[K, Failure] = {}
    racing = list(stopwatches)
    end = clock() + seconds
    for turn in range(finals.rounds):
        if turn >= finals.min_rounds and clock() > end:
            break
        for name in racing if turn % 2 == 0 else racing[::-1]:
            try:
                samples[name].append(stopwatches[name]())
            except Exception as error:  # noqa: BLE001 - any failure of a candidate is that candidate's failure
                failures[name] = failure_of(error)
        after_round()
        racing = [name for name in racing if name not in failures]
        if turn + 1 >= finals.min_rounds and racing:
            leader = min(racing, key=lambda name: median(samples[name]))
            least = {name: _least_ratio(samples[name], samples[leader], finals.confidence) for name in racing}
            racing = [name for name in racing if least[name] <= 1 + finals.behind_share]
            if all(ratio >= 1 - finals.settled_share for ratio in least.values()):
                break
    return {name: failures.get(name, samples[name]) for name in stopwatches}


def _least_ratio(mine: Sequence[float], theirs: Sequence[float], confidence: float) -> float:
    """The lower end of the interval of the median ratio of two configs' samples of the same rounds."""
    ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    interval = median_interval(ratios, confidence)
    return interval[0] if interval else ratios[0]
