"""What a device's data sheet promises: rates that nothing on it exceeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunedex.core.device import Device

#: Transfers a cycle of the clock that NVML tells, for every kind of GPU memory.
_TRANSFERS = 2


@dataclass(frozen=True)
class Peaks:
    """Bytes a second of the memory, and dense FLOP/s (or integer operations a second) by `Cost.peak`: a dtype as torch
    spells it, or ``tf32``. What is not known is not there."""

    memory_bytes_s: float | None = None
    flops_s: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"memory_bytes_s": self.memory_bytes_s, "flops_s": dict(self.flops_s)}


def _rates(*, half: int, tf32: int = 0, eight: int = 0, int8: int = 0, single: int, double: int) -> Mapping[str, int]:
    """Operations a cycle of one SM: tensor cores for ``half`` (16 bits), ``tf32``, ``eight`` (8-bit floats), ``int8``;
    the faster of tensor cores and plain units for ``double``; plain units for ``single``. 0 is none."""
    rates = {
        "float16": half,
        "bfloat16": half if tf32 else 0,  # tensor cores know both from Ampere on
        "tf32": tf32,
        "float8_e4m3fn": eight,
        "float8_e5m2": eight,
        "int8": int8,
        "float32": single,
        "float64": double,
    }
    return {name: rate for name, rate in rates.items() if rate}


#: Every peak that a `Cost` may name.
KNOWN_PEAKS = frozenset(_rates(half=1, tf32=1, eight=1, int8=1, single=1, double=1))


# From the architectures' white papers and data sheets, the highest of a capability's boards, which may be twice what
# its GeForce boards do where they add up in float32. Sparse rates, twice as high, are left out.
_GA100 = _rates(half=2048, tf32=1024, int8=4096, single=128, double=128)
_GA10X = _rates(half=1024, tf32=512, int8=2048, single=256, double=4)
_AD10X = _rates(half=1024, tf32=512, eight=2048, int8=2048, single=256, double=4)
_GB20X = _AD10X

#: By compute capability. One that is not here has no rates.
_PER_CYCLE: Mapping[tuple[int, int], Mapping[str, int]] = {
    (7, 0): _rates(half=1024, int8=512, single=128, double=64),
    (7, 5): _rates(half=1024, int8=2048, single=128, double=4),
    (8, 0): _GA100,
    (8, 6): _GA10X,
    (8, 7): _rates(half=2048, tf32=1024, int8=4096, single=256, double=4),
    (8, 9): _AD10X,
    (9, 0): _rates(half=4096, tf32=2048, eight=8192, int8=8192, single=256, double=256),
    (10, 0): _rates(half=8192, tf32=4096, eight=16384, int8=16384, single=256, double=128),
    (10, 3): _rates(half=8192, tf32=4096, eight=16384, single=256, double=4),
    (12, 0): _GB20X,
    (12, 1): _GB20X,
}


def peaks_of(device: Device) -> Peaks:
    """The peaks of ``device`` from the clocks and the bus width that its driver tells.

    They are bounds, not promises: the clock is the highest that can be set, which boards leave under load. A slice has
    its own SMs, and its card's memory rate.
    """
    told = device.attributes
    clock_mhz, memory_mhz, bus_bits = (
        told.get(name) for name in ("max_clock_mhz", "max_memory_clock_mhz", "memory_bus_bits")
    )
    rates = _PER_CYCLE.get(device.compute_capability or (0, 0), {})
    cycles_s = device.multiprocessors * clock_mhz * 1e6 if clock_mhz else 0.0
    return Peaks(
        _TRANSFERS * memory_mhz * 1e6 * bus_bits / 8 if memory_mhz and bus_bits else None,
        {name: rate * cycles_s for name, rate in rates.items() if cycles_s},
    )
