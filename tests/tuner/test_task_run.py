"""One task of a sweep: what is stored with each of its trials."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
import simulated
from simulated import Simulation, task_of
from sweeping import trials_in

from tunedex.core.config import Config
from tunedex.core.measurement import Failure, Measurement
from tunedex.db import engine, open_store
from tunedex.db.records import Stage, Trial
from tunedex.kernels.base import Kernel
from tunedex.tuner import history
from tunedex.tuner.nvml import Sample
from tunedex.tuner.report import Effort, Progress, Report
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.space import Space
from tunedex.tuner.tasks import Task

STATES = (Sample(1980, 51, ""), Sample(1980, 60, "power_cap"), Sample(1600, 83, "thermal", contended=True), Sample())


def test_a_trial_is_stored_with_the_state_that_its_device_was_in(
    steps: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = itertools.cycle(STATES)
    given: dict[Config, Sample] = {}
    measure = simulated.SimulatedProcess._measure

    def measured(process: Any, config: Config, *arguments: Any, timeout_s: float) -> tuple[Any, Sample]:
        outcome, _ = measure(process, config, *arguments, timeout_s=timeout_s)
        given[config] = next(states)
        return outcome, given[config]

    monkeypatch.setattr(simulated.SimulatedProcess, "_measure", measured)
    with open_store(str(tmp_path / "tunedex.db")) as store:
        Simulation(lambda config: 100.0).sweep(store, [task_of(steps)], Effort(8, None))
        searched = [trial for trial in trials_in(store) if trial.stage is Stage.SEARCH]
    assert len(searched) == len(given) == 8
    for trial in searched:
        assert isinstance(trial.outcome, Measurement)
        state = Sample(trial.clock_mhz, trial.temperature_c, trial.throttle, trial.contended)
        assert state == given[trial.config]


def test_a_database_that_is_away_for_a_while_costs_a_sweep_nothing(
    steps: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program keeps the file locked for longer than a connection waits."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.02)
    holder = sqlite3.connect(tmp_path / "tunedex.db", isolation_level=None, check_same_thread=False)
    releases: list[threading.Timer] = []

    def watch(progress: Progress) -> None:
        if progress.done == 3 and not releases:
            holder.execute("BEGIN IMMEDIATE")
            releases.append(threading.Timer(0.5, holder.execute, ["COMMIT"]))
            releases[0].start()

    with open_store(str(tmp_path / "tunedex.db")) as store:
        report = Simulation(lambda config: 100.0).sweep(store, [task_of(steps)], Effort(8, None), watch=watch)
        searched = [trial.config for trial in trials_in(store) if trial.stage is Stage.SEARCH]
    releases[0].join()
    holder.close()
    assert report.complete
    assert len(searched) == len(set(searched)) == 8


def test_what_a_short_limit_ended_is_tried_again_under_a_longer_one(steps: Kernel, tmp_path: Path) -> None:
    """The default and the library call too. What the longer one ends is over."""
    hanging: set[Config] = set()

    def hangs(config: Config) -> bool:
        return not hanging or config in hanging

    def sweep(limit_s: float) -> tuple[Report, int]:
        simulation = Simulation(lambda config: 100.0, hangs=hangs)
        timeouts = SETTINGS.timeouts.for_trials(limit_s)
        return simulation.sweep(store, [task_of(steps)], Effort(6, None), timeouts=timeouts), len(simulation.tried)

    with open_store(str(tmp_path / "tunedex.db")) as store:
        report, tried = sweep(0.001)
        assert (report.results[0].best, tried) == (None, 6)
        assert sweep(0.001)[1] == 0
        hanging.add(next(t.config for t in trials_in(store) if not t.config.library and t.config not in hanging))
        report, tried = sweep(2.0)
        assert report.results[0].best is not None
        assert tried == 6
        for limit_s in (2.0, 1.0):
            assert sweep(limit_s)[1] == 0
        assert sweep(3.0)[1] == 1


def test_memory_that_others_keep_is_no_fault_of_the_next(steps: Kernel, tmp_path: Path) -> None:
    """One config is too large wherever it runs; another only where one has run before it in the same process."""
    configs = list(Space.of(steps, task_of(steps).problems[0], simulated.DEVICE.device))
    large, second = (config for config in configs[:2])

    def fails(config: Config) -> bool:
        number = simulation.calls[-1][0]
        measured = sum(method == "measure" for process, method, _ in simulation.calls if process == number)
        return config == large or (config == second and measured > 1)

    with open_store(str(tmp_path / "tunedex.db")) as store:
        simulation = Simulation(lambda config: 100.0, fails=fails)
        report = simulation.sweep(store, [task_of(steps)])
        failed = [t.config for t in trials_in(store) if isinstance(t.outcome, Failure)]
    assert report.complete
    assert failed == [large]
    assert simulation.tried.count(second) == 2
    assert simulation.tried.count(large) <= 2


def test_a_sweep_that_is_interrupted_waits_for_no_database(
    steps: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays locked: the sweep ends all the same, with what it has."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.02)
    holder = sqlite3.connect(tmp_path / "tunedex.db", isolation_level=None, check_same_thread=False)
    waiting = threading.Event()

    def watch(progress: Progress) -> None:
        if progress.done == 3 and not waiting.is_set():
            holder.execute("BEGIN IMMEDIATE")
            waiting.set()
            threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()

    with open_store(str(tmp_path / "tunedex.db")) as store:
        report = Simulation(lambda config: 100.0).sweep(store, [task_of(steps)], Effort(8, None), watch=watch)
        assert report.interrupted
        holder.execute("COMMIT")
        assert len(trials_in(store)) == 3
    holder.close()


@pytest.mark.parametrize(("batches", "best_us"), [((4,), 100.0), ((1, 4), 25.0)])
def test_the_best_so_far_is_of_a_call_or_of_an_item_of_several_batches(
    batches: tuple[int, ...], best_us: float, steps: Kernel, tmp_path: Path
) -> None:
    told: list[Progress] = []
    problems = tuple(task_of(steps).problems[0].at_batch(batch) for batch in batches)
    with open_store(str(tmp_path / "tunedex.db")) as store:
        Simulation(lambda config: 100.0).sweep(store, [Task(steps, problems)], Effort(6, None), watch=told.append)
    last = [progress for progress in told if progress.phase == "searching"][-1]
    assert (last.best_us, last.per_item) == (best_us, len(batches) > 1)
    finals = [(progress.task, progress.best_us) for progress in told if progress.phase == "final"]
    assert finals == [(str(problem), None) for problem in problems]


def test_the_best_so_far_is_kept_and_not_looked_for_beside_every_trial(
    steps: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Trial] = []
    per_item_us = history.per_item_us
    monkeypatch.setattr(history, "per_item_us", lambda trial: per_item_us(looked.append(trial) or trial))
    told: list[Progress] = []
    given: list[dict[bool, float]] = []
    measure = simulated.SimulatedProcess._measure

    def measured(process: Any, config: Config, resources: Any, best_us: Any, *, timeout_s: float) -> Any:
        given.append(best_us)
        return measure(process, config, resources, best_us, timeout_s=timeout_s)

    monkeypatch.setattr(simulated.SimulatedProcess, "_measure", measured)
    for trials in (8, 16):  # the second goes on from what the first has stored
        with open_store(str(tmp_path / "tunedex.db")) as store:
            Simulation(lambda config: 100.0 + int(config.key[:2], 16)).sweep(
                store, [task_of(steps)], Effort(trials, None), watch=told.append
            )
            stored = trials_in(store)
    assert len(looked) <= 2 * len(stored)
    searched = [t.outcome.time_us for t in stored if isinstance(t.outcome, Measurement) and t.stage is Stage.SEARCH]
    assert [progress.best_us for progress in told if progress.phase == "searching"][-1] == min(searched)
    assert given == [{True: min(searched[:n])} if n else {} for n in range(16)]
