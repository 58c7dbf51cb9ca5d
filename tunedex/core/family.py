"""Which tuned devices may answer for a device that was never tuned, and with which of their rows.

Everything here is read from what a device's key holds, since a server knows no more of a device that was never
measured: a client beside the device, which knows more, must come to the same answer. Memory bandwidth is in no key;
the L2 cache stands for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunedex.core.device import KIB, MIB, Device
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.settings import NEARNESS


@dataclass(frozen=True)
class Relative:
    """A tuned device that may answer for the one whose snapshot carries it: its best rows by the problem's key, as of
    ``revision``."""

    device: Device
    revision: int
    problems: Mapping[str, Problem]
    rows: Mapping[str, Sequence[Row]]


def device_distance(asked: Device, tuned: Device) -> float | None:
    """How far apart two devices are, in doublings; None where ``tuned`` may not answer for ``asked``.

    Two GPUs of one family and one major compute capability: the sum of |log2| of the ratios of multiprocessors, L2
    and shared memory for one block. Two CPUs of one model and one vector extension: |log2| of the ratio of the cores.
    Never answers: a device known by name only, and a share of a virtual GPU, whose times are others' as well.
    """
    if asked.kind != tuned.kind or asked.key == tuned.key:
        return None
    if asked.kind == "cpu":
        alike = asked.model == tuned.model and asked.vector == tuned.vector
    else:
        alike = (
            asked.kind == "cuda"
            and asked.family == tuned.family
            and asked.target // 10 == tuned.target // 10
            and not tuned.profile.startswith("vgpu")
        )
    sizes = list(zip(_sizes(asked), _sizes(tuned), strict=True))
    if not alike or any(size < 1 for pair in sizes for size in pair):
        return None
    apart = math.fsum(sorted(abs(math.log2(one / other)) for one, other in sizes))
    return apart if apart <= NEARNESS.most_device_doublings else None


def fits(row: Row, device: Device) -> bool:
    """Whether ``row``, measured on another device, runs within the limits of ``device``.

    What devices of one family differ in is the shared memory that a block may ask for; registers and threads of a
    block are limited alike. A GPU config of which the compiler did not tell it does not fit, but for the library call.
    """
    if device.kind != "cuda" or row.config.library:
        return True
    needed = row.measurement.resources.shared_memory_bytes
    return needed is not None and needed <= device.shared_memory_bytes // KIB * KIB


def _sizes(device: Device) -> tuple[int, ...]:
    """What distances are made of, rounded as the key has it."""
    if device.kind == "cpu":
        return (device.multiprocessors,)
    return device.multiprocessors, round(device.l2_bytes / MIB), device.shared_memory_bytes // KIB
