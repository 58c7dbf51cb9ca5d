"""The rounds of a final, with clocks and times that are made up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from statistics import median

import pytest

from tunedex.core.measurement import Failure, FailureKind
from tunedex.tuner.rounds import interleaved
from tunedex.tuner.settings import Finals

SETTINGS = Finals()
SAMPLE_S = 0.002


class Clocked:
    """A clock that each sample moves on, and times that depend on it."""

    def __init__(self, times: dict[str, float], noise: float = 0.0, drift: Callable[[float], float] = lambda now: 1.0):
        self.now = 0.0
        self._times, self._noise, self._drift = times, noise, drift
        self._dice = random.Random(0)

    def race(self, names: Sequence[str], settings: Finals = SETTINGS, against: Sequence[str] = ()) -> dict:
        return interleaved(
            {name: self._stopwatch(name) for name in names},
            settings.seconds,
            settings,
            failure_of=lambda error: Failure(FailureKind.CRASH, str(error)),
            against=against,
            clock=lambda: self.now,
        )

    def _stopwatch(self, name: str) -> Callable[[], float]:
        def take() -> float:
            factor = self._drift(self.now)
            self.now += SAMPLE_S
            return self._times[name] * factor * (1 + self._dice.gauss(0, self._noise))

        return take


def fastest(samples: dict[str, list[float]]) -> str:
    return min(samples, key=lambda name: median(samples[name]))


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_a_slow_start_does_not_make_the_first_lose(order: tuple[str, ...]) -> None:
    """The device is 30 % slower for its first 100 ms; the configs are 1 % apart."""
    device = Clocked({"a": 100, "b": 101, "c": 102}, drift=lambda now: 1.3 if now < 0.1 else 1.0)
    assert fastest(device.race(order)) == "a"


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_clocks_that_sink_all_along_do_not_make_the_last_lose(order: tuple[str, ...]) -> None:
    device = Clocked({"a": 100, "b": 101, "c": 102}, noise=0.005, drift=lambda now: 1 + 0.1 * now)
    assert fastest(device.race(order)) == "a"


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_clocks_that_move_when_one_is_left_out_do_not_change_its_place(factor: float) -> None:
    """The third is left out after the least number of rounds; then a power limit moves the clock."""
    early_s = 3 * SETTINGS.min_rounds * SAMPLE_S
    device = Clocked({"a": 100, "b": 100.1, "c": 115}, 0.01, lambda now: factor if now >= early_s else 1.0)
    found = device.race("abc")
    assert len(found["c"]) == SETTINGS.min_rounds < len(found["a"])
    assert median(found["a"]) == pytest.approx(factor * 100, rel=0.01)
    assert median(found["c"]) / median(found["a"]) == pytest.approx(1.15, rel=0.01)


def test_it_ends_as_soon_as_the_fastest_is_known() -> None:
    apart, close = Clocked({"a": 100, "b": 120}, 0.01), Clocked({"a": 100, "b": 100.1}, 0.01)
    assert len(apart.race("ab")["a"]) < 20
    close.race("ab")
    assert close.now > 3 * apart.now


def test_it_goes_on_until_the_margin_is_decided_against_whom_the_winner_must_beat_by_it() -> None:
    times = {"a": 100, "b": 101.9}
    free, bound = Clocked(times, 0.01), Clocked(times, 0.01)
    free.race("ab")
    bound.race("ab", against="b")
    assert bound.now > 3 * free.now


def test_who_is_far_behind_is_left_out_once_that_is_sure() -> None:
    found = Clocked({"a": 100, "b": 100.1, "c": 150}, 0.01).race("abc")
    assert len(found["c"]) == SETTINGS.min_rounds
    assert len(found["b"]) == len(found["a"]) > 60


def test_rounds_and_time_are_bounded() -> None:
    few = Clocked({"a": 100, "b": 100}, 0.02).race("ab", replace(SETTINGS, rounds=12))
    assert [len(samples) for samples in few.values()] == [12, 12]
    late = Clocked({"a": 100, "b": 100}, 0.02)
    late.race("ab", replace(SETTINGS, seconds=0.1))
    assert 0.1 <= late.now <= 0.1 + 2 * SAMPLE_S * 2
    none = Clocked({"a": 100, "b": 100}, 0.02).race("ab", replace(SETTINGS, seconds=0.0))
    assert [len(samples) for samples in none.values()] == [SETTINGS.min_rounds] * 2


def test_one_that_fails_ends_its_own_part_and_no_other() -> None:
    calls = 0

    def fails() -> float:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("planted")
        return 1.0

    found = interleaved(
        {"good": lambda: 2.0, "bad": fails},
        1.0,
        SETTINGS,
        failure_of=lambda error: Failure(FailureKind.CRASH, str(error)),
        clock=lambda: 0.0,
    )
    assert found["bad"] == Failure(FailureKind.CRASH, "planted")
    assert calls == 3
    assert found["good"] == [2.0] * SETTINGS.min_rounds


def test_the_device_is_looked_at_after_each_round() -> None:
    looks: list[int] = []
    found = interleaved(
        {"a": lambda: 1.0},
        1.0,
        SETTINGS,
        failure_of=lambda error: Failure(FailureKind.CRASH),
        after_round=lambda: looks.append(1),
        clock=lambda: 0.0,
    )
    assert [len(looks)] == [len(samples) for samples in found.values() if not isinstance(samples, Failure)]
