"""A sweep that is ended, by Ctrl-C or by kill -9, and run again: it goes on from the trial table."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import simulated
from simulated import DEVICE, WHOLE, Simulation, task_of
from sweeping import (
    descendants,
    start,
    sweep,
    trials_in,
    wait_for_end,
    wait_for_trials,
)

from tunedex.core.config import Config
from tunedex.db import Store, open_store
from tunedex.db.records import Stage, Sweep, SweepStatus
from tunedex.kernels.base import Kernel
from tunedex.tuner.lock import host_name, lock_name
from tunedex.tuner.report import Effort
from tunedex.tuner.search.samplers import Sampler
from tunedex.tuner.settings import SETTINGS

STEPS = "steps:batch=1,rows=37,cols=64,dtype=float32"
SPACE = {"steps": [1, 2, 4, 8], "width": [16, 32, 64], "order": ["rows", "cols"]}
#: Its configs and the library call.
STEPS_CANDIDATES = 25

#: A sweep of `long_space`, which takes minutes.
LONG = ("--problem", STEPS, "--trials", "100000")


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "tunedex.db"


@pytest.fixture
def long_space(steps: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_SPACE", json.dumps({**SPACE, "width": list(range(1, 500))}))


@pytest.fixture
def store(db: Path) -> Iterator[Store]:
    with open_store(str(db)) as store:
        yield store


def test_a_second_run_repeats_no_config(steps: Kernel, db: Path) -> None:
    first = sweep(db, "--trials", "4", "--json", problem=STEPS)
    assert first.returncode == 0, first.stderr
    second = sweep(db, "--trials", "8", "--json", problem=STEPS)
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["results"][0]["trials"] == 8
    third = sweep(db, "--trials", "8", "--json", problem=STEPS)
    with open_store(str(db)) as store:
        searched = [trial.config for trial in trials_in(store) if trial.stage is Stage.SEARCH]
        sweeps = store.list_sweeps().items
    assert len(searched) == len(set(searched)) == 8
    assert [each.status for each in sweeps] == [SweepStatus.DONE] * 3
    # Nothing new was tried, so the published state stays as it was.
    assert json.loads(third.stdout)["revision"] == json.loads(second.stdout)["revision"]
    assert json.loads(third.stdout)["results"] == json.loads(second.stdout)["results"]


def test_a_search_that_was_cut_before_its_final_gets_one(steps: Kernel, store: Store) -> None:
    Simulation(lambda config: 100.0).sweep(store, [task_of(steps)])
    last = next(trial for trial in trials_in(store) if trial.config.library and trial.stage is Stage.SEARCH)
    store.add_trial(replace(last, id=None, config=Config("numba", {"steps": 1, "width": 1, "order": "gone"})))
    again = Simulation(lambda config: 100.0)
    again.sweep(store, [task_of(steps)])
    assert again.tried == []
    assert {trial.sweep for trial in trials_in(store) if trial.stage is Stage.FINAL} == {1, 2}


def test_ctrl_c_keeps_what_was_measured_and_the_sweep_goes_on(long_space: None, db: Path) -> None:
    process = start(db, *LONG)
    wait_for_trials(db, 4)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in stderr
    assert "Traceback" not in stderr
    with open_store(str(db)) as store:
        kept = [trial.config for trial in trials_in(store)]
        assert [each.status for each in store.list_sweeps().items] == [SweepStatus.INTERRUPTED]
    more = str(len(kept) + 3)
    again = sweep(db, "--trials", more, problem=STEPS)
    assert again.returncode == 0, again.stderr
    with open_store(str(db)) as store:
        searched = [trial.config for trial in trials_in(store) if trial.stage is Stage.SEARCH]
    assert set(kept) <= set(searched)
    assert len(searched) == len(set(searched)) == len(kept) + 3


def test_kill_9_loses_no_stored_trial_and_leaves_no_worker(long_space: None, db: Path) -> None:
    process = start(db, *LONG)
    wait_for_trials(db, 3)
    workers = descendants(process.pid)
    assert workers
    process.kill()
    process.communicate(timeout=60)
    with open_store(str(db)) as store:
        assert len(trials_in(store)) >= 3
    wait_for_end(workers)


def test_a_killed_sweep_is_over_once_another_begins(long_space: None, db: Path) -> None:
    process = start(db, *LONG)
    wait_for_trials(db, 1)
    process.kill()
    process.communicate(timeout=60)
    assert sweep(db, "--trials", "2", problem=STEPS).returncode == 0
    with open_store(str(db)) as store:
        statuses = sorted(each.status for each in store.list_sweeps().items)
    assert statuses == [SweepStatus.DONE, SweepStatus.INTERRUPTED]


def check(db: Path, earlier: list[int]) -> list[int]:
    """Check what a sweep that was killed has left, and give the numbers of all its trials: those ``earlier`` are there,
    no config was tried twice, and each final is whole."""
    with open_store(str(db)) as store:
        trials = trials_in(store)
    numbers = [trial.id or 0 for trial in trials]
    assert numbers[: len(earlier)] == earlier
    searched = [trial.config for trial in trials if trial.stage is Stage.SEARCH]
    assert len(searched) == len(set(searched))
    finals: dict[int | None, set[Config]] = {}
    for trial in trials:
        if trial.stage is Stage.FINAL:
            finals.setdefault(trial.sweep, set()).add(trial.config)
    for held in finals.values():
        assert Config("library") in held
        assert Config("numba", {"steps": 4, "width": 32, "order": "rows"}) in held
        assert len(held) >= min(SETTINGS.finals.leaders, len(searched))
    return numbers


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_at_any_moment_loses_the_trial_under_way_at_most(steps: Kernel, db: Path, seed: int) -> None:
    """Killed while it starts, while it searches, and when nothing but the final is left; each at a random moment."""
    dice = random.Random(seed)
    numbers: list[int] = []
    for trials, longest_s in ((0, 6.0), (dice.randrange(1, STEPS_CANDIDATES), 0.3), (STEPS_CANDIDATES, 5.0)):
        process = start(db, "--problem", STEPS)
        if trials:
            wait_for_trials(db, trials)
        time.sleep(dice.uniform(0, longest_s))
        workers = descendants(process.pid)
        process.kill()
        process.communicate(timeout=60)
        wait_for_end(workers)
        numbers = check(db, numbers)
    assert len(numbers) >= STEPS_CANDIDATES
    last = sweep(db, "--json", problem=STEPS)
    assert last.returncode == 0, last.stderr
    (result,) = json.loads(last.stdout)["results"]
    assert result["trials"] == STEPS_CANDIDATES
    assert result["config"] is not None
    check(db, numbers)


class TestAChangedSpace:
    """Old results that still hold are kept, whatever became of the space; and nothing is chosen that left it."""

    def tried(self, store: Store, kernel: Kernel, effort: Effort = WHOLE) -> list[Config]:
        """What one more sweep tries."""
        simulation = Simulation(lambda config: 100.0 + int(config.key[:2], 16))
        report = simulation.sweep(store, [task_of(kernel)], effort)
        assert report.complete
        return simulation.tried

    def change(self, monkeypatch: pytest.MonkeyPatch, **space: list) -> None:
        monkeypatch.setenv("PLANTED_SPACE", json.dumps({**SPACE, **space}))

    def test_values_added(self, steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        first = self.tried(store, steps)
        self.change(monkeypatch, width=[16, 32, 64, 256])
        more = self.tried(store, steps)
        assert {config.values["width"] for config in more} == {256}
        assert len(more) == 8
        assert not set(first) & set(more)

    def test_values_removed(self, steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried(store, steps, Effort(10, None))
        self.change(monkeypatch, width=[16, 64])
        more = self.tried(store, steps)
        assert more
        assert all(config.values["width"] != 32 for config in more)
        kept = {trial.config for trial in trials_in(store) if trial.config.values.get("width") in (16, 64)}
        assert kept == set(self.all_of([16, 64]))

    def test_values_in_another_order(self, steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried(store, steps)
        self.change(monkeypatch, steps=[8, 2, 1, 4], width=[64, 16, 32], order=["cols", "rows"])
        assert self.tried(store, steps) == []

    def test_another_constraint(self, steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PLANTED_LIMIT", "64")
        first = self.tried(store, steps)
        monkeypatch.setenv("PLANTED_LIMIT", "256")
        more = self.tried(store, steps)
        assert not set(first) & set(more)
        assert all(int(str(c.values["steps"])) * int(str(c.values["width"])) > 64 for c in more)

    @pytest.mark.parametrize("sampler", ["tpe", "random", "brute-force"])
    def test_one_change_after_another_under_each_sampler(
        self, sampler: str, steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        changes: list[dict[str, list]] = [
            {},
            {"width": [16, 32, 64, 256]},
            {"width": [16, 64, 256]},
            {"width": [256, 64, 16], "steps": [4, 1, 2]},
            {"order": ["rows"]},
        ]
        seen: list[Config] = []
        for n, change in enumerate(changes):
            self.change(monkeypatch, **change)
            more = self.tried(store, steps, Effort(10 * (n + 1), None, sampler=Sampler(sampler)))
            space = {**SPACE, **change}
            anchors = [Config("library"), Config("numba", {"steps": 4, "width": 32, "order": "rows"})]
            for config in more:
                assert config in anchors or all(config.values[name] in values for name, values in space.items())
            seen += more
        assert len(seen) == len(set(seen))

    def test_an_incumbent_that_left_the_space_still_answers(
        self, steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was measured right, and this kernel's code still runs it."""
        fast = Config("numba", {"steps": 2, "width": 16, "order": "cols"})
        simulation = Simulation(lambda config: 50.0 if config == fast else 100.0)
        simulation.sweep(store, [task_of(steps)])
        self.change(monkeypatch, width=[32, 64, 128])
        report = Simulation(lambda config: 50.0 if config == fast else 100.0).sweep(store, [task_of(steps)])
        assert report.results[0].best is not None
        assert report.results[0].best.config == fast

    def all_of(self, widths: list[int]) -> list[Config]:
        return [
            Config("numba", {"steps": s, "width": w, "order": o})
            for s in SPACE["steps"]
            for w in widths
            for o in SPACE["order"]
        ]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("options", "here"),
    [
        ({"locks": [lock_name(DEVICE)], "host": host_name()}, True),
        ({"locks": [lock_name(DEVICE)], "host": "another"}, True),  # one UUID is one card
        ({"locks": [7, ["x"], lock_name(DEVICE)], "host": host_name()}, True),
        ({"locks": ["another"], "host": host_name()}, False),
        ({"locks": [], "host": host_name()}, False),
    ],
)
def test_a_sweep_that_was_killed_is_over_when_its_lock_is_held(
    steps: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, options: dict[str, Any], here: bool
) -> None:
    with open_store(str(tmp_path / "tunedex.db")) as store:
        monkeypatch.setattr(Store, "embedded", property(lambda self: not shared))
        assert status_after(store, steps, options) is (SweepStatus.INTERRUPTED if here else SweepStatus.RUNNING)


@pytest.mark.parametrize("locks", [7, None, "x", {"a": 1}])
def test_a_sweep_whose_locks_are_none_ends_no_other(steps: Kernel, tmp_path: Path, locks: Any) -> None:
    with open_store(str(tmp_path / "tunedex.db")) as store:
        assert status_after(store, steps, {"locks": locks}) is SweepStatus.INTERRUPTED


@pytest.mark.parametrize(("host", "over"), [(host_name(), True), ("another", False), (7, False)])
def test_a_lock_without_a_uuid_is_of_one_host(
    steps: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Any, over: bool
) -> None:
    cpu = replace(DEVICE, uuid=None)
    monkeypatch.setattr(simulated, "DEVICE", cpu)
    with open_store(str(tmp_path / "tunedex.db")) as store:
        monkeypatch.setattr(Store, "embedded", property(lambda self: False))
        options = {"locks": [lock_name(cpu)], "host": host}
        assert status_after(store, steps, options) is (SweepStatus.INTERRUPTED if over else SweepStatus.RUNNING)


def status_after(store: Store, kernel: Kernel, options: dict[str, Any]) -> SweepStatus:
    """What another sweep says of one that runs, as far as the database knows, with ``options``."""
    device, environment = simulated.DEVICE.device, simulated.ENVIRONMENT
    store.register_device(device)
    store.register_environment(environment)
    number = store.start_sweep(Sweep(device.key, environment.key, options))
    Simulation(lambda config: 100.0).sweep(store, [task_of(kernel)], Effort(1, None))
    found = store.sweep(number)
    assert found is not None
    return found.status
