"""The least time that can be, from data sheets where they are known and from measured ceilings where not."""

from __future__ import annotations

import math

import pytest

from tunedex.core.device import Device
from tunedex.core.measurement import Policy
from tunedex.db.records import Ceilings
from tunedex.kernels.base import Cost
from tunedex.tuner.peaks import Peaks
from tunedex.tuner.physics import Physics, physics_of
from tunedex.tuner.settings import SETTINGS

TIMING = SETTINGS.timing
MB = 10**6

DEVICE = Device("cuda", "a GPU with 60 MB of L2", 132, 140 * 2**30, (9, 0), l2_bytes=60 * MB)
CEILINGS = Ceilings(4e12, {"bfloat16": 700e12, "float32": 50e12, "tf32": 350e12}, cache_bytes_s=8e12)


def least(cost: Cost, *, written: int = 0, peaks: Peaks = Peaks(), ceilings: Ceilings = CEILINGS) -> Physics:  # noqa: B008
    return physics_of(cost, written, DEVICE, peaks, ceilings, TIMING)


def test_cold_bytes_come_from_memory_at_the_data_sheets_rate() -> None:
    peaks = Peaks(memory_bytes_s=5e12)
    assert least(Cost(0, 500 * MB), peaks=peaks).cold_us == pytest.approx(100.0)
    # What is written may be in the cache still when the call is over, as far as it goes in there.
    assert least(Cost(0, 500 * MB), written=50 * MB, peaks=peaks).cold_us == pytest.approx(90.0)
    assert least(Cost(0, 500 * MB), written=250 * MB, peaks=peaks).cold_us == pytest.approx(88.0)
    assert least(Cost(0, 20 * MB), written=40 * MB, peaks=peaks).cold_us == TIMING.least_us


def test_without_a_data_sheet_a_share_of_the_measured_rate_counts() -> None:
    assert least(Cost(0, 400 * MB)).cold_us == pytest.approx(TIMING.physical_share * 100.0)


def test_warm_bytes_come_from_the_cache() -> None:
    assert least(Cost(0, 16 * MB)).warm_us == pytest.approx(TIMING.physical_share * 2.0)
    unknown = Ceilings(4e12)
    assert least(Cost(0, 400 * MB), ceilings=unknown).warm_us == pytest.approx(TIMING.physical_warm_share * 100.0)


def test_operations_bound_both() -> None:
    cost = Cost(7e12, 1 * MB, "bfloat16")
    measured = least(cost)
    assert measured.cold_us == measured.warm_us == pytest.approx(TIMING.physical_share * 10_000.0)
    known = least(cost, peaks=Peaks(flops_s={"bfloat16": 1000e12}))
    assert known.cold_us == known.warm_us == pytest.approx(7000.0)


def test_the_fastest_precision_that_may_do_them_counts() -> None:
    cost = Cost(7e12, 1 * MB, "float32")
    assert least(cost).cold_us == pytest.approx(TIMING.physical_share * 20_000.0)
    known = Peaks(flops_s={"float32": 70e12, "tf32": 500e12})
    assert least(cost, peaks=known).cold_us == pytest.approx(14_000.0)
    # The data sheet's rate of one of them says nothing of the other.
    assert least(cost, peaks=Peaks(flops_s={"float32": 70e12})).cold_us == least(cost).cold_us


def test_of_a_device_that_nothing_is_known_of_no_time_but_none_is_refused() -> None:
    unknown = least(Cost(7e12, 1 * MB, "float32"), ceilings=Ceilings(copy_bytes_s=math.inf))
    assert unknown == Physics(TIMING.least_us, TIMING.least_us)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("time_us", [-0.02, 0.0, -0.0, math.nan, math.inf, -math.inf, 1e-9])
def test_what_is_no_time_is_a_fault_under_every_policy(policy: Policy, time_us: float) -> None:
    assert Physics(TIMING.least_us, TIMING.least_us).fault(time_us, policy)


def test_a_fault_is_under_the_policys_own_least() -> None:
    physics = Physics(cold_us=30.0, warm_us=2.0)
    assert physics.fault(29.0, Policy.GRAPH_COLD) == "29 us is faster than 30 us, the least that this device allows"
    assert physics.fault(29.0, Policy.GRAPH_WARM) == ""
    assert physics.fault(30.0, Policy.EAGER_COLD) == ""
