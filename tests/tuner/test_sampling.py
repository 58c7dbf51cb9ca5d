"""How many samples are taken: the median's interval holds what it promises, and nobody is timed longer than needed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedex.tuner.sampling import median_interval, quantile, take
from tunedex.tuner.settings import SETTINGS

TIMING = SETTINGS.timing

#: The median of each is 1: what is multiplied with a time to make a noisy one.
NOISES: dict[str, Callable[[random.Random], float]] = {
    "lognormal": lambda draw: math.exp(draw.gauss(0.0, 0.02)),
    "pareto": lambda draw: draw.paretovariate(1.2) / 2 ** (1 / 1.2),
    "cauchy": lambda draw: 1 + 0.01 * math.tan(math.pi * (draw.random() - 0.5)),
}


def noisy(noise: str, seed: int, time_us: float = 100.0) -> Iterator[float]:
    draw = random.Random(seed)
    while True:
        yield time_us * NOISES[noise](draw)


def never_late() -> float:
    return 0.0


@pytest.mark.parametrize("noise", ["lognormal", "pareto", "cauchy"])
@pytest.mark.parametrize("count", [6, 7, 15, 50, 200])
def test_the_interval_holds_the_median_as_often_as_it_says(noise: str, count: int) -> None:
    runs = 3000
    samples = noisy(noise, seed=count)
    held = 0
    for _ in range(runs):
        interval = median_interval(sorted(next(samples) for _ in range(count)), 0.95)
        assert interval is not None
        held += interval[0] <= 100.0 <= interval[1]
    # Three standard deviations of a binomial share; intervals of discrete ranks are a little wider than asked for.
    assert held / runs > 0.95 - 3 * math.sqrt(0.05 * 0.95 / runs)
    assert held / runs < 0.995


@pytest.mark.parametrize(
    ("count", "ranks"), [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (15, (4, 12)), (100, (40, 61)), (5000, (2431, 2570))]
)
def test_the_ranks_are_those_of_the_tables(count: int, ranks: tuple[int, int]) -> None:
    assert median_interval([float(n) for n in range(1, count + 1)], 0.95) == ranks


@pytest.mark.parametrize("count", range(6))
def test_under_six_samples_there_is_no_interval_of_95_percent(count: int) -> None:
    assert median_interval([1.0] * count, 0.95) is None


def test_a_steady_config_takes_the_least_samples() -> None:
    assert len(take(lambda: 100.0, TIMING, clock=never_late)) == TIMING.min_samples


@pytest.mark.parametrize("noise", ["lognormal", "cauchy"])
def test_the_median_of_what_settled_is_near_the_true_one(noise: str) -> None:
    near = 0
    for seed in range(300):
        samples = take(noisy(noise, seed).__next__, TIMING, clock=never_late)
        near += abs(quantile(samples, 0.5) / 100.0 - 1) < 2 * TIMING.target_share
    assert near / 300 > 0.95


def test_noise_takes_more_samples() -> None:
    counts = []
    for spread in (0.001, 0.02, 0.2):
        draw = random.Random(1)
        counts.append(len(take(lambda: 100.0 * math.exp(draw.gauss(0, spread)), TIMING, clock=never_late)))  # noqa: B023
    assert counts == sorted(counts)
    assert counts[0] == TIMING.min_samples < counts[1] < counts[2] == TIMING.max_samples


times = st.floats(min_value=-1e3, max_value=1e6) | st.sampled_from([0.0, math.inf, math.nan])


@given(
    given_times=st.lists(times, min_size=1, max_size=60),
    least=st.integers(1, 30),
    more=st.integers(0, 30),
    target_share=st.floats(1e-4, 0.5),
    best_us=st.none() | st.floats(1e-3, 1e3),
    seconds=st.floats(0.0, 1e-2),
)
def test_whatever_the_times_the_number_of_samples_has_bounds(
    given_times: list[float], least: int, more: int, target_share: float, best_us: float | None, seconds: float
) -> None:
    timing = replace(TIMING, min_samples=least, max_samples=least + more, target_share=target_share)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += seconds
        return now

    source = chain.from_iterable(repeat(given_times))
    samples = take(source.__next__, timing, best_us, clock)
    assert 1 <= len(samples) <= least + more
    assert best_us is not None or len(samples) >= least
    assert all(a == b or (a != a and b != b) for a, b in zip(samples, chain.from_iterable(repeat(given_times))))  # noqa: B905


def test_time_that_is_up_ends_the_sampling_of_what_does_not_settle() -> None:
    now = iter(range(100))
    wild = iter([100.0, 300.0] * 100)
    samples = take(wild.__next__, replace(TIMING, most_s=20.0), clock=lambda: float(next(now)))
    assert TIMING.min_samples < len(samples) < 30


def test_what_is_many_times_slower_is_left_after_two_samples() -> None:
    assert take(lambda: 301.0, TIMING, best_us=100.0, clock=never_late) == [301.0, 301.0]


def test_what_is_surely_slower_is_left_as_soon_as_that_is_known() -> None:
    slower = noisy("lognormal", seed=3, time_us=130.0)
    assert len(take(slower.__next__, TIMING, best_us=100.0, clock=never_late)) == 6


def test_what_is_as_fast_as_the_best_is_rarely_left() -> None:
    left = 0
    for seed in range(300):
        samples = noisy("pareto", seed)
        left += len(take(samples.__next__, TIMING, best_us=100.0, clock=never_late)) < TIMING.min_samples
    assert left / 300 < 0.05


def test_quantiles() -> None:
    assert quantile([3.0], 0.5) == 3.0
    assert quantile([4.0, 1.0, 3.0, 2.0, 5.0], 0.5) == 3.0
    assert quantile([4.0, 1.0, 3.0, 2.0, 5.0], 0.2) == 2.0
    assert quantile([4.0, 1.0, 3.0, 2.0, 5.0], 0.8) == 4.0
