"""A sweep in an environment, or with a version of a kernel, in which nothing has been measured yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from simulated import DEVICE, WHOLE, Simulation, task_of

from tunedex.core.config import Config
from tunedex.core.device import Environment
from tunedex.db import Store, open_store
from tunedex.kernels.base import Kernel
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
