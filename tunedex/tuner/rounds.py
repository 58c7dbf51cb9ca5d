"""The rounds of a final: one sample of each config a round, until it is settled which of them is the fastest.

Every other round runs in reverse order, so that a drift of the clocks meets all configs alike; and two configs are
compared by the ratios of their samples of the same rounds, from which a drift cancels. So are their times: a config
that was left out early is told the time that it would have had in all the leader's rounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from tunedex.core.measurement import Failure
from tunedex.core.row import MARGIN
from tunedex.tuner.sampling import Stopwatch, median_interval
from tunedex.tuner.settings import Finals

K = TypeVar("K", bound=Hashable)

#: How many times longer than the leader's a time is that it beats.
_BEATEN = 1 / (1 - MARGIN)


def interleaved(
    stopwatches: Mapping[K, Stopwatch],
    seconds: float,
    finals: Finals,
    *,
    failure_of: Callable[[Exception], Failure],
    against: Collection[K] = (),
    after_round: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, list[float] | Failure]:
    """Samples of each config in microseconds, or its failure, which ends its part and no other's.

    Rounds are taken for ``seconds`` by ``clock``, at least ``finals.min_rounds`` and at most ``finals.rounds``, and
    no more than it takes to settle who is the fastest, and whether by more than the margin that it must beat those
    ``against`` it by. That is looked at after the least number of rounds, after twice as many, and so on: each look
    may err. A config that surely lies far behind the leader is left out from then on, and has fewer samples.
    ``after_round`` is called after each round, outside of what is timed.

    The samples of a config are scaled alike, so that their median is the leader's times the median ratio of the two in
    the rounds that both ran.
    """
    samples: dict[K, list[float]] = {name: [] for name in stopwatches}
    failures: dict[K, Failure] = {}
    racing = list(stopwatches)
    end = clock() + seconds
    look = finals.min_rounds
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
        if turn + 1 == look and racing:
            look *= 2
            leader = _leader(racing, samples)
            ratios = {name: _ratio(samples[name], samples[leader], finals.confidence) for name in racing}
            racing = [name for name in racing if ratios[name][0] <= 1 + finals.behind_share]
            fastest = all(least >= 1 - finals.settled_share for least, _ in ratios.values())
            beaten = (ratios[name] for name in against if name in ratios and name != leader)
            if fastest and all(least > _BEATEN or most < _BEATEN for least, most in beaten):
                break
    if racing:
        leading = samples[_leader(racing, samples)]
        samples = {name: _scaled(mine, leading) for name, mine in samples.items() if name not in failures}
    return {name: failures[name] if name in failures else samples[name] for name in stopwatches}


def _leader(racing: Sequence[K], samples: Mapping[K, list[float]]) -> K:
    return min(racing, key=lambda name: median(samples[name]))


def _scaled(mine: list[float], leading: Sequence[float]) -> list[float]:
    """``mine``, whose median becomes that of ``leading`` times the median ratio to it in the rounds of both. Where the
    one or the other is no time, they are left as they are, to be refused."""
    shared = leading[: len(mine)]
    now_us = median(mine)
    if not all(0 < us < math.inf for us in (now_us, *shared)):
        return mine
    time_us = median(leading) * median(a / b for a, b in zip(mine, shared, strict=True))
    return [us * (time_us / now_us) for us in mine]


def _ratio(mine: Sequence[float], theirs: Sequence[float], confidence: float) -> tuple[float, float]:
    """The interval of the median ratio of two configs' samples of the same rounds."""
    # A broken clock may tell zero, which is no time at all and is refused after the rounds.
    ratios = sorted(a / b if b else math.inf for a, b in zip(mine, theirs, strict=True))
    return median_interval(ratios, confidence) or (ratios[0], ratios[-1])
