"""What the driver of a real card tells beside a measurement."""

from __future__ import annotations

import time

import pytest
import torch

from tunedex.tuner import load
from tunedex.tuner.devices import DetectedDevice, detect, energy_j, sample
from tunedex.tuner.peaks import peaks_of

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def found() -> DetectedDevice:
    return detect("cuda")[0]


def _work(seconds: float) -> float:
    """Copies for so long, and gives the best rate in bytes read and written a second."""
    source = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(32):
            target.copy_(source)
        torch.cuda.synchronize()
        best = max(best, 32 * 2 * source.numel() / (time.perf_counter() - begin))
    return best


def test_no_copy_is_faster_than_the_data_sheet(found: DetectedDevice) -> None:
    peak = peaks_of(found.device).memory_bytes_s
    assert peak is not None
    assert _work(0.5) < peak


def test_the_peaks_hold_the_tensor_cores_rates(found: DetectedDevice) -> None:
    rates = peaks_of(found.device).flops_s
    assert rates["float16"] > rates["float32"] > 0


def test_work_takes_energy_where_the_card_counts_it(found: DetectedDevice) -> None:
    before = energy_j(found.device)
    _work(1.0)
    after = energy_j(found.device)
    if before is None or after is None:
        assert before is after is None
    else:
        assert after > before


def test_our_own_work_is_not_somebody_elses_load(found: DetectedDevice) -> None:
    time.sleep(1.5)
    load.watch(found.device, load.seen_idle(found.device))
    states = []
    for _ in range(3):
        _work(1.0)
        states.append(sample(found.device))
    assert not any(state.contended for state in states)
    assert all(state.clock_mhz for state in states)
