"""Finals: who is in one, which process it runs in, and what becomes of one that was disturbed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from simulated import WHOLE, Simulation, task_of, with_seed

from tunedex.core.config import Config
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy
from tunedex.db import Store, open_store
from tunedex.db.records import Stage, Trial
from tunedex.kernels.base import Kernel
from tunedex.tuner.bench import FinalTime
from tunedex.tuner.final import Call, finalists, hold
from tunedex.tuner.nvml import Sample, unsteady
from tunedex.tuner.process import ProcessFailure
from tunedex.tuner.settings import Finals, Timeouts
from tunedex.tuner.spent import Ledger
from tunedex.tuner.worker import FinalTimes, Worker

SETTINGS = Finals()
BUSY, QUIET, UNKNOWN = Sample(contended=True), Sample(contended=False), Sample()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "tunedex.db")) as store:
        yield store


def config(number: int) -> Config:
    return Config("numba", {"number": number})


def measured(time_us: float, *, lossless: bool = True, p20_us: float | None = None) -> Measurement:
    low = time_us if p20_us is None else p20_us
    return Measurement(time_us, low, time_us, 7, Policy.EAGER_WARM, 0.0, lossless, "same")


def time_us(config: Config) -> float:
    return 130.0 if config.library else 100.0 + float(str(config.values["steps"])) + float(str(config.values["width"]))


def finals_in(store: Store) -> list[Trial]:
    found = (trial for trial in store.list_trials(limit=1000).items if trial.stage is Stage.FINAL)
    return sorted(found, key=lambda trial: trial.id or 0)


class TestWhoIsInIt:
    def chosen(self, times: dict[Config, Measurement], runs: dict[Config, int] | None = None, **more: object) -> list:
        origin = {c: (1, (runs or {}).get(c, 0)) for c in times}
        return finalists(times, origin, known=more.get("known", ()), bears_error=bool(more.get("bears_error")))  # type: ignore[arg-type]

    def test_all_that_searching_cannot_tell_from_the_best(self) -> None:
        close = {config(n): measured(100 + n) for n in range(8)}
        far = {config(n): measured(200 + n) for n in range(8, 20)}
        assert set(self.chosen({**far, **close})) == set(close)

    def test_no_more_than_a_final_has_room_for(self) -> None:
        many = {config(n): measured(100 + n / 100) for n in range(60)}
        assert len(self.chosen(many)) == SETTINGS.most_leaders
        slow = {config(n): measured(1e5 * (1 + n / 1000)) for n in range(60)}
        assert len(self.chosen(slow)) == SETTINGS.leaders

    def test_the_best_of_each_run_for_runs_are_not_alike(self) -> None:
        """The second process was 20 % slower: its times say nothing against those of the first."""
        first = {config(n): measured(100 + 2 * n) for n in range(20)}
        second = {config(100 + n): measured(120 + 2 * n) for n in range(20)}
        found = self.chosen({**first, **second}, runs=dict.fromkeys(second, 1))
        assert {config(100), config(101), config(102)} <= set(found)

    def test_the_known_and_the_quiet_but_nobody_who_was_not_measured(self) -> None:
        times = {config(n): measured(100 + n) for n in range(5)}
        times[config(50)] = measured(180, p20_us=90)
        times[config(51)] = measured(300)
        found = self.chosen(times, known=[config(51), config(99)])
        assert {config(50), config(51)} <= set(found)
        assert config(99) not in found

    def test_lossy_configs_as_the_task_bears_them(self) -> None:
        times = {config(n): measured(100 + n) for n in range(3)}
        lossy = {config(10 + n): measured(50 + n, lossless=False) for n in range(8)}
        assert len(set(self.chosen({**times, **lossy})) & set(lossy)) == SETTINGS.lossy_leaders
        assert len(set(self.chosen({**times, **lossy}, bears_error=True)) & set(lossy)) > SETTINGS.lossy_leaders


class TestItsProcess:
    def test_it_searched_nothing(self, steps: Kernel, store: Store) -> None:
        simulation = Simulation(time_us)
        simulation.sweep(store, [task_of(steps), task_of(steps, rows=16)])
        order = [(number, method) for number, method, _ in simulation.calls if method in ("measure", "final")]
        for number in {number for number, method in order if method == "final"}:
            mine = [method for each, method in order if each == number]
            assert mine[0] == "final"
        # And it searches the next task: one process a task, and one more for the first search.
        assert simulation.starts == 3

    def test_the_finals_of_one_task_share_it(self, steps: Kernel, store: Store) -> None:
        task = task_of(steps)
        batches = replace(task, problems=(*task.problems, task.problems[0].at_batch(2), task.problems[0].at_batch(4)))
        simulation = Simulation(time_us)
        simulation.sweep(store, [batches])
        assert len({number for number, _ in simulation.finals}) == 1
        assert len(simulation.finals) == 3

    def test_on_a_gpu_it_is_started_while_the_search_goes_on(self) -> None:
        started = threading.Event()
        simulation = Simulation(time_us)

        def make() -> object:
            process = simulation.process(None, None)  # type: ignore[arg-type]
            begin = process.start
            process.start = lambda: (begin(), started.set())  # type: ignore[method-assign,assignment]
            return process

        worker = Worker(make, Timeouts(), Ledger(), standby=True)  # type: ignore[arg-type]
        worker.ceilings([])
        started.clear()
        worker.prepare()
        assert started.wait(60)
        before = simulation.starts
        worker.measure(Config("library"), None, {}, 1.0)  # type: ignore[arg-type]
        worker.renew()
        assert worker.final([Config("library")], 0.1, []) is not None
        assert simulation.starts == before == 2
        assert simulation.finals[0][0] == 2
        worker.close()

    def test_one_that_cannot_be_kept_ready_is_started_when_it_is_needed(self) -> None:
        simulation = Simulation(time_us)
        made = itertools.count()

        def make() -> object:
            process = simulation.process(None, None)  # type: ignore[arg-type]
            if next(made) == 1:
                process.start = fail  # type: ignore[method-assign]
            return process

        def fail() -> None:
            raise ProcessFailure("planted")

        worker = Worker(make, Timeouts(), Ledger(), standby=True)  # type: ignore[arg-type]
        worker.ceilings([])
        worker.prepare()
        worker.measure(Config("library"), None, {}, 1.0)  # type: ignore[arg-type]
        worker.renew()
        assert worker.final([Config("library")], 0.1, []) is not None
        worker.close()


class TestDisturbances:
    def test_it_is_taken_again_and_counts_once_it_is_quiet(self, steps: Kernel, store: Store) -> None:
        simulation = Simulation(time_us)
        simulation.states = lambda: BUSY if len(simulation.finals) == 1 else QUIET
        simulation.sweep(store, [task_of(steps)])
        assert len(simulation.finals) == 2
        assert {trial.contended for trial in finals_in(store)} == {False}

    def test_one_that_stays_so_says_it_and_is_held_again_by_the_next_sweep(self, steps: Kernel, store: Store) -> None:
        simulation = Simulation(time_us, states=lambda: BUSY)
        report = simulation.sweep(store, [task_of(steps)])
        assert len(simulation.finals) == 1 + SETTINGS.repeats
        assert {trial.contended for trial in finals_in(store)} == {True}
        assert report.results[0].best is not None  # there is no better answer yet

        later = Simulation(time_us, states=lambda: QUIET)
        later.sweep(store, [task_of(steps)])
        assert later.tried == []
        assert len(later.finals) == 1
        assert [trial.contended for trial in finals_in(store)][-1] is False

    def test_it_takes_no_incumbent_s_place(self, steps: Kernel, store: Store) -> None:
        first = Simulation(time_us, states=lambda: QUIET).sweep(store, [task_of(steps)], replace(WHOLE, trials=6))
        held = first.results[0].best
        assert held is not None

        def faster(config: Config) -> float:
            return time_us(config) if config == held.config else 0.5 * time_us(config)

        busy = Simulation(faster, states=lambda: BUSY).sweep(store, [task_of(steps)])
        assert busy.results[0].best == held
        quiet = Simulation(faster, states=lambda: QUIET).sweep(store, [task_of(steps)])
        assert quiet.results[0].best is not None
        assert quiet.results[0].best.config != held.config

    def test_clocks_that_part_are_a_disturbance(self, steps: Kernel, store: Store) -> None:
        series = itertools.cycle([1980, 1980, 1600, 1600])
        simulation = Simulation(time_us, states=lambda: Sample(clock_mhz=next(series), throttle=""))
        report = simulation.sweep(store, [task_of(steps)])
        assert len(simulation.finals) == 1 + SETTINGS.repeats
        found = finals_in(store)
        assert {trial.contended for trial in found} == {True}
        assert [result.contended for result in report.results] == [True]
        assert [result.disturbed_by for result in report.results] == ["an SM clock between 1600 and 1980 MHz"]
        assert {trial.clock_mhz for trial in found} <= {1600, 1980}

    @pytest.mark.parametrize(
        ("samples", "expected"),
        [
            ([], ""),
            ([Sample(), Sample()], ""),
            ([Sample(1980), Sample(1965), Sample(None)], ""),
            ([Sample(1980), Sample(1980), Sample(1600), Sample(1600)], "an SM clock between 1600 and 1980 MHz"),
            ([Sample(1980, 60, "power_cap"), Sample(1980, 60, "")], ""),
            ([Sample(1980, 60, ""), Sample(1650, 60, "power_cap")], ""),
            # A thermal limit is steady while the clocks are.
            ([Sample(1980, 60, ""), Sample(1650, 60, "power_cap,thermal")], "throttling (thermal)"),
            ([Sample(1980, 60, "power_cap,thermal"), Sample(1980, 60, "")], ""),
            ([Sample(1400, 87, "thermal"), Sample(1395, 87, "thermal")], ""),
            ([Sample(None, 87, "thermal")], "throttling (thermal)"),
            (
                [Sample(1400, 87, "power_cap,hardware_thermal")],
                "throttling (hardware_thermal)",
            ),
        ],
    )
    def test_what_unsteady_is(self, samples: list[Sample], expected: str) -> None:
        assert unsteady(samples, 0.05) == expected

    def test_a_device_at_its_thermal_limit_replaces_an_incumbent(self, steps: Kernel, store: Store) -> None:
        hot = Sample(1400, 87, "thermal", contended=False)
        first = Simulation(time_us, states=lambda: hot).sweep(store, [task_of(steps)], replace(WHOLE, trials=6))
        held = first.results[0].best
        assert held is not None
        later = Simulation(lambda config: (1.0 if config == held.config else 0.5) * time_us(config), states=lambda: hot)
        result = later.sweep(store, [task_of(steps)]).results[0]
        assert len(later.finals) == 1
        assert (result.contended, result.disturbed_by) == (False, "")
        assert result.best is not None
        assert result.best.config != held.config

    def test_it_is_not_repeated_when_there_is_no_time(self) -> None:
        calls = 0

        def call(configs: object) -> FinalTimes:
            nonlocal calls
            calls += 1
            return FinalTimes((FinalTime(1.0, 1.0, 1.0, 9, 1.0),), (BUSY,))

        held = hold([config(0)], {config(0): measured(1)}, call, again=lambda: False)
        assert calls == 1
        assert held is not None
        assert held.state.contended is True


def test_slow_configs_get_the_time_that_their_least_rounds_take(steps: Kernel, store: Store) -> None:
    """Each call takes 5 s: 9 rounds of the finalists are longer than a final of short calls may be."""
    simulation = Simulation(lambda config: 5e6 + time_us(config), sample_s=5.0)
    report = simulation.sweep(store, [task_of(steps)])
    assert len(simulation.finals) == 1
    assert len(simulation.finals[0][1]) * SETTINGS.min_rounds * 5.0 > Timeouts().final_s
    assert report.results[0].best is not None


def all_in_5_us(configs: Sequence[Config], state: Sample = UNKNOWN) -> FinalTimes:
    return FinalTimes(tuple(FinalTime(5.0, 5.0, 5.0, 9, 5.0) for _ in configs), (state,))


def check_stands_as_disturbed(call: Call) -> None:
    """What the final of two, each of 5 us, gave before ``call`` ended the process stands, as disturbed."""
    times = {config(n): measured(10) for n in range(2)}
    held = hold(list(times), times, call, again=lambda: True)
    assert held is not None
    assert held.state.contended is True
    assert [outcome.time_us for outcome, _ in held.outcomes.values()] == [5.0, 5.0]  # type: ignore[union-attr]


class TestFaults:
    def test_who_ends_the_process_is_left_out_and_the_others_are_timed_again(self) -> None:
        bad = config(1)

        def call(configs: object) -> FinalTimes | None:
            listed = list(configs)  # type: ignore[call-overload]
            if bad in listed:
                return None
            return all_in_5_us(listed)

        times = {config(n): measured(10) for n in range(3)}
        held = hold(list(times), times, call, again=lambda: True)
        assert held is not None
        outcomes = {c: outcome for c, (outcome, _) in held.outcomes.items()}
        assert outcomes[bad] == Failure(FailureKind.CRASH, "ends the measuring process in the final")
        assert [outcomes[config(n)].time_us for n in (0, 2)] == [5.0, 5.0]  # type: ignore[union-attr]

    def test_who_it_is_is_found_by_halves(self) -> None:
        called: list[int] = []

        def call(configs: object) -> FinalTimes | None:
            listed = list(configs)  # type: ignore[call-overload]
            called.append(len(listed))
            if config(5) in listed:
                return None
            return all_in_5_us(listed)

        times = {config(n): measured(10) for n in range(16)}
        held = hold(list(times), times, call, again=lambda: True)
        assert held is not None
        assert [c for c, (outcome, _) in held.outcomes.items() if isinstance(outcome, Failure)] == [config(5)]
        assert called == [16, 8, 4, 4, 2, 1, 1, 2, 8, 15]

    def test_what_a_disturbed_turn_gave_stands_where_the_next_ends_the_process(self) -> None:
        answers = iter([BUSY, None, None, None])  # at last both end it, each alone

        def call(configs: object) -> FinalTimes | None:
            state = next(answers)
            listed = list(configs)  # type: ignore[call-overload]
            return all_in_5_us(listed, state) if state else None

        check_stands_as_disturbed(call)

    def test_nobody_is_laid_a_disturbed_turn_s_end_on(self) -> None:
        """Two together end the process, neither does alone: the turn before counts, as disturbed."""
        turns = iter([BUSY, None])

        def call(configs: object) -> FinalTimes | None:
            listed = list(configs)  # type: ignore[call-overload]
            state = next(turns) if len(listed) == 2 else QUIET
            return all_in_5_us(listed, state) if state else None

        check_stands_as_disturbed(call)

    def test_after_a_fault_that_sticks_only_the_first_is_at_fault(self) -> None:
        broken = Failure(FailureKind.ILLEGAL_ACCESS, "planted")

        def call(configs: object) -> FinalTimes:
            listed = list(configs)  # type: ignore[call-overload]
            good = listed.index(config(1)) if config(1) in listed else len(listed)
            fine = FinalTime(5.0, 5.0, 5.0, 9, 5.0)
            return FinalTimes(tuple(fine if n < good else broken for n in range(len(listed))), (Sample(),))

        times = {config(n): measured(10) for n in range(4)}
        held = hold(list(times), times, call, again=lambda: True)
        assert held is not None
        assert [c for c, (outcome, _) in held.outcomes.items() if outcome == broken] == [config(1)]

    def test_a_failure_that_is_nobody_s_leaves_things_as_they_were(self) -> None:
        times = {config(n): measured(10) for n in range(3)}

        def call(configs: object) -> FinalTimes | None:
            alone = len(list(configs)) == 1  # type: ignore[call-overload]
            return FinalTimes((FinalTime(5.0, 5.0, 5.0, 9, 5.0),), (Sample(),)) if alone else None

        assert hold(list(times), times, call, again=lambda: True) is None


def test_the_next_day_s_final_is_of_its_own_process(steps: Kernel, store: Store) -> None:
    """Nothing new is tried, so nothing is timed again either, whatever process would do it."""
    first = Simulation(time_us, offset=0.2)
    first.sweep(store, [task_of(steps)])
    second = with_seed(first, 1)
    again = second.sweep(store, [task_of(steps)])
    assert second.finals == []
    assert again.revision == store.current_revision(again.detected.device.key, "candidate")
