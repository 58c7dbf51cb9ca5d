"""The self-test of Tunedex on a device: does what is built hold on this card, which nobody else may have?

Its limits, the numerics of every kernel, the timer, and one small sweep. A fault of a kernel costs its own case: what
runs on the device runs in a process that can be lost.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import tunedex
from tunedex.core.canonical import time_text
from tunedex.core.device import KIB, Device, Environment
from tunedex.core.errors import BadInput, TunedexError
from tunedex.core.snapshot import Match
from tunedex.db import open_store
from tunedex.db.records import Ceilings
from tunedex.kernels.base import Kernel
from tunedex.kernels.registry import all_kernels
from tunedex.tuner.bundle import BUNDLE_FORMAT, BUNDLE_VERSION, cleaned, described
from tunedex.tuner.compiling import CompilePool, compile_pool
from tunedex.tuner.devices import DetectedDevice, sample
from tunedex.tuner.lock import device_lock
from tunedex.tuner.numerics import Numerics, Tally, cases_of, problems_for
from tunedex.tuner.probe import Probe
from tunedex.tuner.process import ChildProcess
from tunedex.tuner.report import Effort
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.space import Space
from tunedex.tuner.sweep import DeviceSweep
from tunedex.tuner.tasks import Task

#: The most shared memory that one block can ask for, by compute capability, as the CUDA C++ Programming Guide lists it
#: among the technical specifications; in KiB.
_SHARED_MEMORY_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}


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


@dataclass(frozen=True)
class Check:
    """One check with the seconds that it took."""

    name: str
    finding: Finding
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        found = self.finding
        return {
            "name": self.name,
            "status": found.status.value,
            "detail": cleaned(found.detail),
            "seconds": round(self.seconds, 3),
            "facts": _cleaned(found.facts),
        }


@dataclass
class SelfTestReport:
    """What a self-test came to."""

    device: Device
    environment: Environment
    checks: list[Check] = field(default_factory=list)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def passed(self) -> bool:
        return all(check.finding.status is not Status.FAILED for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The bundle. It has no ``command``, which may hold a path."""
        statuses = [check.finding.status for check in self.checks]
        return {
            "format": BUNDLE_FORMAT,
            "version": BUNDLE_VERSION,
            "date": time_text(self.started_at.replace(microsecond=0)),
            "tunedex": tunedex.__version__,
            "device": described(self.device),
            "environment": self.environment.to_dict(),
            "counts": {status.value: statuses.count(status) for status in Status},
            "checks": [check.to_dict() for check in self.checks],
        }


class SelfTest:
    """Tests one device. ``watch`` is told what comes next."""

    def __init__(
        self,
        detected: DetectedDevice,
        environment: Environment,
        watch: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._detected = detected
        self._device = detected.device
        self._environment = environment
        self._watch = watch
        self._report = SelfTestReport(detected.device, environment)
        timeouts = SETTINGS.timeouts
        self._child = ChildProcess(
            Probe, detected.device, detected.index, start_s=timeouts.start_s, heartbeat_s=timeouts.heartbeat_s
        )
        self._end = 0.0

    def run(self) -> SelfTestReport:
        """Every check, in less than `SelfTest.budget_s` of the settings.

        Raises:
            CannotRun: another process tunes on the device, or an installed kernel does not load.
        """
        self._end = time.monotonic() + SETTINGS.selftest.budget_s
        kernels = all_kernels()
        with device_lock(self._detected):
            try:
                self._check("identity", self._identity)
                self._check("limits", self._limits)
                self._check("environment", self._versions)
                self._check("ceilings", lambda: self._ceilings(kernels))
                self._check("state", self._state)
                for name, check in (("repeats", self._repeats), ("clocks", self._clocks), ("caches", self._caches)):
                    self._check(f"timer {name}", check)
                with compile_pool(self._device) as pool:
                    for kernel in kernels.values():
                        self._numerics(kernel, pool)
            finally:
                self._child.close()
        self._check("sweep", lambda: self._sweep(next(iter(kernels.values()))))
        return self._report

    def _check(self, name: str, check: Callable[[], Finding]) -> None:
        self._watch(name)
        start = time.monotonic()
        try:
            found = check()
        except Exception as error:  # noqa: BLE001 - whatever a card or a kernel does is what the test is to find
            found = _fault(error)
        self._add(name, found, time.monotonic() - start)

    def _add(self, name: str, found: Finding, seconds: float) -> None:
        self._report.checks.append(Check(name, found, seconds))

    def _identity(self) -> Finding:
        device = self._device
        try:
            named = Device.from_key(device.key)
        except BadInput as error:
            return Finding(Status.FAILED, str(error))
        same = (named.target, named.multiprocessors) == (device.target, device.multiprocessors)
        if not same:
            return Finding(Status.FAILED, f"{device.key} does not say what the device says of itself")
        notes = "; ".join(self._detected.notes)
        return Finding(Status.OK, f"{device.name}, {device.family}, {device.key}{'; ' if notes else ''}{notes}")

    def _limits(self) -> Finding:
        device = self._device
        if device.kind == "cpu":
            return _judged(
                device.multiprocessors > 0, f"{device.multiprocessors} cores, {device.vector or 'no vectors'}"
            )
        shared_kib = device.shared_memory_bytes // KIB
        words = (
            f"{device.multiprocessors} SMs, {shared_kib} KiB of shared memory a block, {device.l2_bytes} bytes of L2"
        )
        if min(device.multiprocessors, device.memory_bytes, device.l2_bytes) <= 0:
            return Finding(Status.FAILED, f"{words}: a limit is not known")
        known = _SHARED_MEMORY_KIB.get(device.target, shared_kib)
        return _judged(known == shared_kib, words, f"compute capability {device.target / 10} has {known} KiB")

    def _versions(self) -> Finding:
        named = self._environment.to_dict()
        named.pop("key")
        wanted = ("torch", "numba", "python") if self._device.kind == "cpu" else ("driver", "cuda", "torch", "triton")
        words = ", ".join(f"{name} {version}" for name, version in named.items() if version)
        missing = [name for name in wanted if not named[name]]
        return _judged(not missing, words, f"unknown: {', '.join(missing)}")

    def _ceilings(self, kernels: Mapping[str, Kernel]) -> Finding:
        peaks = {kernel.cost(problem).peak for kernel in kernels.values() for problem in problems_for(kernel.signature)}
        measured: Ceilings = self._call("ceilings", peaks - {""}, timeout_s=SETTINGS.timeouts.ceilings_s)
        rates = {"copy": measured.copy_bytes_s, **measured.flops_s}
        words = ", ".join(
            f"{name} {rate / 1e12:.3g} T{'B' if name == 'copy' else 'FLOP'}/s" for name, rate in rates.items()
        )
        facts = {"copy_bytes_s": measured.copy_bytes_s, "flops_s": dict(measured.flops_s)}
        facts["cache_bytes_s"] = measured.cache_bytes_s
        wrong = [name for name, rate in rates.items() if not (math.isfinite(rate) and rate > 0)]
        return Finding(Status.FAILED if wrong else Status.OK, words, facts)

    def _state(self) -> Finding:
        state = sample(self._device)
        facts = {"clock_mhz": state.clock_mhz, "temperature_c": state.temperature_c, "throttle": state.throttle}
        if state.clock_mhz is None and state.temperature_c is None:
            return Finding(Status.SKIPPED, "the device tells neither its clock nor its temperature", facts)
        words = (
            f"{state.clock_mhz or '?'} MHz, {state.temperature_c or '?'} C, held back by {state.throttle or 'nothing'}"
        )
        return Finding(Status.OK, words, facts)

    def _repeats(self) -> Finding:
        found = self._call("repeated")
        cpu = self._device.kind == "cpu"
        bound = SETTINGS.selftest.cpu_repeat_share if cpu else SETTINGS.selftest.repeat_share
        apart = abs(found.first_us - found.second_us) / min(found.first_us, found.second_us)
        words = f"a copy in {found.first_us:.4g} and {found.second_us:.4g} us, spread {found.spread:.1%}"
        return _judged(apart <= bound, words, f"{apart:.1%} apart, above {bound:.0%}", vars(found))

    def _clocks(self) -> Finding:
        if self._device.kind == "cpu":
            return Finding(Status.SKIPPED, "a CPU has one clock")
        found = self._call("clocks")
        times = vars(found)
        apart = max(times.values()) / min(times.values()) - 1
        words = ", ".join(f"{name.removesuffix('_us')} {us:.4g} us" for name, us in times.items())
        bound = SETTINGS.selftest.agree_share
        return _judged(apart <= bound, words, f"{apart:.1%} apart, above {bound:.0%}", times)

    def _caches(self) -> Finding:
        if self._device.kind == "cpu":
            return Finding(Status.SKIPPED, "a CPU's caches are left as they are")
        found = self._call("caches")
        words = f"a small copy in {found.cold_us:.4g} us cold and {found.warm_us:.4g} us warm"
        slower = found.warm_us / found.cold_us - 1
        bound = SETTINGS.selftest.warm_share
        return _judged(slower <= bound, words, "a warm cache is slower than a cold one", vars(found))

    def _numerics(self, kernel: Kernel, pool: CompilePool | None) -> None:
        """A check for each implementation of ``kernel`` for this kind of device."""
        start = time.monotonic()
        name = f"numerics {kernel.name}"
        try:
            cases, refused = cases_of(kernel, self._device)
            deadline = self._end - SETTINGS.selftest.sweep_s
            numerics = Numerics(self._device, self._child, pool, deadline)
            tallies = numerics.run(cases, lambda case: self._watch(f"numerics {case.problem}"))
        except Exception as error:  # noqa: BLE001 - an installed package's kernel may do anything
            self._add(name, _fault(error), time.monotonic() - start)
            return
        seconds = time.monotonic() - start
        for implementation, tally in tallies.items():
            self._add(f"{name} {implementation}", _of(tally), seconds / len(tallies))
        for implementation, why in refused.items():
            self._add(f"{name} {implementation}", Finding(Status.SKIPPED, why), 0.0)

    def _sweep(self, kernel: Kernel) -> Finding:
        """A few trials of a small problem, into a database that is gone afterwards."""
        left = self._end - time.monotonic()
        problem = problems_for(kernel.signature)[0]
        effort = Effort(trials=SETTINGS.selftest.sweep_trials, budget_s=max(1.0, left / 2))
        with tempfile.TemporaryDirectory(prefix="tunedex-") as folder, open_store(str(Path(folder) / "db")) as store:
            report = DeviceSweep(store, self._detected, self._environment, effort).run([Task(kernel, (problem,))], {})
            if report.interrupted:
                raise KeyboardInterrupt
            (result,) = report.results
            answer = store.snapshot(self._device.key).answer(problem)
        facts = {
            "problem": str(problem),
            "space": len(Space.of(kernel, problem, self._device)),
            "trials": result.trials,
            "failures": dict(result.failures),
            "default_us": result.default_us,
            "library_us": result.library_us,
            "best_us": result.best.measurement.time_us if result.best else None,
            "config": result.best.config.to_dict() if result.best else None,
        }
        if result.best is None:
            return Finding(Status.FAILED, f"{problem}: no config found; {result.fault or facts['failures']}", facts)
        answered = answer.match is Match.EXACT and answer.config == result.best.config
        words = f"{problem}: {result.trials} trials, best {facts['best_us']:.4g} us"
        return _judged(answered, words, "the database answers another config", facts)

    def _call(self, method: str, *arguments: Any, timeout_s: float = SETTINGS.timeouts.trial_s) -> Any:
        left = self._end - SETTINGS.selftest.sweep_s - time.monotonic()
        return self._child.call(method, *arguments, timeout_s=max(0.0, min(timeout_s, left)))


def _fault(error: Exception) -> Finding:
    return Finding(Status.FAILED, str(error) if isinstance(error, TunedexError) else f"{type(error).__name__}: {error}")


def _judged(holds: bool, words: str, otherwise: str = "", facts: Mapping[str, Any] | None = None) -> Finding:
    """``words``, and what is wrong where the check does not hold."""
    if holds:
        return Finding(Status.OK, words, facts or {})
    return Finding(Status.FAILED, f"{words}: {otherwise}" if otherwise else words, facts or {})


def _of(tally: Tally) -> Finding:
    """The finding of one implementation's cases."""
    late = f"; {tally.late} not reached in time" if tally.late else ""
    if tally.failed:
        first = tally.failed[0]
        words = f"{len(tally.failed)} of {len(tally.failed) + tally.passed} configs failed; {first['problem']}: "
        return Finding(Status.FAILED, f"{words}{first['kind']}, {first['detail']}{late}", tally.to_dict())
    if not tally.passed:
        return Finding(Status.SKIPPED, "not reached in time", tally.to_dict())
    errors = ", ".join(f"{dtype} {error:.1e}" for dtype, error in sorted(tally.errors.items()))
    words = f"{tally.passed} configs on {len(tally.problems)} problems; largest error {errors}{late}"
    return Finding(Status.OK, words, tally.to_dict())


def _cleaned(value: Any) -> Any:
    """``value`` with every text in it cleaned that stands under ``detail``."""
    if isinstance(value, Mapping):
        return {
            name: cleaned(item) if name == "detail" and isinstance(item, str) else _cleaned(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value
