"""Where the time of a sweep goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated import Simulation, task_of

from tunedex.db import open_store
from tunedex.kernels.base import Kernel
from tunedex.tuner.spent import Ledger, Spent


def test_what_runs_inside_something_else_is_booked_once() -> None:
    now = [0.0]
    ledger = Ledger(lambda: now[0])
    with ledger.of("final"):
        now[0] += 2
        with ledger.of("open"):
            now[0] += 3
            with ledger.of("start"):
                now[0] += 4
        now[0] += 1
    with ledger.of("final"):
        now[0] += 1
    now[0] += 5
    spent = ledger.spent
    assert (spent.final_s, spent.open_s, spent.start_s) == (4, 3, 4)
    assert (spent.wall_s, spent.other_s) == (16, 5)


def test_a_block_that_raises_is_booked_too() -> None:
    now = [0.0]
    ledger = Ledger(lambda: now[0])

    def breaks() -> None:
        with ledger.of("measure"):
            now[0] += 2
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError):
        breaks()
    with ledger.of("store"):
        now[0] += 1
    assert (ledger.spent.measure_s, ledger.spent.store_s) == (2, 1)


def test_shares_count_from_the_first_compiled_config_on() -> None:
    now = [0.0]
    ledger = Ledger(lambda: now[0])
    now[0] += 10
    with ledger.of("compile_wait"):
        now[0] += 20
    ledger.compiled()
    with ledger.of("measure"):
        now[0] += 60
    with ledger.of("compile_wait"):
        now[0] += 5
    ledger.compiled()
    with ledger.of("search"):
        now[0] += 4
    with ledger.of("store"):
        now[0] += 1
    spent = ledger.spent
    assert (spent.first_wait_s, spent.first_batch_s, spent.compile_wait_s) == (20, 30, 25)
    assert spent.gpu_busy_share == pytest.approx(1 - 5 / 70)
    assert spent.overhead_share == pytest.approx(5 / 100)


def test_before_any_time_has_gone_by_there_are_no_shares() -> None:
    assert Spent().gpu_busy_share is None
    assert Spent().overhead_share is None
    assert Spent().to_dict()["overhead_share"] is None


def test_of_several_devices_it_is_the_sum() -> None:
    both = Spent(wall_s=10, measure_s=8, search_s=1) + Spent(wall_s=10, measure_s=6, store_s=1)
    assert (both.wall_s, both.measure_s, both.other_s) == (20, 14, 4)


def test_a_report_says_where_its_time_went(steps: Kernel, tmp_path: Path) -> None:
    simulation = Simulation(lambda config: 100.0)
    with open_store(str(tmp_path / "tunedex.db")) as store:
        report = simulation.sweep(store, [task_of(steps)])
    spent = report.to_dict()["spent"]
    assert spent["wall_s"] == pytest.approx(simulation.now)
    assert spent["measure_s"] == pytest.approx(len(simulation.tried) * simulation.measure_s)
    assert spent["start_s"] == pytest.approx(simulation.starts * simulation.start_s)
    assert spent["open_s"] == pytest.approx(2 * simulation.open_s)
    assert spent["other_s"] == pytest.approx(simulation.ceilings_s)
