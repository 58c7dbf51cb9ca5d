"""One task of a sweep: what is stored with each of its trials."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import simulated
from simulated import Simulation, task_of
from sweeping import trials_in

from tunedex.core.config import Config
from tunedex.core.measurement import Measurement
from tunedex.db import open_store
from tunedex.db.records import Stage
from tunedex.kernels.base import Kernel
from tunedex.tuner.nvml import Sample
from tunedex.tuner.report import Effort

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
