"""The self-test of Tunedex on a device: does what is built hold on this card, which nobody else may have?

Its limits, the timer, the numerics of every kernel, and one small sweep. A fault of a kernel costs its own case: what
runs on the device runs in a process that can be lost.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tunedex.core.canonical import time_text
from tunedex.core.device import Device, Environment
from tunedex.core.snapshot import Match
from tunedex.db import open_store
from tunedex.kernels.base import Kernel
from tunedex.kernels.registry import all_kernels
from tunedex.tuner import findings
from tunedex.tuner.bundle import BUNDLE_FORMAT, BUNDLE_VERSION, cleaned, described
from tunedex.tuner.compiling import CompilePool, compile_pool
from tunedex.tuner.costs import named_peaks
from tunedex.tuner.devices import DetectedDevice, sample, version_of_package
from tunedex.tuner.findings import Finding, Status, fault, judged
from tunedex.tuner.lock import device_lock
from tunedex.tuner.numerics import Numerics, cases_of, problems_for
from tunedex.tuner.probe import Probe
from tunedex.tuner.report import Effort
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.sweep import DeviceSweep, measuring_process
from tunedex.tuner.tasks import Task


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
            "tunedex": version_of_package("tunedex"),
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
        self._child = measuring_process(detected, SETTINGS.timeouts, Probe)
        self._end = 0.0

    def run(self) -> SelfTestReport:
        """Every check, in less than ``SETTINGS.selftest.budget_s``.

        Raises:
            CannotRun: another process tunes on the device, or an installed kernel does not load.
        """
        self._end = time.monotonic() + SETTINGS.selftest.budget_s
        kernels = all_kernels()
        device = self._device
        with device_lock(self._detected):
            try:
                self._check("identity", lambda: findings.identity(device))
                self._check("limits", lambda: findings.limits(device))
                self._check("environment", lambda: findings.versions(self._environment, device.kind))
                self._check("ceilings", lambda: self._ceilings(kernels))
                self._check("state", lambda: findings.state(sample(device)))
                self._check("timer repeats", lambda: findings.repeats(self._call("repeated"), device.kind))
                self._check("timer clocks", self._clocks)
                self._check("timer caches", self._caches)
                with compile_pool(device) as pool:
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
            found = fault(error)
        self._add(name, found, time.monotonic() - start)

    def _add(self, name: str, found: Finding, seconds: float) -> None:
        self._report.checks.append(Check(name, found, seconds))

    def _ceilings(self, kernels: Mapping[str, Kernel]) -> Finding:
        peaks = named_peaks((k, problem) for k in kernels.values() for problem in problems_for(k.signature))
        return findings.ceilings(self._call("ceilings", peaks, timeout_s=SETTINGS.timeouts.ceilings_s))

    def _clocks(self) -> Finding:
        if self._device.kind == "cpu":
            return Finding(Status.SKIPPED, "a CPU has one clock")
        return findings.clocks(self._call("clocks"))

    def _caches(self) -> Finding:
        if self._device.kind == "cpu":
            return Finding(Status.SKIPPED, "a CPU's caches are left as they are")
        return findings.caches(self._call("caches"))

    def _numerics(self, kernel: Kernel, pool: CompilePool | None) -> None:
        """A check for each implementation of ``kernel`` for this kind of device."""
        start = time.monotonic()
        name = f"numerics {kernel.name}"
        try:
            cases, refused = cases_of(kernel, self._device)
            numerics = Numerics(self._device, self._child, pool, self._end - SETTINGS.selftest.sweep_s)
            tallies = numerics.run(cases, lambda case: self._watch(f"numerics {case.problem}"))
        except Exception as error:  # noqa: BLE001 - an installed package's kernel may do anything
            self._add(name, fault(error), time.monotonic() - start)
            return
        seconds = time.monotonic() - start
        for implementation, tally in tallies.items():
            self._add(f"{name} {implementation}", findings.numerics(tally), seconds / len(tallies))
        for implementation, why in refused.items():
            self._add(f"{name} {implementation}", Finding(Status.SKIPPED, why), 0.0)

    def _sweep(self, kernel: Kernel) -> Finding:
        """A few trials of a small problem, into a database that is gone afterwards."""
        problem = problems_for(kernel.signature)[0]
        left = max(1.0, self._end - time.monotonic())
        # Half of what is left: a sweep measures the default and the library call, and takes its final, in any case.
        effort = Effort(trials=SETTINGS.selftest.sweep_trials, budget_s=left / 2)
        with tempfile.TemporaryDirectory(prefix="tunedex-") as folder, open_store(str(Path(folder) / "db")) as store:
            report = DeviceSweep(store, self._detected, self._environment, effort).run([Task(kernel, (problem,))], {})
            if report.interrupted:
                raise KeyboardInterrupt
            (result,) = report.results
            answer = store.snapshot(self._device.key).answer(problem)
        facts = result.to_dict()
        if result.best is None:
            failures = ", ".join(f"{count} {kind}" for kind, count in result.failures.items())
            return Finding(Status.FAILED, f"{problem}: no config found; {result.fault or failures}", facts)
        answered = answer.match is Match.EXACT and answer.config == result.best.config
        words = f"{problem}: {result.trials} trials, best {result.best.measurement.time_us:.4g} us"
        return judged(answered, words, "the database answers another config", facts)

    def _call(self, method: str, *arguments: Any, timeout_s: float = SETTINGS.timeouts.trial_s) -> Any:
        left = self._end - SETTINGS.selftest.sweep_s - time.monotonic()
        return self._child.call(method, *arguments, timeout_s=max(0.0, min(timeout_s, left)))


def _cleaned(value: Any) -> Any:
    """``value`` with every free text in it cleaned: what stands under ``detail`` or ``fault``."""
    if isinstance(value, Mapping):
        free = ("detail", "fault")
        return {
            name: cleaned(item) if name in free and isinstance(item, str) else _cleaned(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value
