"""A device that is computed: the measuring process of a sweep, with known times, noise, and a clock of its own."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tunedex.core.config import Config
from tunedex.core.device import Environment
from tunedex.core.host import cpu
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy
from tunedex.core.problem import Problem
from tunedex.db import Store
from tunedex.db.records import Ceilings
from tunedex.kernels.base import Kernel
from tunedex.tuner.bench import Busy, FinalTime
from tunedex.tuner.devices import DetectedDevice
from tunedex.tuner.load import Idle
from tunedex.tuner.nvml import Sample
from tunedex.tuner.process import ProcessFailure
from tunedex.tuner.report import Effort, Report
from tunedex.tuner.rounds import interleaved
from tunedex.tuner.sampling import quantile
from tunedex.tuner.settings import SETTINGS, Timeouts
from tunedex.tuner.sweep import DeviceSweep
from tunedex.tuner.tasks import Task

#: A device of this process alone, so that its lock is too.
DEVICE = DetectedDevice(cpu(), uuid=f"SIM-{os.getpid()}")
ENVIRONMENT = Environment(torch="2", python="3")
#: The whole space, however long it takes.
WHOLE = Effort(trials=None, budget_s=None)

DIMS = {"rows": 8, "cols": 64, "dtype": "float32"}

#: Memory so fast that no time is impossible.
CEILINGS = Ceilings(copy_bytes_s=1e15)


@dataclass
class Simulation:
    """What the device is like. Times in microseconds, what calls take in seconds of `now`.

    Args:
        time_us: the true time of a config.
        noise: relative noise of a sample, and of what searching measures.
        offset: how far apart processes are: each is up to so much slower than the fastest can be.
        states: gives the device's state after each round of a final.
        hangs: configs that never return.
        fails: configs for which there is no memory.
        state: the device's while it is searched.
        idle: what the first process sees of the device before anything runs on it.
    """

    time_us: Callable[[Config], float]
    noise: float = 0.0
    offset: float = 0.0
    seed: int = 0
    start_s: float = 3.0
    open_s: float = 1.0
    ceilings_s: float = 2.0
    measure_s: float = 0.4
    sample_s: float = 0.003
    states: Callable[[], Sample] = Sample
    hangs: Callable[[Config], bool] = lambda config: False
    fails: Callable[[Config], bool] = lambda config: False
    state: Sample = field(default_factory=Sample)
    idle: Idle | None = None
    now: float = 0.0
    calls: list[tuple[int, str, Any]] = field(default_factory=list)
    starts: int = 0

    def clock(self) -> float:
        return self.now

    def process(self, detected: DetectedDevice, timeouts: Timeouts) -> SimulatedProcess:
        return SimulatedProcess(self)

    @property
    def finals(self) -> list[tuple[int, Sequence[Config]]]:
        """Each final that was held: the number of its process, and who was in it."""
        return [(number, arguments[0]) for number, method, arguments in self.calls if method == "final"]

    @property
    def tried(self) -> list[Config]:
        return [arguments[0] for _, method, arguments in self.calls if method == "measure"]

    def sweep(self, store: Store, tasks: Sequence[Task], effort: Effort = WHOLE, **more: Any) -> Report:
        """Sweep ``tasks`` on the device, with everything else as it is."""
        swept = DeviceSweep(store, DEVICE, ENVIRONMENT, effort, make=self.process, clock=self.clock, **more)
        return swept.run(tasks, {})


class _Late(BaseException):
    """The time for a call is over, whoever is at work in it."""


class SimulatedProcess:
    """Answers as a `ChildProcess` with a `Bench` does."""

    def __init__(self, simulation: Simulation) -> None:
        self._s = simulation
        self._number = 0
        self._factor = 1.0
        self.running = False

    def start(self) -> None:
        if not self.running:
            s = self._s
            s.now += s.start_s
            s.starts += 1
            self._number = s.starts
            self._factor = 1 + random.Random(f"{s.seed} process {self._number}").uniform(0, s.offset)
            self.running = True

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        self.start()
        self._s.calls.append((self._number, method, arguments))
        return getattr(self, f"_{method}")(*arguments, timeout_s=timeout_s)

    def close(self) -> None:
        self.running = False

    def retire(self) -> None:
        self.running = False

    def _ceilings(self, peaks: Sequence[str], *, timeout_s: float) -> Ceilings:
        self._s.now += self._s.ceilings_s
        return CEILINGS

    def _open(
        self,
        problem: Problem,
        max_error: float | None,
        floor_us: float,
        ceilings: Ceilings,
        policy: Policy | None,
        idle: Idle | None,
        *,
        timeout_s: float,
    ) -> Policy:
        self._s.now += self._s.open_s
        return policy or Policy.EAGER_WARM

    def _idle(self, *, timeout_s: float) -> Idle | None:
        return self._s.idle

    def _busy(self, *, timeout_s: float) -> Busy:
        return Busy()

    def _measure(
        self, config: Config, resources: Any, best_us: Any, *, timeout_s: float
    ) -> tuple[Measurement | Failure, Sample]:
        s = self._s
        if s.hangs(config):
            s.now += timeout_s
            self.close()
            raise ProcessFailure(f"measure took longer than {timeout_s:g} s", kind=FailureKind.TIMEOUT)
        s.now += s.measure_s
        if s.fails(config):
            return Failure(FailureKind.OOM, "planted"), s.state
        # By the place in the order, so that another order meets each config with other noise.
        time_us = self._noisy(config, random.Random(f"{s.seed} {len(s.calls)}"))
        found = Measurement(
            time_us=time_us,
            p20_us=time_us * (1 - s.noise / 2),
            p80_us=time_us * (1 + s.noise / 2),
            samples=7,
            policy=Policy.EAGER_WARM,
            error=0.0,
            lossless=True,
            output_hash="same",
        )
        return found, s.state

    def _final(
        self, configs: Sequence[Config], seconds: float, against: Sequence[Config], *, timeout_s: float
    ) -> tuple[list[FinalTime | Failure], tuple[Sample, ...]]:
        s = self._s
        states: list[Sample] = []
        end = s.now + timeout_s

        def stopwatch(config: Config) -> Callable[[], float]:
            noise = random.Random(f"{s.seed} {self._number} {config.key}")

            def take() -> float:
                s.now += s.sample_s
                if s.now > end:
                    self.close()
                    raise _Late
                return self._noisy(config, noise)

            return take

        try:
            taken = interleaved(
                {config: stopwatch(config) for config in configs},
                seconds,
                SETTINGS.finals,
                failure_of=lambda error: Failure(FailureKind.CRASH, str(error)),
                against=against,
                after_round=lambda: states.append(s.states()),
                clock=s.clock,
            )
        except _Late:
            raise ProcessFailure(f"final took longer than {timeout_s:g} s", kind=FailureKind.TIMEOUT) from None
        return [_final_time(taken[config]) for config in configs], tuple(states)

    def _noisy(self, config: Config, noise: random.Random) -> float:
        return self._s.time_us(config) * self._factor * (1 + noise.gauss(0, self._s.noise))


def _final_time(samples: list[float] | Failure) -> FinalTime | Failure:
    if isinstance(samples, Failure):
        return samples
    low, middle, high = (quantile(samples, share) for share in (0.2, 0.5, 0.8))
    return FinalTime(middle, low, high, len(samples), middle)


def task_of(kernel: Kernel, **dims: int) -> Task:
    return Task(kernel, (kernel.signature.problem({**DIMS, **dims}),))


def with_seed(simulation: Simulation, seed: int) -> Simulation:
    """The same device on another day, its clock at zero."""
    return replace(simulation, seed=seed, now=0.0, calls=[], starts=0)
