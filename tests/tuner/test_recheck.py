"""`tuner verify` below its command: real processes and a real database, in an environment that is not the rows' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tunedex.core.config import Config
from tunedex.core.device import Environment
from tunedex.core.display import time_words
from tunedex.core.errors import UnknownKernel
from tunedex.core.host import cpu
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.snapshot import Match
from tunedex.db import Store, open_store
from tunedex.db.records import SweepStatus, Trial
from tunedex.kernels.base import Kernel
from tunedex.tuner.devices import DetectedDevice
from tunedex.tuner.recheck import Outcome, Recheck, RecheckReport, compare
from tunedex.tuner.report import Progress

pytestmark = pytest.mark.usefixtures("undisturbed")

BEFORE = Environment(torch="2.11.0", numba="0.61.0", python="3.11")
AFTER = Environment(torch="2.13.0", numba="0.68.1", python="3.11")
CPU = DetectedDevice(cpu())
LIBRARY = Config("library")
Busy = Callable[[], AbstractContextManager[None]]


def config(fault: str) -> Config:
    return Config("numba", {"fault": fault})


def row(what: Config, rank: int = 0, time_us: float = 5.0, *, lossless: bool = True, error: float = 0.0) -> Row:
    measurement = Measurement(time_us, time_us, time_us, 9, Policy.EAGER_WARM, error, lossless, "ab12")
    return Row(rank, what, measurement, "000000000001", BEFORE.key, measured_at="2026-01-31T12:00:00.000000Z")


@pytest.fixture
def store(planted: Kernel, tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "tunedex.db")) as store:
        store.register_device(cpu())
        store.register_environment(BEFORE)
        store.register_signatures([planted.signature])
        yield store


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that makes configs go wrong."""
    monkeypatch.setenv("PLANTED_LATE", str(tmp_path / "late"))
    return tmp_path / "late"


def problem(kernel: Kernel, rows: int = 37) -> Problem:
    return kernel.signature.problem({"rows": rows, "cols": 61, "dtype": "float32"})


def recheck(store: Store, *kernels: str, everything: bool = False, budget_s: float | None = None) -> RecheckReport:
    return Recheck(store, CPU, AFTER, budget_s).run(kernels, {}, everything=everything)


def served(store: Store, asked: Problem) -> Config | None:
    return store.snapshot(cpu().key).answer(asked).config


def test_winners_are_timed_again_and_then_current(planted: Kernel, store: Store) -> None:
    asked = problem(planted)
    before = store.publish(cpu().key, {asked: [row(config("none")), row(LIBRARY, 1), row(config("late_raise"), 2)]})
    report = recheck(store)
    (result,) = report.results
    assert report.complete
    assert result.outcome in {Outcome.KEPT, Outcome.FASTER, Outcome.SLOWER, Outcome.REPLACED}
    assert result.old.config == config("none")
    rows = store.rows_of(cpu().key, asked.key)
    assert {r.config for r in rows} == {config("none"), LIBRARY, config("late_raise")}
    assert {r.environment for r in rows} == {AFTER.key}
    assert rows[0].default_us is not None
    assert report.revision == store.current_revision(cpu().key) > before
    assert result.new == rows[0]
    # The state before is still there to go back to.
    assert store.snapshot(cpu().key, revision=before).rows[asked.key][0].environment == BEFORE.key

    again = recheck(store)
    assert (again.results, again.current, again.left) == ([], 1, 0)
    assert again.revision == report.revision
    assert len(store.list_sweeps().items) == 1
    forced = recheck(store, everything=True)
    assert [r.problem for r in forced.results] == [asked]


def test_a_final_that_is_disturbed_verifies_nothing(planted: Kernel, store: Store, busy: Busy) -> None:
    asked = problem(planted)
    store.publish(cpu().key, {asked: [row(config("none"), time_us=1e9), row(LIBRARY, 1, 2e9)]})
    with busy():
        report = recheck(store)
    (result,) = report.results
    assert (result.outcome, report.complete) == (Outcome.DISTURBED, False)
    assert result.measured_us is not None
    assert result.detail == f"measured {time_words(result.measured_us)}, which does not count"
    assert (result.new, result.disturbed_by) == (None, "other work on the device")
    assert {r.environment for r in store.rows_of(cpu().key, asked.key)} == {BEFORE.key}
    assert recheck(store).complete
    assert {r.environment for r in store.rows_of(cpu().key, asked.key)} == {AFTER.key}


def test_what_a_disturbed_final_published_or_left_is_verified_again(planted: Kernel, store: Store, busy: Busy) -> None:
    asked = problem(planted)
    store.publish(cpu().key, {asked: [row(config("none"), time_us=1e9), row(LIBRARY, 1, 2e9)]})
    assert recheck(store).complete
    (served_before, *_) = store.rows_of(cpu().key, asked.key)
    with busy():
        (result,) = recheck(store, everything=True).results
        assert result.outcome is Outcome.DISTURBED  # its rows are of this environment, and hold against themselves
        assert result.old == served_before
        (again,) = recheck(store).results
        assert again.outcome is Outcome.DISTURBED
    taken = recheck(store)
    assert (len(taken.results), taken.current, taken.complete) == (1, 0, True)
    assert recheck(store).current == 1


def test_a_failure_counts_in_a_disturbed_final_as_well(planted: Kernel, store: Store, late: Path, busy: Busy) -> None:
    asked = problem(planted)
    store.publish(cpu().key, {asked: [row(config("late_raise"), 0, 1.0), row(config("none"), 1, 2.0)]})
    late.touch()
    with busy():
        report = recheck(store)
    (result,) = report.results
    assert (result.outcome, result.detail) == (Outcome.REFUSED, "crash: RuntimeError: planted")
    assert result.new is not None
    assert result.new.config == config("none")
    assert (report.complete, result.measured_us) == (False, None)
    assert recheck(store).complete


def test_with_everything_the_least_recently_tried_come_first(planted: Kernel, store: Store) -> None:
    asked = [problem(planted, rows) for rows in (37, 38, 39)]
    store.publish(cpu().key, {each: [row(config("none"))] for each in asked})
    for day, each in ((3, asked[1]), (1, asked[2]), (2, asked[0]), (1, asked[2])):  # the clock says nothing
        failed = Failure(FailureKind.TIMEOUT)
        when = datetime(2026, 1, day, tzinfo=UTC)
        store.add_trial(Trial(each, cpu().key, BEFORE.key, "0", config("exit"), failed, created_at=when))
    for _ in range(2):  # the second goes by what the first has tried
        assert [r.problem for r in recheck(store, everything=True).results] == [asked[1], asked[0], asked[2]]


def test_a_winner_that_fails_now_is_refused_and_no_longer_served(planted: Kernel, store: Store, late: Path) -> None:
    asked = problem(planted)
    store.publish(cpu().key, {asked: [row(config("late_raise"), 0, 1.0), row(config("late_exit"), 1, 2.0)]})
    late.touch()
    (result,) = recheck(store).results
    assert result.outcome is Outcome.REFUSED
    assert result.detail == "crash: RuntimeError: planted"
    assert result.new is not None
    # Neither is left, the default and the library call are tried in any case.
    assert {r.config for r in store.rows_of(cpu().key, asked.key)} == {config("none"), LIBRARY}
    assert served(store, asked) == result.new.config


def test_where_everything_fails_nothing_is_served(planted: Kernel, store: Store, late: Path) -> None:
    asked = problem(planted)
    faults = ("late_raise", "late_exit", "none", "raise", "exit", "abort", "operand", "memory", "beside", "unwritten")
    store.publish(cpu().key, {asked: [row(config(fault), rank) for rank, fault in enumerate(faults)]})
    late.write_text("raise")
    report = recheck(store)
    (result,) = report.results
    assert result.outcome is Outcome.REFUSED
    assert result.new is None
    assert store.rows_of(cpu().key, asked.key) == ()
    assert store.snapshot(cpu().key).answer(asked).match is Match.DEFAULT


def test_the_runners_up_beyond_the_first_are_tried_where_those_fail(planted: Kernel, store: Store, late: Path) -> None:
    asked = problem(planted)
    faults = ("raise", "exit", "abort", "operand", "memory", "beside", "unwritten", "limit", "none")
    store.publish(cpu().key, {asked: [row(config(fault), rank) for rank, fault in enumerate(faults)]})
    (result,) = recheck(store).results
    assert result.outcome is Outcome.REFUSED
    assert {r.config for r in store.rows_of(cpu().key, asked.key)} == {config("none"), LIBRARY}


def test_a_config_that_the_kernel_has_no_longer_is_gone(planted: Kernel, store: Store) -> None:
    asked = problem(planted)
    store.publish(cpu().key, {asked: [row(config("formerly"), 0, 1.0)]})
    (result,) = recheck(store).results
    assert result.outcome is Outcome.GONE
    assert result.detail == "the kernel has no config numba fault=formerly any more"
    assert served(store, asked) in {config("none"), LIBRARY}


def test_a_config_of_an_older_version_is_mapped_forward(
    planted: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def map_forward(self: Kernel, old: Config, version: str) -> Config | None:
        assert version == "000000000000"
        return config("late_raise") if old == config("formerly") else None

    monkeypatch.setattr(type(planted), "map_forward", map_forward)
    asked = problem(planted)
    old = [
        replace(row(config(name), rank), kernel_version="000000000000") for rank, name in enumerate(("formerly", "x"))
    ]
    store.publish(cpu().key, {asked: old})
    (result,) = recheck(store).results
    assert result.outcome in {Outcome.KEPT, Outcome.FASTER, Outcome.SLOWER, Outcome.REPLACED}
    rows = store.rows_of(cpu().key, asked.key)
    assert config("late_raise") in {r.config for r in rows}
    assert {r.kernel_version for r in rows} == {planted.signature.version}


def test_a_problem_whose_rows_the_kernel_s_own_code_cannot_read_is_left_as_it_is(
    planted: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def map_forward(self: Kernel, old: Config, version: str) -> Config | None:
        raise KeyError("planted")

    monkeypatch.setattr(type(planted), "map_forward", map_forward)
    old, current = problem(planted), problem(planted, rows=36)
    outdated = replace(row(config("none")), kernel_version="000000000000")
    store.publish(cpu().key, {old: [outdated], current: [row(config("none"))]})
    report = recheck(store)
    outcomes = {result.problem: result for result in report.results}
    assert (outcomes[old].outcome, outcomes[old].detail) == (
        Outcome.UNANSWERED,
        "what is published cannot be read: KeyError: 'planted'",
    )
    assert outcomes[current].new is not None
    assert store.rows_of(cpu().key, old.key)[0].config == config("none")


def test_a_kernel_that_is_not_installed_is_gone_and_its_rows_stay(planted: Kernel, store: Store) -> None:
    absent = replace(planted.signature, kernel="absent")
    store.register_signatures([absent])
    asked = absent.problem({"rows": 4, "cols": 4, "dtype": "float32"})
    store.publish(cpu().key, {asked: [row(config("none"))]})
    (result,) = recheck(store, "absent").results
    assert (result.outcome, result.detail) == (Outcome.GONE, "kernel absent is not installed here")
    assert served(store, asked) == config("none")
    with pytest.raises(UnknownKernel, match="nowhere"):
        recheck(store, "nowhere")


def test_a_problem_that_the_kernel_takes_no_longer_is_gone(planted: Kernel, store: Store) -> None:
    asked = replace(problem(planted), attributes={"mode": "old"})
    store.publish(cpu().key, {asked: [row(config("none"))]})
    (result,) = recheck(store).results
    assert (result.outcome, result.detail) == (Outcome.GONE, "kernel planted takes no such problem any more")


def test_a_problem_that_cannot_be_set_up_keeps_its_rows(planted: Kernel, store: Store) -> None:
    unlucky, lucky = problem(planted, rows=13), problem(planted)
    store.publish(cpu().key, {unlucky: [row(config("none"))], lucky: [row(config("none"))]})
    report = recheck(store)
    outcomes = {result.problem: result for result in report.results}
    assert outcomes[unlucky].outcome is Outcome.UNANSWERED
    assert "planted: no reference" in outcomes[unlucky].detail
    assert outcomes[lucky].new is not None
    assert not report.complete
    assert store.rows_of(cpu().key, unlucky.key)[0].environment == BEFORE.key


def test_a_lossy_row_is_held_to_the_bound_that_it_was_tuned_under(planted: Kernel, store: Store) -> None:
    asked = problem(planted)
    lossy = row(config("wrong_last"), 1, 1.0, lossless=False, error=0.01)
    store.publish(cpu().key, {asked: [row(config("none")), lossy]})
    store.add_trial(Trial(asked, cpu().key, BEFORE.key, "000000000001", lossy.config, lossy.measurement, max_error=0.5))
    (result,) = recheck(store).results
    assert result.new is not None
    assert result.new.measurement.lossless
    rows = {r.config: r for r in store.rows_of(cpu().key, asked.key)}
    assert not rows[config("wrong_last")].measurement.lossless


def test_a_spent_budget_leaves_problems_for_the_next_run(planted: Kernel, store: Store) -> None:
    asked = [problem(planted, rows) for rows in (36, 37)]
    store.publish(cpu().key, {each: [row(config("none"))] for each in asked})
    cut = recheck(store, budget_s=1e-3)
    assert (cut.left, cut.results, cut.complete) == (2, [], False)
    assert store.list_sweeps().items[0].status is SweepStatus.PARTIAL
    done = recheck(store)
    assert (done.left, len(done.results), done.complete) == (0, 2, True)
    assert store.list_sweeps().items[0].status is SweepStatus.DONE


def test_ctrl_c_keeps_what_was_answered(planted: Kernel, store: Store) -> None:
    asked = [problem(planted, rows) for rows in (36, 37)]
    store.publish(cpu().key, {each: [row(config("none"))] for each in asked})
    begun: list[str] = []

    def interrupt(progress: Progress) -> None:
        if progress.phase == "trying" and progress.task not in begun:
            begun.append(progress.task)
            if len(begun) == 2:
                raise KeyboardInterrupt

    report = Recheck(store, CPU, AFTER, watch=interrupt).run([], {})
    assert (report.interrupted, report.left, len(report.results)) == (True, 1, 1)
    assert store.list_sweeps().items[0].status is SweepStatus.INTERRUPTED
    rest = recheck(store)
    assert [str(result.problem) for result in rest.results] == [begun[1]]
    assert rest.current == 1


OLD = row(config("none"), time_us=10.0)
TRIAL = Trial(
    Problem("planted", {}, {}, {}), cpu().key, AFTER.key, "000000000001", OLD.config, row(OLD.config).measurement
)


def now(what: Config = OLD.config, time_us: float = 10.0, policy: Policy = Policy.EAGER_WARM) -> Row:
    new = row(what, time_us=time_us)
    return replace(new, environment=AFTER.key, measurement=replace(new.measurement, policy=policy))


@pytest.mark.parametrize(
    ("trial", "new", "outcome", "words"),
    [
        (TRIAL, now(), Outcome.KEPT, ""),
        (TRIAL, now(time_us=9.9), Outcome.KEPT, ""),
        (TRIAL, now(time_us=10.1), Outcome.KEPT, ""),
        (TRIAL, now(time_us=9.7), Outcome.FASTER, ""),
        (TRIAL, now(time_us=10.3), Outcome.SLOWER, ""),
        (TRIAL, now(time_us=1.0, policy=Policy.GRAPH_COLD), Outcome.KEPT, "timed as graph-cold, before as eager-warm"),
        (TRIAL, now(LIBRARY), Outcome.REPLACED, ""),
        (replace(TRIAL, outcome=Failure(FailureKind.OOM, "no room")), now(LIBRARY), Outcome.REFUSED, "oom: no room"),
        (
            replace(TRIAL, outcome=row(OLD.config, lossless=False, error=0.1).measurement),
            now(LIBRARY),
            Outcome.REFUSED,
            "no longer lossless: its error is 0.1",
        ),
        (TRIAL, OLD, Outcome.UNANSWERED, "no final could be taken"),
        (None, None, Outcome.UNANSWERED, "no config could be measured"),
    ],
)
def test_what_became_of_a_row(trial: Trial | None, new: Row | None, outcome: Outcome, words: str) -> None:
    found, detail = compare(OLD, OLD.config, trial, new, AFTER.key)
    assert found is outcome
    assert words in detail


def test_a_config_without_a_spelling_is_gone() -> None:
    assert compare(OLD, None, None, now(LIBRARY), AFTER.key)[0] is Outcome.GONE
