"""A sweep in an environment, or with a version of a kernel, in which nothing has been measured yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from simulated import DEVICE, ENVIRONMENT, WHOLE, Simulation, task_of

from tunedex.core.config import Config
from tunedex.core.device import Environment
from tunedex.core.problem import Problem
from tunedex.db import Store, open_store
from tunedex.kernels.base import Cost, Kernel
from tunedex.tuner.report import Effort, Report
from tunedex.tuner.sweep import DeviceSweep

UPGRADED = Environment(torch="3", python="3")
#: So short that it ends before anything but what a sweep must have is tried.
SHORT = Effort(trials=3, budget_s=1.0)
#: Neither the default nor the library's, and nothing that three trials find.
FAST = Config("numba", {"steps": 8, "width": 64, "order": "cols"})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "tunedex.db")) as store:
        yield store


def time_us(config: Config) -> float:
    return 50.0 if config == FAST else 100.0


def swept_after(store: Store, simulation: Simulation, kernel: Kernel) -> Report:
    swept = DeviceSweep(store, DEVICE, UPGRADED, SHORT, make=simulation.process, clock=simulation.clock)
    return swept.run([task_of(kernel)], {})


def test_a_short_sweep_in_a_new_environment_keeps_the_winner(steps: Kernel, store: Store) -> None:
    Simulation(time_us).sweep(store, [task_of(steps)], WHOLE)
    after = Simulation(time_us)
    (result,) = swept_after(store, after, steps).results
    assert FAST in after.tried
    assert result.best is not None
    assert result.best.config == FAST
    assert result.best.environment == UPGRADED.key


def test_a_winner_that_is_slow_now_gives_way(steps: Kernel, store: Store) -> None:
    Simulation(time_us).sweep(store, [task_of(steps)], WHOLE)
    after = Simulation(lambda config: 150.0 if config == FAST else 90.0)
    (result,) = swept_after(store, after, steps).results
    assert FAST in after.tried
    assert result.best is not None
    assert result.best.config != FAST


def test_a_winner_of_another_version_is_tried_as_this_one_spells_it(
    steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulation(time_us).sweep(store, [task_of(steps)], WHOLE)
    formerly = Config("numba", {"steps": 8, "width": 64, "order": "columns"})
    (problem,) = task_of(steps).problems
    rows = store.rows_of(DEVICE.device.key, problem.key)
    old = [replace(row, config=formerly if row.config == FAST else row.config, kernel_version="0" * 12) for row in rows]
    store.publish(DEVICE.device.key, {problem: old})
    monkeypatch.setattr(type(steps), "map_forward", lambda self, c, version: FAST if c == formerly else None)
    after = Simulation(time_us)
    (result,) = swept_after(store, after, steps).results
    assert result.best is not None
    assert result.best.config == FAST


def test_a_kernel_that_cannot_read_what_is_published_costs_its_problem_alone(
    steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def map_forward(self: Kernel, config: Config, version: str) -> Config | None:
        raise KeyError("planted")

    one, other = task_of(steps), task_of(steps, rows=9)
    Simulation(time_us).sweep(store, [one], WHOLE)
    (problem,) = one.problems
    rows = store.rows_of(DEVICE.device.key, problem.key)
    store.publish(DEVICE.device.key, {problem: [replace(row, kernel_version="0" * 12) for row in rows]})
    monkeypatch.setattr(type(steps), "map_forward", map_forward)
    for environment in (ENVIRONMENT, UPGRADED):  # there is a final in the one, and nothing in the other
        simulation = Simulation(time_us)
        swept = DeviceSweep(store, DEVICE, environment, WHOLE, make=simulation.process, clock=simulation.clock)
        faulty, sound = swept.run([one, other], {}).results
        assert faulty.fault == "what is published cannot be read: KeyError: 'planted'"
        assert faulty.best is None
        assert sound.best is not None
    assert {row.kernel_version for row in store.rows_of(DEVICE.device.key, problem.key)} == {"0" * 12}


def test_a_kernel_whose_cost_fails_once_its_final_is_held_costs_its_problem_alone(
    steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost(self: Kernel, problem: Problem) -> Cost:
        raise ZeroDivisionError("planted")

    Simulation(time_us).sweep(store, [task_of(steps)], WHOLE)
    store.publish(DEVICE.device.key, {task_of(steps).problems[0]: []})
    monkeypatch.setattr(type(steps), "cost", cost)
    (result,) = Simulation(time_us).sweep(store, [task_of(steps)], WHOLE).results
    assert result.fault == "has no cost: ZeroDivisionError: planted"
