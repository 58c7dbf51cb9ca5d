"""Data-sheet peaks of known boards, from the clocks and widths that NVML tells of them."""

from __future__ import annotations

from typing import Any

import pytest

from tunedex.core import host
from tunedex.core.device import Device
from tunedex.tuner.peaks import Peaks, peaks_of

TERA = 1e12


def device(capability: tuple[int, int], sms: int, **attributes: Any) -> Device:
    return Device("cuda", "a GPU", sms, 2**35, capability, 2**25, 2**16, attributes=attributes)


def clocked(capability: tuple[int, int], sms: int, clock_mhz: int, memory_mhz: int, bus_bits: int) -> Device:
    return device(capability, sms, max_clock_mhz=clock_mhz, max_memory_clock_mhz=memory_mhz, memory_bus_bits=bus_bits)


#: The device as NVML describes it; its memory's data-sheet rate in TB/s; dense data-sheet rates in TFLOP/s.
BOARDS: dict[str, tuple[Device, float, dict[str, float]]] = {
    "H200 SXM": (
        clocked((9, 0), 132, 1980, 3201, 6144),
        4.8,
        {
            "bfloat16": 989,
            "float16": 989,
            "tf32": 494,
            "float8_e4m3fn": 1979,
            "int8": 1979,
            "float32": 67,
            "float64": 67,
        },
    ),
    "A100 SXM 80GB": (
        clocked((8, 0), 108, 1410, 1593, 5120),
        2.039,
        {"bfloat16": 312, "float16": 312, "tf32": 156, "int8": 624, "float32": 19.5, "float64": 19.5},
    ),
    "RTX 4090": (
        clocked((8, 9), 128, 3105, 10_501, 384),
        1.008,
        {"float16": 330, "float8_e4m3fn": 660, "int8": 660, "float32": 82.6, "float64": 1.29},
    ),
    "RTX 3090": (
        clocked((8, 6), 82, 2100, 9751, 384),
        0.936,
        {"float16": 142, "int8": 284, "float32": 35.6, "float64": 0.556},
    ),
    "L4": (
        clocked((8, 9), 58, 2040, 6251, 192),
        0.3,
        {"float16": 121, "bfloat16": 121, "tf32": 60, "float8_e5m2": 242, "int8": 242, "float32": 30.3},
    ),
    "A40": (
        clocked((8, 6), 84, 1740, 7251, 384),
        0.696,
        {"bfloat16": 149.7, "tf32": 74.8, "int8": 299, "float32": 37.4},
    ),
    "T4": (clocked((7, 5), 40, 1590, 5001, 256), 0.32, {"float16": 65, "int8": 130, "float32": 8.1}),
    "V100 SXM2": (clocked((7, 0), 80, 1530, 877, 4096), 0.9, {"float16": 125, "float32": 15.7, "float64": 7.8}),
    "RTX 5090": (
        clocked((12, 0), 170, 2407, 14_001, 512),
        1.792,
        {"float16": 419, "float8_e4m3fn": 838, "float32": 104.8},
    ),
}


@pytest.mark.parametrize("name", BOARDS)
def test_a_peak_is_at_or_somewhat_above_what_the_data_sheet_says(name: str) -> None:
    board, memory_tb_s, tflops = BOARDS[name]
    peaks = peaks_of(board)
    assert peaks.memory_bytes_s is not None
    assert 0.99 < peaks.memory_bytes_s / TERA / memory_tb_s < 1.05
    # Data sheets count at the boost clock, which the highest clock is up to a quarter above.
    for dtype, rate in tflops.items():
        assert 0.99 < peaks.flops_s[dtype] / TERA / rate < 1.26, dtype


def test_tensor_cores_know_bfloat16_and_tf32_from_ampere_on_and_8_bit_floats_from_ada_on() -> None:
    assert {"bfloat16", "tf32"}.isdisjoint(peaks_of(BOARDS["T4"][0]).flops_s)
    assert "float8_e4m3fn" not in peaks_of(BOARDS["A100 SXM 80GB"][0]).flops_s
    assert peaks_of(BOARDS["RTX 3090"][0]).flops_s.keys() >= {"bfloat16", "tf32"}


@pytest.mark.parametrize(
    ("known", "memory", "rates"),
    [
        (device((9, 0), 132), False, False),
        (device((9, 0), 132, max_clock_mhz=1980), False, True),
        (device((9, 0), 132, max_memory_clock_mhz=3201), False, False),
        (device((9, 0), 132, max_memory_clock_mhz=3201, memory_bus_bits=6144), True, False),
        (clocked((13, 7), 132, 1980, 3201, 6144), True, False),
        (host.cpu(), False, False),
        (Device.from_key("name:H100"), False, False),
    ],
)
def test_what_is_not_known_gives_no_rate(known: Device, memory: bool, rates: bool) -> None:
    peaks = peaks_of(known)
    assert (peaks.memory_bytes_s is not None, bool(peaks.flops_s)) == (memory, rates)


def test_a_slice_has_its_own_multiprocessors() -> None:
    whole, part = (peaks_of(clocked((9, 0), sms, 1980, 3201, 6144)) for sms in (132, 33))
    assert whole.flops_s["bfloat16"] == 4 * part.flops_s["bfloat16"]
    assert whole.memory_bytes_s == part.memory_bytes_s


def test_the_document() -> None:
    assert Peaks().to_dict() == {"memory_bytes_s": None, "flops_s": {}}
    assert Peaks(1.0, {"tf32": 2.0}).to_dict() == {"memory_bytes_s": 1.0, "flops_s": {"tf32": 2.0}}
