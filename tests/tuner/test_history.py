"""What is known of a task's problems: which run a time is of, and which failures say nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from simulated import DEVICE, ENVIRONMENT, WHOLE, Simulation, task_of

from tunedex.core.config import Config
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy
from tunedex.db import open_store
from tunedex.db.records import Trial
from tunedex.kernels.base import Kernel
from tunedex.tuner.context import Context
from tunedex.tuner.history import History
from tunedex.tuner.load import Idle
from tunedex.tuner.nvml import Sample
from tunedex.tuner.sweep import DeviceSweep

MEASURED = Measurement(100.0, 99.0, 101.0, 7, Policy.EAGER_WARM, 0.0, True, "same")


@pytest.fixture
def context(steps: Kernel, tmp_path: Path) -> Iterator[Context]:
    simulation = Simulation(lambda config: 100.0)
    with open_store(str(tmp_path / "tunedex.db")) as store:
        swept = DeviceSweep(store, DEVICE, ENVIRONMENT, WHOLE, make=simulation.process, clock=simulation.clock)
        with swept.session([task_of(steps)], {}, lambda: True) as context:
            yield context


def trial(context: Context, kernel: Kernel, number: int, outcome: Measurement | Failure = MEASURED) -> Trial:
    return Trial(
        problem=task_of(kernel).problems[0],
        device=context.device.key,
        environment=context.environment,
        kernel_version=kernel.signature.version,
        config=Config("numba", {"steps": number}),
        outcome=outcome,
        sweep=context.sweep,
    )


def test_what_another_device_of_the_sweep_has_measured_is_of_another_run(context: Context, steps: Kernel) -> None:
    """It was lost and gave its task back: its times are not compared with the first process's of this one."""
    task = task_of(steps)
    context.store.add_trials([trial(context, steps, 1)])
    history = History(context, task)
    history.add([trial(context, steps, 2)], 0)
    theirs, mine = (history.runs(task.problems[0])[Config("numba", {"steps": number})] for number in (1, 2))
    assert theirs != mine


@pytest.mark.parametrize(
    ("kind", "contended", "expected"),
    [
        (FailureKind.OOM, True, True),
        (FailureKind.TIMEOUT, True, True),
        (FailureKind.CRASH, True, True),
        (FailureKind.OOM, False, False),
        (FailureKind.OOM, None, False),
        (FailureKind.WRONG_RESULT, True, False),
        (FailureKind.COMPILE_ERROR, True, False),
    ],
)
def test_what_failed_for_want_of_what_others_may_have_taken_says_nothing(
    context: Context, steps: Kernel, kind: FailureKind, contended: bool | None, expected: bool
) -> None:
    history = History(context, task_of(steps))
    failed = replace(trial(context, steps, 1, Failure(kind)), contended=contended)
    assert history.says_nothing(failed) is expected
    assert not history.says_nothing(replace(trial(context, steps, 1), contended=True))


def test_a_default_that_failed_beside_other_work_is_tried_by_the_next_sweep(steps: Kernel, tmp_path: Path) -> None:
    default = steps.signature.default(task_of(steps).problems[0], DEVICE.device)
    assert default is not None
    with open_store(str(tmp_path / "tunedex.db")) as store:
        crowded = Simulation(lambda config: 100.0, fails=lambda config: config == default)
        crowded.state = Sample(contended=True)
        crowded.sweep(store, [task_of(steps)])
        later = Simulation(lambda config: 100.0)
        report = later.sweep(store, [task_of(steps)])
    assert later.tried == [default]
    assert report.results[0].default_us is not None


def test_what_the_first_process_saw_idle_is_told_to_each(steps: Kernel, tmp_path: Path) -> None:
    idle = Idle(frozenset({71}), busy=True)
    simulation = Simulation(lambda config: 100.0, idle=idle)
    with open_store(str(tmp_path / "tunedex.db")) as store:
        simulation.sweep(store, [task_of(steps), task_of(steps, rows=16)])
    opened = [(number, arguments[-1]) for number, method, arguments in simulation.calls if method == "open"]
    assert {number for number, _ in opened} == {1, 2, 3}
    assert {told for _, told in opened} == {idle}
