"""The shortest time that can be: what is faster is no measurement, but a fault of the clock or of the launch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tunedex.core.device import Device
from tunedex.core.measurement import Policy
from tunedex.db.records import Ceilings
from tunedex.kernels.base import Cost
from tunedex.tuner.ceilings import faster_precisions
from tunedex.tuner.peaks import Peaks
from tunedex.tuner.settings import Timing


@dataclass(frozen=True)
class Physics:
    """The least time of a problem in microseconds, with a cold and with a warm cache."""

    cold_us: float
    warm_us: float

    def fault(self, time_us: float, policy: Policy) -> str:
        """Why ``time_us`` cannot be; empty where it can."""
        if not math.isfinite(time_us) or time_us <= 0:
            return f"{time_us:g} us is not a time"
        least = self.cold_us if policy.cold else self.warm_us
        if time_us < least:
            return f"{time_us:.3g} us is faster than {least:.3g} us, the least that this device allows"
        return ""


def physics_of(
    cost: Cost, written_bytes: int, device: Device, peaks: Peaks, ceilings: Ceilings, timing: Timing
) -> Physics:
    """The least times of a problem of this ``cost``, ``written_bytes`` of it outputs.

    Cold: the bytes over the data sheet's memory rate, but for those outputs that the L2 cache can still hold when the
    call is over. Warm: the bytes over the measured rate of the cache, or of the memory where there is no other. Both:
    the operations over the data sheet's rate, at the fastest precision that may do them. A measured rate is not the
    device's last word, so only a share of what it says counts, as for what the data sheet is not known of.
    """
    copy_us = 1e6 * cost.bytes / ceilings.copy_bytes_s
    if peaks.memory_bytes_s:
        cold_us = 1e6 * (cost.bytes - min(written_bytes, device.l2_bytes, cost.bytes)) / peaks.memory_bytes_s
    else:
        cold_us = timing.physical_share * copy_us
    if ceilings.cache_bytes_s:
        warm_us = timing.physical_share * 1e6 * cost.bytes / ceilings.cache_bytes_s
    else:
        warm_us = timing.physical_warm_share * copy_us
    least_us = max(timing.least_us, _product_us(cost, peaks, ceilings, timing))
    return Physics(max(cold_us, least_us), max(warm_us, least_us))


def _product_us(cost: Cost, peaks: Peaks, ceilings: Ceilings, timing: Timing) -> float:
    precisions = (cost.peak, *faster_precisions(cost.peak))
    for rates, share in ((peaks.flops_s, 1.0), (ceilings.flops_s, timing.physical_share)):
        if all(rates.get(precision) for precision in precisions):
            return share * 1e6 * cost.flops / max(rates[precision] for precision in precisions)
    return 0.0
