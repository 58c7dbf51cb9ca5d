"""What runs inside the measuring process: one device, one problem at a time, verified first and then timed."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

import torch

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy, Resources
from tunedex.core.problem import Problem
from tunedex.db.records import Ceilings
from tunedex.kernels.base import InputSource, Kernel, Launch
from tunedex.kernels.registry import get_kernel
from tunedex.tuner import ceilings, load
from tunedex.tuner.checking import check, trespass
from tunedex.tuner.costs import cost_of
from tunedex.tuner.devices import energy_j, sample
from tunedex.tuner.failures import STICKY, SpoiltProblem, failure_of
from tunedex.tuner.imports import import_compilers
from tunedex.tuner.load import Idle
from tunedex.tuner.nvml import Sample
from tunedex.tuner.peaks import peaks_of
from tunedex.tuner.physics import Physics, physics_of
from tunedex.tuner.pulse import phase
from tunedex.tuner.rounds import interleaved
from tunedex.tuner.sampling import Stopwatch, quantile, take
from tunedex.tuner.sets import InputSet, Outputs, TensorSet, copied, float64_is_slow
from tunedex.tuner.settings import SETTINGS, Settings
from tunedex.tuner.timing import CpuTimer, CudaTimer, Timer

K = TypeVar("K", bound=Hashable)

#: Of a device that was not measured: no time is faster than these allow.
_NO_CEILINGS = Ceilings(copy_bytes_s=math.inf)


@dataclass(frozen=True)
class FinalTime:
    """The medians of a final in microseconds: under the deciding policy with its quantiles, and with a warm cache,
    where that could be timed. ``energy_j`` is of one call, where it was measured."""

    time_us: float
    p20_us: float
    p80_us: float
    samples: int
    warm_us: float | None
    energy_j: float | None = None


@dataclass(frozen=True)
class Busy:
    """The seconds that a measuring process has spent on the first calls of configs, which load or compile them, on
    verifying and on timing them, finals included."""

    first_call_s: float = 0.0
    verify_s: float = 0.0
    timing_s: float = 0.0


@dataclass(frozen=True)
class Opened:
    """A problem with its input sets, its outputs, the policy that it is timed under, and the least it can take."""

    kernel: Kernel
    problem: Problem
    policy: Policy
    physics: Physics
    inputs: tuple[InputSet, ...]
    outputs: Outputs


class Bench:
    """Verifies and times configs on ``device``; ``ordinal`` is its CUDA index, None for the CPU.

    ``timer`` takes the place of the device's own.
    """

    def __init__(
        self, device: Device, ordinal: int | None, *, timer: Timer | None = None, settings: Settings = SETTINGS
    ) -> None:
        self._device = device
        self._torch_device = torch.device("cpu") if ordinal is None else torch.device("cuda", ordinal)
        self._settings = settings
        self._timing = settings.timing
        if ordinal is None:
            _keep_freed_memory()
            torch.set_num_threads(device.multiprocessors)
        else:
            torch.cuda.set_device(self._torch_device)
            import_compilers()
        if timer is None:
            timer = CpuTimer() if ordinal is None else CudaTimer(device, self._torch_device, self._timing)
        self._timer = timer
        self._opened: Opened | None = None
        self._sets: list[TensorSet] = []
        self._busy = Busy()
        self._idle: Idle | None = None
        self._idle_since = time.perf_counter()

    def ceilings(self, peaks: Iterable[str]) -> Ceilings:
        """See `tunedex.tuner.ceilings.measure`. Called first of all, when nothing of ours has run on the device yet:
        who is busy then is somebody else."""
        self._idle = load.seen_idle(self._device)
        return ceilings.measure(self._torch_device, peaks, self._device.l2_bytes)

    def idle(self) -> Idle | None:
        """What was seen of the device before its ceilings were measured; None where they were not, or nobody tells."""
        return self._idle

    def open(
        self,
        problem: Problem,
        max_error: float | None,
        floor_us: float,
        measured: Ceilings = _NO_CEILINGS,
        policy: Policy | None = None,
        idle: Idle | None = None,
    ) -> Policy:
        """Make ``problem`` the one that is measured: inputs, references, outputs, and the policy that all of its
        trials are timed under. ``floor_us`` is its shortest time at the ceilings, which are ``measured``; ``policy`` is
        that of its trials so far, by default what its floor says. ``idle`` is what was seen of the device before
        anything ran on it. The device is warm when it returns the policy."""
        phase("open")
        self._close()
        kernel = get_kernel(problem.kernel)
        outputs = Outputs(kernel.outputs(problem), self._torch_device)
        inputs = tuple(self._input_set(kernel, problem, max_error, n) for n in range(2))
        first = TensorSet(inputs[0].operands, outputs.tensors)
        written, peaks = TensorSet({}, outputs.tensors).bytes, peaks_of(self._device)
        physics = physics_of(cost_of(kernel, problem), written, self._device, peaks, measured, self._timing)
        policy = policy or self._timer.policy(floor_us)
        self._opened = Opened(kernel, problem, policy, physics, inputs, outputs)
        outputs.poison()
        for made in inputs:  # a fault of the judging itself shows here, where it is held against no config
            for name, result in made.results(outputs.tensors).items():
                made.standards[name].judge(result)
        self._sets = [first]
        for n in range(1, self._timer.sets_needed(policy, first.bytes)):
            # Both input sets are timed in turn, and the second needs no copy of its operands either.
            operands = inputs[n % 2].operands
            clones = operands if n == 1 else {name: copied(tensor) for name, tensor in operands.items()}
            self._sets.append(TensorSet(clones, {name: copied(tensor) for name, tensor in outputs.tensors.items()}))
        load.watch(self._device, idle or self._idle)
        load.contended(self._device)  # the next look tells of what happens from here on
        # Not when the process starts: another one may be measuring then.
        self._warm_up(self._timing.warm_up_s)
        return policy

    def measure(
        self, config: Config, resources: Resources, best_us: Mapping[bool, float]
    ) -> tuple[Measurement | Failure, Sample]:
        """Verify ``config`` on both input sets, then time it; the device's state is read right after.

        ``best_us`` holds the best time so far of the lossless (True) and of the other configs: one much slower than
        the best of its class is timed briefly. A time that cannot be is taken once more before it is a failure. After
        a `SpoiltProblem` none is open any more.
        """
        outcome = self._outcome(config, resources, best_us)
        if isinstance(outcome, SpoiltProblem):
            self._close()
        return outcome, sample(self._device)

    def _outcome(self, config: Config, resources: Resources, best_us: Mapping[bool, float]) -> Measurement | Failure:
        opened = self.opened
        if time.perf_counter() - self._idle_since > self._timing.idle_s:
            self._warm_up(self._timing.rewarm_s)
        try:
            launch = self.bind(config)
            with self._doing("first call"):
                launch(self._sets[0].operands, self._sets[0].outputs)
                self._timer.wait()
                self._restore()
            with self._doing("verify"):
                found = check(launch, opened.inputs, opened.outputs)
            if isinstance(found, Failure):
                return found
            lossless = found.lossless and config.precision == "ieee"
            with self._doing("timing"):
                stopwatch = self._timer.stopwatch(launch, self._sets, opened.policy)
                samples = take(stopwatch, self._timing, best_us.get(lossless))
                if opened.physics.fault(median(samples), opened.policy):
                    samples = take(stopwatch, self._timing, best_us.get(lossless))
            with self._doing("verify"):  # once more: it has run many times since, all at once in a graph
                if late := trespass(opened.inputs, opened.outputs):
                    return late
        except Exception as error:  # noqa: BLE001 - any failure of a candidate is that candidate's failure
            return failure_of(error)
        finally:
            with suppress(RuntimeError):  # where the device is at fault there is nothing to restore
                self._restore()
            self._idle_since = time.perf_counter()
        if fault := opened.physics.fault(median(samples), opened.policy):
            return Failure(FailureKind.INVALID_TIMING, fault)
        return Measurement(
            time_us=median(samples),
            p20_us=quantile(samples, 0.2),
            p80_us=quantile(samples, 0.8),
            samples=len(samples),
            policy=opened.policy,
            error=found.error,
            lossless=lossless,
            output_hash=found.output_hash,
            peak_memory_bytes=found.peak_memory_bytes,
            resources=resources,
        )

    def final(
        self, configs: Sequence[Config], seconds: float | None = None, against: Collection[Config] = ()
    ) -> tuple[list[FinalTime | Failure], tuple[Sample, ...]]:
        """Time ``configs`` interleaved, in alternating order, on a warmed-up device: for ``seconds`` (by default
        those of the settings) under the problem's policy, then for a share of that with a warm cache. The winner must
        beat those ``against`` it by the margin. The device's state is read after each round; the energy of the fastest
        is measured last."""
        opened = self.opened
        finals = self._settings.finals
        seconds = finals.seconds if seconds is None else seconds
        launches: dict[int, Launch] = {}
        results: dict[int, FinalTime | Failure] = {}
        for n, config in enumerate(configs):
            try:
                launches[n] = self.bind(config)
            except Exception as error:  # noqa: BLE001
                results[n] = failure_of(error)
        self._warm_up(finals.warm_up_s)
        with self._doing("final"):
            states: list[Sample] = []
            rivals = {n for n in launches if configs[n] in against}
            decided = self._timed(launches, opened.policy, seconds, rivals, states)
            warm = decided
            if opened.policy.warm is not opened.policy:
                warm = self._timed(launches, opened.policy.warm, seconds * finals.warm_share, (), states)
            for n in launches:
                results[n] = _final_time(decided[n], warm[n])
            self._add_energy(launches, results)
        self._restore()
        return [results[n] for n in range(len(configs))], tuple(states)

    def interleaved(
        self,
        launches: Mapping[K, Launch],
        policy: Policy,
        seconds: float,
        against: Collection[K] = (),
        states: list[Sample] | None = None,
    ) -> dict[K, list[float] | Failure]:
        """Samples of each launch in microseconds, taken in rounds as `tunedex.tuner.rounds` says, for about
        ``seconds``. The device's state after each round is put into ``states``.

        A launch that fails is left out from then on. A fault that sticks to the process shows in those that follow.
        """
        stopwatches: dict[K, Stopwatch] = {}
        failures: dict[K, Failure] = {}
        for name, launch in launches.items():
            try:
                stopwatches[name] = self._timer.stopwatch(launch, self._sets, policy)
            except Exception as error:  # noqa: BLE001 - any failure of a candidate is that candidate's failure
                failures[name] = failure_of(error)

        def look() -> None:
            if states is not None:
                states.append(sample(self._device))

        taken = interleaved(
            stopwatches, seconds, self._settings.finals, failure_of=failure_of, against=against, after_round=look
        )
        return {name: failures[name] if name in failures else taken[name] for name in launches}

    def bind(self, config: Config) -> Launch:
        """What runs ``config`` on the open problem."""
        opened = self.opened
        return opened.kernel.implementation(config.implementation).bind(opened.problem, config, self._device)

    def busy(self) -> Busy:
        """What this process has spent its time on since it started."""
        return self._busy

    @property
    def opened(self) -> Opened:
        """The open problem.

        Raises:
            RuntimeError: none is open.
        """
        if self._opened is None:
            raise RuntimeError("no problem is open")
        return self._opened

    def _input_set(self, kernel: Kernel, problem: Problem, max_error: float | None, number: int) -> InputSet:
        source = InputSource(
            self._settings.input_seed + number,
            self._torch_device,
            outliers=number == 1,
            strided=problem.layout == "strided",
        )
        return InputSet.make(kernel, problem, source, max_error, slow=float64_is_slow(self._device))

    def _timed(
        self,
        launches: Mapping[K, Launch],
        policy: Policy,
        seconds: float,
        against: Collection[K],
        states: list[Sample],
    ) -> dict[K, list[float] | Failure]:
        """`interleaved`, with times that cannot be made failures; once more for all where there are such."""

        def faults(times: Mapping[K, list[float] | Failure]) -> dict[K, str]:
            middle = {name: median(samples) for name, samples in times.items() if not isinstance(samples, Failure)}
            said = {name: self.opened.physics.fault(time_us, policy) for name, time_us in middle.items()}
            return {name: fault for name, fault in said.items() if fault}

        times = self.interleaved(launches, policy, seconds, against, states)
        if faults(times):
            times = self.interleaved(launches, policy, seconds, against, states)
        return times | {name: Failure(FailureKind.INVALID_TIMING, fault) for name, fault in faults(times).items()}

    def _add_energy(self, launches: Mapping[int, Launch], results: dict[int, FinalTime | Failure]) -> None:
        """Put the energy of a call to the fastest of ``results``, where the device counts energy."""
        if energy_j(self._device) is None:
            return
        valid = {n: result for n, result in results.items() if isinstance(result, FinalTime)}
        for n in sorted(valid, key=lambda n: valid[n].time_us)[: self._timing.energy_leaders]:
            try:
                repeat = self._timer.repeater(launches[n], self._sets, self.opened.policy)
                begin = energy_j(self._device)  # what leads up to the calls is not counted
                calls = repeat(self._timing.energy_s)
            except Exception as error:  # noqa: BLE001 - it has its time; what breaks the process is told all the same
                failure = failure_of(error)
                if failure.kind in STICKY:
                    results[n] = failure
                    return
                continue
            end = energy_j(self._device)
            if begin is not None and end is not None and end > begin:
                results[n] = replace(valid[n], energy_j=(end - begin) / calls)

    def _restore(self) -> None:
        """Give the operands that the kernel writes, of the timed sets as well, the values they had."""
        opened = self._opened
        if opened is not None and opened.kernel.writes:
            for n, tensors in enumerate(self._sets):
                opened.inputs[n % 2].restore(tensors.operands)

    def _warm_up(self, seconds: float) -> None:
        self._timer.warm_up(seconds)
        self._idle_since = time.perf_counter()

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        """Tell the parent what is done inside, and count the time."""
        phase(what)
        begin = time.perf_counter()
        try:
            yield
        finally:
            spent = {"first call": "first_call_s", "verify": "verify_s"}.get(what, "timing_s")
            seconds = getattr(self._busy, spent) + time.perf_counter() - begin
            self._busy = replace(self._busy, **{spent: seconds})

    def _close(self) -> None:
        self._opened = None
        self._sets = []
        gc.collect()
        if self._torch_device.type == "cuda":
            torch.cuda.empty_cache()


def _final_time(decided: list[float] | Failure, warm: list[float] | Failure) -> FinalTime | Failure:
    if isinstance(decided, Failure):
        return decided
    if isinstance(warm, Failure) and warm.kind in STICKY:
        return warm
    warm_us = None if isinstance(warm, Failure) else median(warm)
    return FinalTime(median(decided), quantile(decided, 0.2), quantile(decided, 0.8), len(decided), warm_us)


def _keep_freed_memory() -> None:
    """Let the C library keep what is freed, so that a library call's temporaries do not pay for new pages each time."""
    if not sys.platform.startswith("linux"):
        return
    trim_threshold, mmap_threshold, limit = -1, -3, 2**30
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(trim_threshold, limit * 2 - 1)
        libc.mallopt(mmap_threshold, limit)
