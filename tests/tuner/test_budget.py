"""Budgets, on a device whose clock is computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated import Simulation, task_of

from tunedex.core.config import Config
from tunedex.db import Store, open_store
from tunedex.db.records import Stage
from tunedex.kernels.base import Kernel
from tunedex.tuner.budget import Budget, Due
from tunedex.tuner.report import Effort
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.tasks import Task

FINALS, BUDGETING = SETTINGS.finals, SETTINGS.budgeting


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """More configs than any of the budgets has time for."""
    monkeypatch.setenv("PLANTED_SPACE", json.dumps({"steps": [1, 2, 4, 8], "width": list(range(60)), "order": ["a"]}))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "tunedex.db")) as store:
        yield store


def time_us(config: Config) -> float:
    return 130.0 if config.library else 100.0 + hash_share(config)


def hash_share(config: Config) -> float:
    return int(config.key[:4], 16) / 2**12


@pytest.mark.parametrize(("budget_s", "tasks"), [(60, 1), (165, 1), (165, 3), (300, 1), (300, 6), (600, 6)])
@pytest.mark.parametrize("start_s", [1.0, 8.0])
def test_a_budget_covers_everything_and_is_kept_within_a_tenth(
    budget_s: float, tasks: int, start_s: float, steps: Kernel, store: Store
) -> None:
    simulation = Simulation(time_us, noise=0.01, start_s=start_s, measure_s=1.5)
    report = simulation.sweep(
        store, [task_of(steps, rows=8 + n) for n in range(tasks)], Effort(None, budget_s), begun=0.0
    )
    assert 0.85 * budget_s <= simulation.now <= 1.1 * budget_s
    assert report.complete
    assert len(report.results) == tasks
    # Shared evenly: no task gets much more than another.
    trials = [result.trials for result in report.results]
    assert max(trials) <= 2 * min(trials) + 8


def test_time_that_a_small_task_leaves_goes_to_the_others(steps: Kernel, store: Store) -> None:
    simulation = Simulation(time_us, measure_s=2.0)
    done = Simulation(time_us)
    first, second = task_of(steps, rows=8), task_of(steps, rows=9)
    done.sweep(store, [first], Effort(30, None))
    report = simulation.sweep(store, [first, second], Effort(60, 120.0), begun=0.0)
    alone = {result.problem: result.trials for result in report.results}
    assert simulation.now <= 132.0
    assert alone[first.problems[0]] > 30
    assert sum(alone.values()) - 30 >= 0.7 * 120.0 / simulation.measure_s - 20


def test_one_too_small_for_anything_still_measures_default_and_library(steps: Kernel, store: Store) -> None:
    simulation = Simulation(time_us)
    report = simulation.sweep(store, [task_of(steps), task_of(steps, rows=9)], Effort(None, 0.5), begun=0.0)
    assert report.complete
    for result in report.results:
        assert result.trials == 2
        assert result.default_us is not None
        assert result.library_us is not None
    assert len(simulation.finals) == 2
    timed = {trial.config.library for trial in store.list_trials(limit=100).items if trial.stage is Stage.FINAL}
    assert timed == {True, False}


def test_a_search_that_the_budget_ends_says_how_far_it_came(steps: Kernel, store: Store) -> None:
    simulation = Simulation(time_us, measure_s=1.5)
    cut = simulation.sweep(store, [task_of(steps)], Effort(90, 60.0), begun=0.0)
    (result,) = cut.results
    assert cut.complete
    assert result.searched is not None
    assert result.trials < 90
    assert (
        result.searched.shortfall
        == f"{result.trials} of 90 configs tried: the budget was spent; the same command goes on"
    )
    assert result.to_dict()["trials_wanted"] == 90
    effort = Effort(90, 600.0, stops=False)
    (result,) = Simulation(time_us).sweep(store, [task_of(steps)], effort, begun=0.0).results
    assert result.searched is not None
    assert (result.trials, result.searched.shortfall) == (90, "")


@pytest.mark.parametrize(
    ("effort", "words"),
    [
        (
            Effort(6, 0.5),
            "2 of 6 configs tried, the default, the library's calls and what is published alone: the budget",
        ),
        (Effort(2, None), "all 2 trials went to the default, the library's calls and what is published; more --trials"),
    ],
)
def test_a_search_that_tried_what_is_known_alone_says_so(
    steps: Kernel, store: Store, effort: Effort, words: str
) -> None:
    (result,) = Simulation(time_us).sweep(store, [task_of(steps)], effort, begun=0.0).results
    assert result.searched is not None
    assert result.searched.shortfall.startswith(words)


def test_each_batch_of_a_task_has_its_trials(steps: Kernel, store: Store) -> None:
    (one,) = task_of(steps).problems
    task = Task(steps, tuple(one.at_batch(batch) for batch in (1, 2, 4)))
    report = Simulation(time_us).sweep(store, [task], Effort(8, None))
    assert sum(result.trials for result in report.results) == 24  # six of them anchors
    assert [result.to_dict()["trials_wanted"] for result in report.results] == [8, 8, 8]
    assert {result.searched.shortfall for result in report.results if result.searched} == {""}


def test_the_time_of_loading_counts(steps: Kernel, store: Store) -> None:
    simulation = Simulation(time_us, now=40.0)
    simulation.sweep(store, [task_of(steps)], Effort(None, 100.0), begun=0.0)
    assert 85 <= simulation.now <= 110


def test_a_trial_that_the_budget_ends_is_not_held_against_its_config(steps: Kernel, store: Store) -> None:
    """It would have hung for the 60 s that a trial may take; who knows, with a few seconds left."""
    simulation = Simulation(time_us, hangs=lambda config: config.values.get("steps") == 2, measure_s=1.0)
    simulation.sweep(store, [task_of(steps)], Effort(None, 50.0), begun=0.0)
    assert simulation.now <= 55.0
    hung = [config for config in simulation.tried if config.values.get("steps") == 2]
    stored = [trial.config for trial in store.list_trials(limit=1000).items]
    assert hung
    assert not set(hung) & set(stored)


def test_a_hang_with_time_to_spare_is_a_timeout(steps: Kernel, store: Store) -> None:
    simulation = Simulation(time_us, hangs=lambda config: config.values.get("width") == 7)
    report = simulation.sweep(store, [task_of(steps)], Effort(None, 900.0), begun=0.0)
    assert report.results[0].failures == {"timeout": 4}
    assert simulation.now <= 990.0


class TestShares:
    def budget(self, seconds: float | None, *, devices: int = 1) -> tuple[Budget, list[float]]:
        now = [0.0]
        return Budget(seconds, devices=devices, begun=0.0, clock=lambda: now[0]), now

    def test_without_bound_nothing_is_bounded(self) -> None:
        budget, _ = self.budget(None)
        assert budget.search_s(Due(3, 3)) == float("inf")
        assert budget.final_s(Due(3, 3)) == FINALS.seconds
        assert budget.trial_s(60.0, float("inf"), needed=False) == 60.0
        assert budget.allows_another(Due(3, 3), 4.0)

    def test_finals_are_kept_time_for_by_what_they_took(self) -> None:
        budget, _ = self.budget(100.0)
        guessed = BUDGETING.beside_final_s + FINALS.seconds
        assert budget.search_s(Due(2, 4)) == pytest.approx((100 - 4 * guessed) / 2)
        budget.held(FINALS.seconds + 1.0, FINALS.seconds)
        assert budget.search_s(Due(2, 4)) == pytest.approx((100 - 4 * (FINALS.seconds + 1)) / 2)

    def test_devices_share_what_is_due(self) -> None:
        one, _ = self.budget(100.0)
        two, _ = self.budget(100.0, devices=2)
        assert two.search_s(Due(4, 4)) == one.search_s(Due(2, 2))

    def test_finals_become_short_when_time_is(self) -> None:
        budget, now = self.budget(100.0)
        now[0] = 100.0 - 2 * (BUDGETING.beside_final_s + 1.0)
        assert budget.final_s(Due(1, 2)) == pytest.approx(1.0)
        now[0] = 200.0
        assert budget.left_s == -100.0
        assert budget.final_s(Due(1, 2)) == BUDGETING.least_final_s
        assert not budget.allows_another(Due(1, 1), 0.5)

    def test_what_a_sweep_must_have_gets_its_time_also_when_that_is_over(self) -> None:
        budget, now = self.budget(100.0)
        now[0] = 99.0
        assert budget.trial_s(60.0, 100.0, needed=True) == BUDGETING.least_trial_s
        assert budget.trial_s(60.0, 100.0, needed=False) == pytest.approx(100.0 * BUDGETING.overdraw_share)
        assert budget.trial_s(5.0, 100.0, needed=True) == 5.0
