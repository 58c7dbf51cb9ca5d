"""What sweeps write and read back, the same on both kinds of database."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from db_examples import (
    DEVICE,
    ENVIRONMENT,
    OTHER,
    VERSION,
    config,
    measurement,
    problem,
    signature,
    trial,
)

from tunedex.core.canonical import MAX_INT
from tunedex.core.device import Environment
from tunedex.core.display import one_line
from tunedex.core.errors import BadInput, DatabaseError, UnknownSweep
from tunedex.core.limits import Limits, Objective
from tunedex.core.measurement import Failure, FailureKind, Policy, Resources
from tunedex.core.problem import Problem
from tunedex.db import Store, recording
from tunedex.db.records import Ceilings, Stage, Sweep, SweepStatus, Trial
from tunedex.tuner.failures import failure_of


def history(store: Store, of: Problem | None = None, stage: Stage | None = None) -> list[Trial]:
    return store.trials_of(
        (of or problem()).key, device=DEVICE.key, environment=ENVIRONMENT.key, kernel_version=VERSION, stage=stage
    )


def test_a_trial_comes_back_as_it_was(store: Store) -> None:
    sweep = store.start_sweep(Sweep(DEVICE.key, ENVIRONMENT.key, {}))
    full = replace(
        trial(sweep=sweep, stage=Stage.FINAL),
        outcome=replace(
            measurement(policy=Policy.GRAPH_COLD, memory=MAX_INT),
            resources=Resources(232448, 255, 0),
            energy_j=0.25,
        ),
        warm_us=9.5,
        clock_mhz=1980,
        temperature_c=41,
        throttle="power",
        contended=True,
        max_error=1e-3,
        created_at=datetime(2026, 1, 31, 12, 0, 0, 123456, UTC),
    )
    number = store.add_trial(full)
    assert history(store) == [replace(full, id=number)]


@pytest.mark.parametrize(
    "words", ["a NUL \0 in it", b"of /tmp/\xff.cu".decode(errors="surrogateescape"), "naïve 漢 🙂"]
)
def test_a_failure_is_stored_whatever_its_words(store: Store, words: str) -> None:
    store.add_trial(replace(trial(), outcome=failure_of(RuntimeError(words))))
    (found,) = history(store)
    assert isinstance(found.outcome, Failure)
    assert found.outcome.detail == f"RuntimeError: {one_line(words)}"


def test_trials_recorded_together_are_numbered_in_their_order(store: Store) -> None:
    given = [trial(3, stage=Stage.FINAL), trial(1, of=problem(7)), trial(2, outcome=Failure(FailureKind.OOM))]
    numbers = store.add_trials(given)
    assert numbers == sorted(set(numbers))
    found = {found.id: found for found in store.list_trials().items}
    assert [replace(found[number], id=None, created_at=None) for number in numbers] == given
    assert store.add_trials([]) == []


@pytest.mark.parametrize("wrong", [replace(trial(2), device="unknown"), trial(2, measurement(float("nan")))])
def test_of_trials_recorded_together_one_that_is_wrong_keeps_out_all(store: Store, wrong: Trial) -> None:
    with pytest.raises((DatabaseError, BadInput)):
        store.add_trials([trial(1), wrong, trial(3, of=problem(7))])
    assert store.counts()["trials"] == store.counts()["problems"] == 0


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_failure_keeps_its_kind_and_detail(store: Store, kind: FailureKind) -> None:
    store.add_trial(trial(outcome=Failure(kind, "at [0, 7]: 3 instead of 5")))
    assert history(store)[0].outcome == Failure(kind, "at [0, 7]: 3 instead of 5")


def test_dimensions_and_tunables_keep_their_order(store: Store) -> None:
    store.add_trial(trial())
    (found,) = history(store)
    assert str(found.problem) == "softmax:rows=1024,cols=4096,scale=none,dtype=float32"
    assert str(found.config) == "triton block=64 warps=4"


def test_times_are_read_in_utc(store: Store) -> None:
    there = datetime(2026, 1, 31, 14, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    store.add_trial(replace(trial(), created_at=there))
    found = history(store)[0].created_at
    assert found == there
    assert found is not None
    assert found.utcoffset() == timedelta(0)


def test_a_time_without_a_zone_is_refused(store: Store) -> None:
    with pytest.raises(DatabaseError, match="no time zone"):
        store.add_trial(replace(trial(), created_at=datetime(2026, 1, 31, 12)))
    assert store.counts()["trials"] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_measurement_is_not_stored(store: Store, value: float) -> None:
    with pytest.raises(BadInput, match="not a finite number"):
        store.add_trial(trial(outcome=measurement(value)))
    assert store.counts()["trials"] == store.counts()["problems"] == 0


def test_history_is_of_one_problem_device_environment_and_version(store: Store) -> None:
    store.register_environment(Environment(driver="other"))
    mine = store.add_trial(trial())
    store.add_trial(trial(of=problem(2048)))
    store.add_trial(replace(trial(), device=OTHER.key))
    store.add_trial(replace(trial(), environment=Environment(driver="other").key))
    store.add_trial(replace(trial(), kernel_version="ba9876543210"))
    final = store.add_trial(trial(stage=Stage.FINAL))
    assert [found.id for found in history(store)] == [mine, final]
    assert [found.id for found in history(store, stage=Stage.FINAL)] == [final]
    assert [found.id for found in history(store, stage=Stage.SEARCH)] == [mine]


@pytest.mark.parametrize("part", ["device", "environment"])
def test_a_trial_of_something_unregistered_is_refused_and_nothing_of_it_stays(store: Store, part: str) -> None:
    with pytest.raises(DatabaseError, match="come before what refers to them") as caught:
        store.add_trial(replace(trial(), **{part: "unknown"}))
    assert "\n" not in str(caught.value)
    assert store.counts()["trials"] == store.counts()["problems"] == 0


def test_registering_again_changes_only_what_was_seen(store: Store) -> None:
    before = store.counts()
    store.register_device(replace(DEVICE, name="NVIDIA H200", attributes={"power_limit_w": 700}))
    store.register_environment(ENVIRONMENT)
    store.register_signatures([signature()])
    assert store.counts() == before
    found = store.device(DEVICE.key)
    assert found is not None
    assert (found.name, found.attributes) == ("NVIDIA H200", {"power_limit_w": 700})
    assert store.environments([ENVIRONMENT.key, "unknown"]) == {ENVIRONMENT.key: ENVIRONMENT}
    assert store.device("unknown") is None


def test_the_signature_registered_last_is_served_and_older_ones_stay(store: Store) -> None:
    store.register_signatures([signature(version="newer"), signature("layernorm")])
    assert [(s.kernel, s.version) for s in store.kernels()] == [("layernorm", VERSION), ("softmax", "newer")]
    store.register_signatures([signature()])
    assert store.kernels() == [signature("layernorm"), signature()]
    assert store.counts()["kernels"] == 3


def test_what_is_last_does_not_depend_on_the_clock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a year ahead when the one was registered, and when the one was tried."""
    with monkeypatch.context() as ahead:
        later = datetime.now(UTC) + timedelta(days=365)
        ahead.setattr(recording, "now", lambda: later)
        store.register_signatures([signature(version="older"), signature("layernorm")])
        store.add_trial(replace(trial(of=problem(7)), created_at=later))
    for version in ("newer", "newest"):
        store.register_signatures([signature(version=version)])
        assert [s.version for s in store.kernels()] == [VERSION, version]
        assert store.snapshot(DEVICE.key).signature("softmax").version == version
    store.add_trial(replace(trial(of=problem(8)), created_at=later - timedelta(days=365)))
    tried = store.last_tried(DEVICE.key)
    assert tried[problem(7).key] < tried[problem(8).key]


def test_where_a_kernel_was_tried(store: Store) -> None:
    store.register_device(OTHER)
    other = replace(trial(of=problem(7)), device=OTHER.key)
    store.add_trials([trial(), trial(), other, replace(trial(), kernel_version="older")])
    found = store.tried("softmax", VERSION)
    assert {(each.device, each.problem, each.trials) for each in found} == {
        (DEVICE.key, problem(), 2),
        (OTHER.key, problem(7), 1),
    }
    assert {each.environment for each in found} == {ENVIRONMENT.key}
    assert store.tried("layernorm", VERSION) == []


def test_whose_newest_final_was_disturbed(store: Store) -> None:
    final = replace(trial(), stage=Stage.FINAL)
    disturbed = replace(final, contended=True)
    store.add_trials([final, disturbed, replace(disturbed, problem=problem(7)), replace(final, problem=problem(7))])
    store.add_trials([replace(disturbed, problem=problem(8), stage=Stage.SEARCH), replace(final, problem=problem(8))])
    assert store.disturbed(DEVICE.key, ENVIRONMENT.key) == {problem().key}
    assert store.disturbed(DEVICE.key, Environment(torch="1.0").key) == set()


def test_a_curve_falls_where_a_config_was_faster(store: Store) -> None:
    number = store.start_sweep(Sweep(DEVICE.key, ENVIRONMENT.key, {}))
    started = store.list_sweeps().items[0].started_at
    assert started is not None
    times: list[float | None] = [None, 9.0, 12.0, 7.0, None, 7.0]
    trials = [
        replace(
            trial(sweep=number),
            config=config(2**n),
            outcome=Failure(FailureKind.OOM) if time_us is None else replace(measurement(), time_us=time_us),
            created_at=started + timedelta(seconds=n - 1),  # the clock was behind at first
        )
        for n, time_us in enumerate(times)
    ]
    store.add_trials([*trials, replace(trials[1], problem=problem(7)), replace(trials[3], stage=Stage.FINAL)])
    store.add_trials([replace(trials[3], sweep=None)])
    first, second = store.curves(number)
    assert [(point.trials, point.seconds, point.best_us) for point in first.points] == [(2, 0.0, 9.0), (4, 2.0, 7.0)]
    assert [point.config for point in first.points] == [trials[1].config, trials[3].config]
    assert (first.problem, first.trials, first.seconds) == (problem(), 6, 4.0)
    assert (second.problem, second.trials, len(second.points)) == (problem(7), 1, 1)


def test_a_sweep_of_failures_and_an_empty_one_have_no_points_and_no_curves(store: Store) -> None:
    number = store.start_sweep(Sweep(DEVICE.key, ENVIRONMENT.key, {}))
    assert store.curves(number) == []
    store.add_trial(replace(trial(sweep=number), outcome=Failure(FailureKind.OOM)))
    (curve,) = store.curves(number)
    assert (curve.trials, curve.points) == (1, ())
    for unknown in (number + 1, 0, -1, MAX_INT):
        with pytest.raises(UnknownSweep, match=f"there is no sweep {unknown}"):
            store.curves(unknown)


def test_a_sweep_says_how_it_ended(store: Store) -> None:
    limits = Limits(Objective.ERROR, 1e-3, 50.0, 2**33, "graph")
    sweep = Sweep(DEVICE.key, ENVIRONMENT.key, {"preset": "quick", "trials": 40}, limits=limits)
    number = store.start_sweep(sweep)
    (running,) = store.list_sweeps().items
    assert running == replace(sweep, id=number, started_at=running.started_at)
    assert running.started_at is not None
    store.end_sweep(number, SweepStatus.DONE)
    (ended,) = store.list_sweeps().items
    assert ended.status is SweepStatus.DONE
    assert ended.ended_at is not None
    assert ended.ended_at >= running.started_at
    with pytest.raises(BadInput, match="unknown"):
        store.end_sweep(number + 1, SweepStatus.DONE)


def test_ceilings_are_of_a_device_in_an_environment(store: Store) -> None:
    assert store.ceilings(DEVICE.key, ENVIRONMENT.key) is None
    store.put_ceilings(DEVICE.key, ENVIRONMENT.key, Ceilings(4e12, {"bfloat16": 8e14}))
    store.put_ceilings(DEVICE.key, ENVIRONMENT.key, Ceilings(4.1e12, {"bfloat16": 8e14, "tf32": 4e14}, 9e12))
    assert store.ceilings(DEVICE.key, ENVIRONMENT.key) == Ceilings(4.1e12, {"bfloat16": 8e14, "tf32": 4e14}, 9e12)
    assert store.ceilings(OTHER.key, ENVIRONMENT.key) is None


def test_misses_are_counted(store: Store) -> None:
    store.add_misses("cpu-never_seen-4c-avx2", {problem(): 2, problem(7): 1})
    store.add_misses("cpu-never_seen-4c-avx2", {problem(): MAX_INT})
    store.add_misses(DEVICE.key, {problem(): 1})
    found = {(miss.device, miss.problem.dims["rows"]): miss for miss in store.list_misses().items}
    assert {place: miss.count for place, miss in found.items()} == {
        ("cpu-never_seen-4c-avx2", 1024): MAX_INT,
        ("cpu-never_seen-4c-avx2", 7): 1,
        (DEVICE.key, 1024): 1,
    }
    seen = found["cpu-never_seen-4c-avx2", 1024]
    assert seen.problem == problem()
    assert seen.first_seen < seen.last_seen
    assert store.counts()["problems"] == 0


def test_misses_are_bounded_and_the_oldest_go_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_MISSES", 3)
    for rows in (1, 2, 3, 1, 4):
        store.add_misses(DEVICE.key, {problem(rows): 1})
    assert {miss.problem.dims["rows"]: miss.count for miss in store.list_misses().items} == {1: 2, 3: 1, 4: 1}


@pytest.mark.parametrize(("device", "count"), [("not a key", 1), (DEVICE.key, 0), (DEVICE.key, -1)])
def test_a_wrong_miss_is_refused(store: Store, device: str, count: int) -> None:
    with pytest.raises(BadInput):
        store.add_misses(device, {problem(): count})
    assert store.list_misses().items == []


@pytest.mark.parametrize("text", ["nul \0", "half a pair \ud800"])
def test_a_text_that_no_column_holds_gives_nothing_or_one_line(store: Store, text: str) -> None:
    # SQLite holds a NUL and PostgreSQL does not; neither holds half a pair.
    if store.embedded and "\0" in text:
        assert store.list_trials(kernel=text).items == []
    else:
        with pytest.raises(BadInput, match="no database column holds") as caught:
            store.list_trials(kernel=text)
        assert "\n" not in str(caught.value)


def test_threads_share_a_store(store: Store) -> None:
    ready = threading.Barrier(8)

    def write(first: int) -> list[int]:
        ready.wait()
        return [store.add_trial(trial(first + n)) for n in range(10)]

    with ThreadPoolExecutor(8) as pool:
        numbers = [number for batch in pool.map(write, range(0, 800, 100)) for number in batch]
    assert len(set(numbers)) == 80
    assert sorted(found.id or 0 for found in history(store)) == sorted(numbers)
    assert {found.config for found in history(store)} == {config(a + n) for a in range(0, 800, 100) for n in range(10)}


def test_check_counts_and_size(store: Store) -> None:
    store.check()
    store.add_trial(trial())
    counts = store.counts()
    assert list(counts) == [
        "bests",
        "ceilings",
        "channels",
        "devices",
        "environments",
        "kernels",
        "misses",
        "problems",
        "revision_kernels",
        "revisions",
        "sweeps",
        "trials",
    ]
    assert (counts["trials"], counts["problems"], counts["bests"]) == (1, 1, 0)
    assert store.size_bytes() > 10_000
