"""What the checks of a self-test make of what they see: pure judgements, each with its words and its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tunedex.core import display
from tunedex.core.device import KIB, Device, Environment
from tunedex.core.errors import BadInput, TunedexError
from tunedex.db.records import Ceilings
from tunedex.tuner.numerics import Tally
from tunedex.tuner.nvml import Sample
from tunedex.tuner.settings import SETTINGS

if TYPE_CHECKING:
    from tunedex.tuner.probe import Caches, Clocks, Repeated

#: The most shared memory that one block can ask for, by compute capability, as the CUDA C++ Programming Guide lists it
#: among the technical specifications; in KiB.
_SHARED_MEMORY_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}

#: The versions without which an environment says too little, by kind of device.
_VERSIONS = {"cpu": ("torch", "numba", "python"), "cuda": ("driver", "cuda", "torch", "triton", "python")}


class Status(StrEnum):
    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """What one check found: in words, and as numbers for who reads the bundle."""

    status: Status
    detail: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def fault(error: Exception) -> Finding:
    """A check that could not be made."""
    return Finding(Status.FAILED, str(error) if isinstance(error, TunedexError) else f"{type(error).__name__}: {error}")


def judged(holds: bool, words: str, otherwise: str, facts: Mapping[str, Any] | None = None) -> Finding:
    """``words``, and ``otherwise`` after them where the check does not hold."""
    if holds:
        return Finding(Status.OK, words, facts or {})
    return Finding(Status.FAILED, f"{words}: {otherwise}", facts or {})


def identity(device: Device) -> Finding:
    """Does the device's key say what the device says of itself?"""
    words = f"{device.name}, {device.family}, {device.key}"
    try:
        named = Device.from_key(device.key)
    except BadInput as error:
        return Finding(Status.FAILED, str(error))
    same = (named.target, named.multiprocessors) == (device.target, device.multiprocessors)
    return judged(same, words, "the key says another device")


def limits(device: Device) -> Finding:
    """Are the limits known, and is the shared memory that of the compute capability?"""
    if device.kind == "cpu":
        words = f"{device.multiprocessors} cores, {device.vector or 'no vectors'}"
        return judged(device.multiprocessors > 0, words, "a limit is not known")
    shared_kib = device.shared_memory_bytes // KIB
    words = f"{device.multiprocessors} SMs, {shared_kib} KiB of shared memory a block, {device.l2_bytes} bytes of L2"
    if min(device.multiprocessors, device.memory_bytes, device.l2_bytes) <= 0:
        return Finding(Status.FAILED, f"{words}: a limit is not known")
    known = _SHARED_MEMORY_KIB.get(device.target, shared_kib)
    return judged(known == shared_kib, words, f"compute capability {device.target / 10} has {known} KiB")


def versions(environment: Environment, kind: str) -> Finding:
    """Are the versions known that change speed on this kind of device?"""
    named = asdict(environment)
    missing = [name for name in _VERSIONS.get(kind, ()) if not named[name]]
    return judged(not missing, display.versions(environment), f"unknown: {', '.join(missing)}")


def ceilings(measured: Ceilings) -> Finding:
    """Are the measured rates rates?"""
    rates = {"copy": measured.copy_bytes_s, **measured.flops_s}
    units = {name: "TB/s" if name == "copy" else "TFLOP/s" for name in rates}
    words = ", ".join(f"{name} {rate / 1e12:.3g} {units[name]}" for name, rate in rates.items())
    wrong = [name for name, rate in rates.items() if not (math.isfinite(rate) and rate > 0)]
    return judged(not wrong, words, f"no rate: {', '.join(wrong)}", asdict(measured))


def state(found: Sample) -> Finding:
    """Are clock and temperature told?"""
    facts = {"clock_mhz": found.clock_mhz, "temperature_c": found.temperature_c, "throttle": found.throttle}
    if found.clock_mhz is None and found.temperature_c is None:
        return Finding(Status.SKIPPED, "the device tells neither its clock nor its temperature", facts)
    clock, temperature = found.clock_mhz or "?", found.temperature_c or "?"
    return Finding(Status.OK, f"{clock} MHz, {temperature} C, held back by {found.throttle or 'nothing'}", facts)


def repeats(found: Repeated, kind: str) -> Finding:
    """Do two series of one copy agree?"""
    bound = SETTINGS.selftest.cpu_repeat_share if kind == "cpu" else SETTINGS.selftest.repeat_share
    apart = abs(found.first_us - found.second_us) / min(found.first_us, found.second_us)
    words = f"a copy in {found.first_us:.4g} and {found.second_us:.4g} us, spread {found.spread:.1%}"
    return judged(apart <= bound, words, f"{apart:.1%} apart, above {bound:.0%}", asdict(found))


def clocks(found: Clocks) -> Finding:
    """Do the ways to time agree?"""
    times = asdict(found)
    apart = max(times.values()) / min(times.values()) - 1
    bound = SETTINGS.selftest.agree_share
    words = ", ".join(f"{name.removesuffix('_us')} {us:.4g} us" for name, us in times.items())
    return judged(apart <= bound, words, f"{apart:.1%} apart, above {bound:.0%}", times)


def caches(found: Caches) -> Finding:
    """Is a warm cache no slower than a cold one?"""
    slower = found.warm_us / found.cold_us - 1
    words = f"a small copy in {found.cold_us:.4g} us cold and {found.warm_us:.4g} us warm"
    return judged(slower <= SETTINGS.selftest.warm_share, words, "warm is slower than cold", asdict(found))


def numerics(tally: Tally) -> Finding:
    """Did every case of an implementation pass?"""
    unrun = f"; {tally.unrun} not run" if tally.unrun else ""
    facts = tally.to_dict()
    if tally.failed:
        first = tally.failed[0]
        words = f"{len(tally.failed)} of {len(tally.failed) + tally.passed} configs failed; {first['problem']}: "
        return Finding(Status.FAILED, f"{words}{first['kind']}, {first['detail']}{unrun}", facts)
    if not tally.passed:
        return Finding(Status.SKIPPED, "not reached in time", facts)
    errors = ", ".join(f"{dtype} {error:.1e}" for dtype, error in sorted(tally.errors.items()))
    words = f"{tally.passed} configs on {len(tally.problems)} problems; largest error {errors}{unrun}"
    return Finding(Status.OK, words, facts)
