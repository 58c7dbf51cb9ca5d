"""What a search starts from: the nearest of what was tried elsewhere, and nothing of what says nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from simulated import DEVICE, ENVIRONMENT, Simulation, task_of

from tunedex.core.config import Config
from tunedex.core.device import Device, Environment
from tunedex.core.measurement import Failure, FailureKind
from tunedex.core.problem import Problem
from tunedex.db import Store, open_store
from tunedex.db.records import Tried
from tunedex.kernels.base import Kernel
from tunedex.kernels.registry import get_kernel
from tunedex.tuner.report import Effort, Result
from tunedex.tuner.search.search import Ended
from tunedex.tuner.search.sources import nearest
from tunedex.tuner.settings import SETTINGS

H200 = "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"
#: The same chip with fewer multiprocessors, and a chip of another family.
SMALLER = "nvidia-sm90-114sm-l2_50m-smem_227k-mem_80g"
OLDER = "nvidia-sm80-108sm-l2_40m-smem_163k-mem_80g"


def softmax(rows: int, cols: int = 1024, dtype: str = "bfloat16") -> Problem:
    return get_kernel("softmax").signature.problem({"rows": rows, "cols": cols, "dtype": dtype})


def found(problem: Problem, *tried: Tried) -> list[tuple[str, str, float]]:
    signature = get_kernel("softmax").signature
    sources = nearest(signature, Device.from_key(H200), "here", [problem], tried)
    return [(source.tried.device, str(source.tried.problem), source.distance) for source in sources]


def test_the_nearest_come_first_and_what_was_tried_here_is_none_of_them() -> None:
    asked = softmax(1024)
    tried = [
        Tried(H200, "here", asked, 90),
        Tried(H200, "here", softmax(8192), 90),
        Tried(H200, "here", softmax(2048), 90),
        Tried(H200, "older", asked, 90),
        Tried(SMALLER, "there", asked, 90),
        Tried(OLDER, "there", asked, 90),
        Tried(H200, "here", softmax(1024, dtype="float16"), 90),
    ]
    order = found(asked, *tried)
    assert [(device, problem) for device, problem, _ in order] == [
        (H200, str(asked)),
        (SMALLER, str(asked)),
        (H200, str(softmax(2048))),
        (H200, str(softmax(1024, dtype="float16"))),
        (H200, str(softmax(8192))),
    ]
    assert [round(distance, 1) for *_, distance in order] == [0.0, 0.5, 1.0, 2.0, 3.0]


def test_no_more_than_the_nearest_and_none_too_far_away() -> None:
    many = [Tried(H200, "here", softmax(1024 + 8 * n), 9) for n in range(1, 30)]
    assert len(found(softmax(1024), *many)) == SETTINGS.sourcing.most
    assert found(softmax(1024), Tried(H200, "here", softmax(1024 * 2**7), 9)) == []


@pytest.mark.parametrize("device", ["cpu", "", "nvidia-sm90", "?"])
def test_what_is_no_device_s_key_says_nothing(device: str) -> None:
    assert found(softmax(1024), Tried(device, "there", softmax(1024), 9)) == []


def test_of_several_batches_the_nearest_is_what_a_source_speaks_of() -> None:
    batches = [softmax(1024).at_batch(batch) for batch in (1, 2, 4)]
    tried = Tried(H200, "there", softmax(1024).at_batch(8), 9)
    (source,) = nearest(get_kernel("softmax").signature, Device.from_key(H200), "here", batches, [tried])
    assert (source.near, source.distance) == (batches[2], 1.0)


BEST = Config("numba", {"steps": 8, "width": 64, "order": "cols"})
EFFORT = Effort(trials=6, budget_s=None)


def time_us(config: Config) -> float:
    return 10.0 if config == BEST else 100.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "tunedex.db")) as store:
        yield store


def swept(store: Store, steps: Kernel, effort: Effort) -> tuple[Simulation, Result]:
    """Rows 9, after all configs of rows 8 were tried."""
    Simulation(time_us).sweep(store, [task_of(steps, rows=8)], Effort(None, None))
    simulation = Simulation(time_us)
    (result,) = simulation.sweep(store, [task_of(steps, rows=9)], effort).results
    return simulation, result


def test_a_sweep_starts_with_the_best_of_the_nearest_shape(steps: Kernel, store: Store) -> None:
    simulation, result = swept(store, steps, EFFORT)
    assert simulation.tried[2] == BEST  # after the default and the library's call
    document = result.to_dict()
    (source,) = document["started_from"]
    assert source["device"] == DEVICE.device.key
    assert source["environment"] == ENVIRONMENT.key
    assert source["problem"]["dims"]["rows"] == 8
    assert source["configs"] == 25
    assert 0 < source["distance"] < 1
    assert result.searched is not None
    assert "started from 25 configs tried elsewhere, the nearest of steps:" in result.searched.lines[0]


def test_a_cold_sweep_and_other_samplers_start_from_nothing(steps: Kernel, store: Store) -> None:
    _, result = swept(store, steps, replace(EFFORT, cold=True))
    assert result.to_dict()["started_from"] == []
    assert result.searched is not None
    assert result.searched.lines == []


def test_another_environment_s_trials_of_the_problem_itself_count(steps: Kernel, store: Store) -> None:
    task = task_of(steps)
    older = replace(Environment(torch="1", python="3"))
    store.register_environment(older)
    Simulation(time_us).sweep(store, [task], Effort(None, None))
    trials = store.trials_of(
        task.problems[0].key,
        device=DEVICE.device.key,
        environment=ENVIRONMENT.key,
        kernel_version=steps.signature.version,
    )
    store.add_trials([replace(trial, problem=task_of(steps, rows=64).problems[0], environment=older.key, id=None)
                      for trial in trials])  # fmt: skip
    simulation = Simulation(time_us)
    (result,) = simulation.sweep(store, [task_of(steps, rows=64)], EFFORT).results
    nearest_one, other = result.to_dict()["started_from"]
    assert (nearest_one["environment"], nearest_one["distance"]) == (older.key, 0.0)
    assert other["distance"] == 3.0
    assert simulation.tried[2] == BEST


def test_failures_for_want_of_what_others_took_say_nothing(steps: Kernel, store: Store) -> None:
    """The fastest config of the other shape has failed since beside other work, which its time outlives."""
    Simulation(time_us).sweep(store, [task_of(steps)], Effort(None, None))
    (problem,) = task_of(steps).problems
    failed = [
        replace(trial, outcome=Failure(FailureKind.OOM), contended=True, id=None)
        for trial in store.list_trials(problem=problem.key, limit=1000).items
        if trial.config == BEST and trial.stage.value == "search"
    ]
    store.add_trials(failed)
    simulation = Simulation(time_us)
    (result,) = simulation.sweep(store, [task_of(steps, rows=9)], EFFORT).results
    assert result.to_dict()["started_from"][0]["configs"] == 25
    assert simulation.tried[2] == BEST


def test_a_sweep_says_that_nothing_faster_was_expected(
    steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"steps": [2**n for n in range(6)], "width": [2**n for n in range(7)], "order": ["rows", "cols"]}
    monkeypatch.setenv("PLANTED_SPACE", json.dumps(sizes))
    (result,) = Simulation(lambda config: 100.0).sweep(store, [task_of(steps)], Effort(80, None)).results
    assert result.searched is not None
    assert result.searched.ended is Ended.GAIN
    assert result.trials < 80
    assert result.searched.lines == [
        f"{task_of(steps)}: {result.trials} of 80 configs tried; nothing faster is expected of the others"
    ]
    again = Simulation(lambda config: 100.0)
    again.sweep(store, [task_of(steps)], Effort(80, None))
    assert len(again.tried) <= SETTINGS.surrogate.patience
    (result,) = Simulation(lambda config: 100.0).sweep(store, [task_of(steps)], Effort(80, None, stops=False)).results
    assert (result.trials, result.to_dict()["ended"]) == (80, "trials")
