"""Replays: what counts as a trial, what a sampler is told, and what its loss is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tunedex.interop.recordings import Recording
from tunedex.tuner.replay import Landscape, Replay, Result, replay
from tunedex.tuner.search.study import Shuffled

#: Eight configs of one parameter; the optimum is 1 ms, the median of those that ran 3 ms.
TIMES_MS = (None, 8.0, 4.0, None, 2.0, 1.0, 1.04, 5.0)


def landscape(times_ms: Sequence[float | None] = TIMES_MS) -> Landscape:
    configs = tuple({"block": 2**n} for n in range(len(times_ms)))
    return Landscape(Recording("made_up", "made_up", "a GPU", ("block",), configs, tuple(times_ms)))


class Scripted:
    """A proposer that follows a script, and remembers what it was told."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = list(script)
        self.told: list[tuple[int, float | None]] = []

    def ask(self) -> int | None:
        return self.script.pop(0) if self.script else None

    def tell(self, point: int, value: float | None) -> None:
        self.told.append((point, value))


def test_the_loss_is_of_the_best_so_far_and_of_the_median_config_before_there_is_one() -> None:
    losses = landscape().losses([0, 3, 1, 4, 2, 5], trials=8)
    assert losses.tolist() == pytest.approx([2, 2, 7, 1, 1, 0, 0, 0])


def test_a_trace_that_is_longer_than_the_trials_is_cut() -> None:
    assert landscape().losses([1, 2, 5], trials=2).tolist() == [7, 3]


def test_a_search_that_tries_nothing_is_at_the_median() -> None:
    assert landscape().losses([], trials=3).tolist() == [2, 2, 2]


def test_a_proposer_is_told_the_logarithm_of_the_time_and_none_of_a_failure() -> None:
    proposer = Scripted([4, 0, 5])
    assert replay(proposer, landscape(), 10).trace == (4, 0, 5)
    assert proposer.told == [(4, math.log(2.0)), (0, None), (5, 0.0)]


def test_a_batch_is_proposed_before_any_of_it_is_told() -> None:
    class Watching(Scripted):
        def ask(self) -> int | None:
            known.append(len(self.told))
            return super().ask()

    known: list[int] = []
    assert replay(Watching([1, 2, 3, 4, 5]), landscape(), 5, batch=2).trace == (1, 2, 3, 4, 5)
    assert known == [0, 0, 2, 2, 4]


def test_the_trials_bound_a_search() -> None:
    assert replay(Scripted([1, 2, 3, 4]), landscape(), 3).trace == (1, 2, 3)


@pytest.mark.parametrize("script", [[1, 1], [8], [-1]])
def test_a_proposer_that_breaks_its_word_is_found_out(script: list[int]) -> None:
    with pytest.raises(RuntimeError, match="was proposed before, or is none"):
        replay(Scripted(script), landscape(), 5)


def test_random_takes_every_point_once_in_an_order_of_its_seed() -> None:
    traces = [replay(Shuffled(8, seed), landscape(), 100).trace for seed in (0, 0, 1)]
    assert sorted(traces[0]) == list(range(8))
    assert traces[0] == traces[1] != traces[2]


def test_a_result_tells_means_spreads_and_the_median_of_trials_to_5_percent() -> None:
    # 1.04 ms is near the optimum of 1 ms
    traces = [(1, 6, 2), (4, 1, 2), (2, 5, 4)]
    result = Result.of(landscape(), [Replay(trace, sampler_s=0.3) for trace in traces], trials=12)
    assert result.trials_to_near == [2, math.inf, 2]
    document = result.to_dict()
    assert document["configs"] == 8
    assert document["optimum_ms"] == 1.0
    assert document["median_ms"] == 3.0
    assert document["seeds"] == 3
    found = np.array([0.04, 1.0, 0.0])
    assert document["loss"] == {"10": pytest.approx(found.mean()), "12": pytest.approx(found.mean())}
    assert document["loss_deviation"] == {"10": pytest.approx(found.std()), "12": pytest.approx(found.std())}
    assert document["trials_to_5_percent"] == 2
    assert document["ms_per_trial"] == pytest.approx(100)


def test_the_budgets_are_those_up_to_the_trials() -> None:
    for trials, budgets in [(200, [10, 20, 50, 100, 200]), (60, [10, 20, 50, 60]), (5, [5])]:
        assert Result.of(landscape(), [Replay((1,), 0.0)], trials).budgets() == budgets


def test_a_search_that_is_never_near_has_no_number_of_trials() -> None:
    assert Result.of(landscape(), [Replay((1,), 0.0)], 10).to_dict()["trials_to_5_percent"] is None
