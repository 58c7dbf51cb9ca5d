"""What a device's data sheet promises: rates that nothing on it exceeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunedex.core.device import Device

#: Transfers a cycle of the clock that NVML tells, for every kind of GPU memory.
_TRANSFERS = 2


@dataclass(frozen=True)
class Peaks:
    """Bytes a second of the memory, and FLOP/s by `Cost.peak`; what is not known is not there."""

    memory_bytes_s: float | None = None
    flops_s: Mapping[str, float] = field(default_factory=dict)


def peaks_of(device: Device) -> Peaks:
    """The peaks of ``device`` from the clocks and the bus width that its driver tells."""
    clock_mhz = device.attributes.get("max_memory_clock_mhz")
    bus_bits = device.attributes.get("memory_bus_bits")
    if not clock_mhz or not bus_bits:
        return Peaks()
    return Peaks(_TRANSFERS * clock_mhz * 1e6 * bus_bits / 8)
