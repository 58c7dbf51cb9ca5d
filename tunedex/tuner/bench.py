"""What runs inside the measuring process: one device, one problem at a time, verified first and then timed."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch

from tunedex.core.canonical import key_of
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy, Resources
from tunedex.core.problem import Problem
from tunedex.db.records import Ceilings
from tunedex.kernels.base import CompileError, InputSource, Kernel, Launch, OverLimit, Reference
from tunedex.kernels.registry import get_kernel
from tunedex.tuner import ceilings
from tunedex.tuner.devices import sample
from tunedex.tuner.nvml import Sample
from tunedex.tuner.process import phase
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.timing import CpuTimer, CudaTimer, Stopwatch, TensorSet, Timer, quantile
from tunedex.tuner.verify import Verdict, bits_hash, judge, relative_error

K = TypeVar("K", bound=Hashable)

_GUARD = SETTINGS.guard_elements
_GUARD_VALUE = 77.0


@dataclass(frozen=True)
class FinalTime:
    """The medians of a final in microseconds: under the deciding policy with its quantiles, and with a warm cache."""

    time_us: float
    p20_us: float
    p80_us: float
    samples: int
    warm_us: float


@dataclass(frozen=True)
class InputSet:
    """Operands with what is known of them: references, the eager chain's errors, and the operands' own bits."""

    operands: dict[str, torch.Tensor]
    references: dict[str, Reference]
    eager_errors: dict[str, float]
    hashes: dict[str, str]


@dataclass(frozen=True)
class Opened:
    """A problem with its input sets, its outputs in guarded memory, and the policies that it is timed under."""

    kernel: Kernel
    problem: Problem
    max_error: float | None
    policy: Policy
    warm_policy: Policy
    floor_us: float
    inputs: tuple[InputSet, ...]
    outputs: dict[str, torch.Tensor]
    guarded: dict[str, torch.Tensor]


class Bench:
    """Verifies and times configs on ``device``; ``ordinal`` is its CUDA index, None for the CPU."""

    def __init__(self, device: Device, ordinal: int | None) -> None:
        self._device = device
        self._torch_device = torch.device("cpu") if ordinal is None else torch.device("cuda", ordinal)
        self._timing = SETTINGS.timing
        self._timer: Timer
        if ordinal is None:
            _keep_freed_memory()
            torch.set_num_threads(device.multiprocessors)
            self._timer = CpuTimer()
        else:
            torch.cuda.set_device(self._torch_device)
            self._timer = CudaTimer(device, self._torch_device, self._timing)
        self._opened: Opened | None = None
        self._sets: list[TensorSet] = []

    def ceilings(self, peaks: Iterable[str]) -> Ceilings:
        """See `tunedex.tuner.ceilings.measure`."""
        return ceilings.measure(self._torch_device, peaks)

    def open(self, problem: Problem, max_error: float | None, floor_us: float) -> None:
        """Make ``problem`` the one that is measured: inputs, references, outputs, and the policy that all of its
        trials are timed under. ``floor_us`` is its shortest time at the measured ceilings."""
        self._close()
        kernel = get_kernel(problem.kernel)
        policy, warm_policy = self._timer.policies(floor_us)
        seed = SETTINGS.input_seed
        inputs = tuple(self._input_set(kernel, problem, seed + n, outliers=n == 1) for n in range(2))
        outputs, guarded = self._make_outputs(kernel, problem)
        self._opened = Opened(kernel, problem, max_error, policy, warm_policy, floor_us, inputs, outputs, guarded)
        first = TensorSet(inputs[0].operands, outputs)
        self._sets = [first] + [first.clone() for _ in range(self._timer.sets_needed(policy, first.bytes) - 1)]
        # Not when the process starts: another one may be measuring then.
        self._timer.warm_up(self._timing.warm_up_s)

    def measure(
        self, config: Config, resources: Resources, best_us: Mapping[bool, float]
    ) -> tuple[Measurement | Failure, Sample]:
        """Verify ``config`` on both input sets, then time it; the device's state is read right after.

        ``best_us`` holds the best time so far of the lossless (True) and of the other configs: one much slower than
        the best of its class is timed briefly.
        """
        opened = self.opened
        try:
            launch = self.bind(config)
            phase("verify")
            verdict, output_hash, memory = self._verify(launch)
            if not verdict.accepted:
                return Failure(FailureKind.WRONG_RESULT, verdict.detail), Sample()
            lossless = verdict.lossless and config.values.get("precision", "ieee") == "ieee"
            phase("timing")
            stopwatch = self._timer.stopwatch(launch, self._sets, opened.policy)
            samples = self._search_samples(stopwatch, best_us.get(lossless))
        except Exception as error:  # noqa: BLE001 - any failure of a candidate is that candidate's failure
            return failure_of(error), Sample()
        state = sample(self._device)
        if fault := self._unphysical(samples):
            return Failure(FailureKind.INVALID_TIMING, fault), state
        measurement = Measurement(
            time_us=quantile(samples, 0.5),
            p20_us=quantile(samples, 0.2),
            p80_us=quantile(samples, 0.8),
            samples=len(samples),
            policy=opened.policy,
            error=verdict.error,
            lossless=lossless,
            output_hash=output_hash,
            peak_memory_bytes=memory,
            resources=resources,
        )
        return measurement, state

    def final(self, configs: Sequence[Config]) -> tuple[list[FinalTime | Failure], Sample]:
        """Time ``configs`` interleaved, in alternating order, on a warmed-up device: under the problem's policy, then
        with a warm cache. The device's state is read right after."""
        opened = self.opened
        settings = SETTINGS.finals
        launches: dict[int, Launch] = {}
        results: dict[int, FinalTime | Failure] = {}
        for n, config in enumerate(configs):
            try:
                launches[n] = self.bind(config)
            except Exception as error:  # noqa: BLE001
                results[n] = failure_of(error)
        self._timer.warm_up(settings.warm_up_s)
        decided = self.interleaved(launches, opened.policy, settings.seconds)
        state = sample(self._device)
        warm = decided
        if opened.warm_policy is not opened.policy:
            warm = self.interleaved(launches, opened.warm_policy, settings.seconds / 2)
        for n in launches:
            samples, warm_samples = decided[n], warm[n]
            if isinstance(samples, Failure):
                results[n] = samples
            elif isinstance(warm_samples, Failure):
                results[n] = warm_samples
            elif fault := self._unphysical(samples):
                results[n] = Failure(FailureKind.INVALID_TIMING, fault)
            else:
                results[n] = FinalTime(
                    median(samples), quantile(samples, 0.2), quantile(samples, 0.8), len(samples), median(warm_samples)
                )
        return [results[n] for n in range(len(configs))], state

    def interleaved(
        self, launches: Mapping[K, Launch], policy: Policy, seconds: float
    ) -> dict[K, list[float] | Failure]:
        """Samples of each launch in microseconds, taken in turns and in alternating order for about ``seconds``.

        A launch that fails is left out from then on. A fault that sticks to the process shows in those that follow.
        """
        settings = SETTINGS.finals
        out: dict[K, list[float] | Failure] = {}
        running: dict[K, Stopwatch] = {}
        for name, launch in launches.items():
            try:
                running[name] = self._timer.stopwatch(launch, self._sets, policy)
                out[name] = []
            except Exception as error:  # noqa: BLE001 - any failure of a candidate is that candidate's failure
                out[name] = failure_of(error)
        end = time.perf_counter() + seconds
        for turn in range(settings.rounds):
            if turn >= settings.min_rounds and time.perf_counter() > end:
                break
            for name in list(running) if turn % 2 == 0 else list(reversed(running)):
                taken = out[name]
                assert isinstance(taken, list)
                try:
                    taken.append(running[name]())
                except Exception as error:  # noqa: BLE001
                    out[name] = failure_of(error)
                    del running[name]
        return out

    def bind(self, config: Config) -> Launch:
        """What runs ``config`` on the open problem."""
        opened = self.opened
        return opened.kernel.implementation(config.implementation).bind(opened.problem, config, self._device)

    def _verify(self, launch: Launch) -> tuple[Verdict, str, int | None]:
        """The worst verdict over the input sets and outputs, the output's bits on the first set, and peak memory."""
        opened = self.opened
        worst = Verdict(0.0, accepted=True, lossless=True)
        digest = ""
        memory: int | None = None
        length = opened.kernel.reduction_length(opened.problem)
        for n, made in enumerate(opened.inputs):
            self._poison(opened)
            before = self._reset_peak()
            launch(made.operands, opened.outputs)
            self._timer.synchronize()
            if before is not None:
                memory = max(memory or 0, torch.cuda.max_memory_allocated(self._torch_device) - before)
            if fault := self._trespass(opened, made):
                # What it overwrote would be held against the configs that follow.
                self.open(opened.problem, opened.max_error, opened.floor_us)
                return Verdict(math.inf, accepted=False, lossless=False, detail=fault), "", memory
            for name, output in opened.outputs.items():
                verdict = judge(
                    output,
                    made.references[name],
                    dtype=str(output.dtype).removeprefix("torch."),
                    reduction_length=length,
                    eager_error=made.eager_errors[name],
                    max_error=opened.max_error,
                )
                if not verdict.accepted:
                    kind = "outlier" if n == 1 else "normal"
                    return (
                        Verdict(verdict.error, False, False, f"{name}, {kind} inputs: {verdict.detail}"),
                        "",
                        memory,
                    )
                worst = Verdict(max(worst.error, verdict.error), True, worst.lossless and verdict.lossless)
            if n == 0:
                digest = key_of([bits_hash(output) for output in opened.outputs.values()])
        return worst, digest, memory

    def _search_samples(self, stopwatch: Stopwatch, best_us: float | None) -> list[float]:
        timing = self._timing
        samples: list[float] = []
        start = time.perf_counter()
        while len(samples) < timing.max_samples:
            samples.append(stopwatch())
            if len(samples) == 2 and best_us and min(samples) > timing.give_up_factor * best_us:
                break
            if len(samples) >= timing.min_samples and time.perf_counter() - start > timing.search_s:
                break
        return samples

    def _unphysical(self, samples: Sequence[float]) -> str:
        """Why these times cannot be; empty where they can."""
        middle = median(samples)
        if not math.isfinite(middle) or middle <= 0:
            return f"{middle:g} us is not a time"
        share = self._timing.physical_share if self.opened.policy.cold else self._timing.physical_warm_share
        least = share * self.opened.floor_us
        if middle < least:
            return f"{middle:.3g} us is faster than {least:.3g} us, which this device's measured ceilings allow"
        return ""

    def _input_set(self, kernel: Kernel, problem: Problem, seed: int, *, outliers: bool) -> InputSet:
        source = InputSource(seed, self._torch_device, outliers=outliers, strided=problem.layout == "strided")
        operands = kernel.operands(problem, source)
        references = kernel.reference(problem, operands)
        with torch.no_grad():
            eager = kernel.eager(problem, operands)
        errors = {name: relative_error(eager[name], reference.value) for name, reference in references.items()}
        return InputSet(operands, references, errors, {name: bits_hash(t) for name, t in operands.items()})

    def _make_outputs(
        self, kernel: Kernel, problem: Problem
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The outputs, each in the middle of a larger buffer whose ends are watched."""
        outputs: dict[str, torch.Tensor] = {}
        guarded: dict[str, torch.Tensor] = {}
        for name, spec in kernel.outputs(problem).items():
            count = math.prod(spec.shape)
            buffer = torch.full(
                (count + 2 * _GUARD,),
                _GUARD_VALUE,
                dtype=getattr(torch, spec.dtype),
                device=self._torch_device,
            )
            guarded[name] = buffer
            outputs[name] = buffer[_GUARD : _GUARD + count].view(spec.shape)
        return outputs, guarded

    @staticmethod
    def _poison(opened: Opened) -> None:
        """Fill the outputs with what no result is, so that an element never written shows."""
        for output in opened.outputs.values():
            output.fill_(math.nan if output.is_floating_point() else torch.iinfo(output.dtype).min)

    @staticmethod
    def _trespass(opened: Opened, made: InputSet) -> str:
        """What the launch wrote that it must not: beside an output, or an operand. Empty where nothing."""
        for name, buffer in opened.guarded.items():
            ends = torch.cat([buffer[:_GUARD], buffer[-_GUARD:]])
            if bool((ends != _GUARD_VALUE).any()):
                return f"{name}: memory beside the output was written"
        for name, operand in made.operands.items():
            if bits_hash(operand) != made.hashes[name]:
                return f"operand {name} was changed"
        return ""

    def _reset_peak(self) -> int | None:
        if self._torch_device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats(self._torch_device)
        return torch.cuda.memory_allocated(self._torch_device)

    @property
    def opened(self) -> Opened:
        """The open problem.

        Raises:
            RuntimeError: none is open.
        """
        if self._opened is None:
            raise RuntimeError("no problem is open")
        return self._opened

    def _close(self) -> None:
        self._opened = None
        self._sets = []
        gc.collect()
        if self._torch_device.type == "cuda":
            torch.cuda.empty_cache()


#: What a message says, in lower case, of the kind of failure that it reports.
_TELLTALES = (
    ("illegal memory access", FailureKind.ILLEGAL_ACCESS),
    ("illegal_address", FailureKind.ILLEGAL_ACCESS),
    ("misaligned", FailureKind.ILLEGAL_ACCESS),
    ("out of memory", FailureKind.OOM),
    ("out_of_memory", FailureKind.OOM),
    ("can't allocate memory", FailureKind.OOM),
    ("too many resources", FailureKind.OUT_OF_RESOURCES),
    ("out_of_resources", FailureKind.OUT_OF_RESOURCES),
)


def failure_of(error: Exception) -> Failure:
    """The kind of failure that an exception of a candidate is, with its words in one line."""
    text = " ".join(str(error).split())[:500]
    name = type(error).__name__
    if isinstance(error, OverLimit) or name == "OutOfResources":
        kind = FailureKind.OUT_OF_RESOURCES
    elif isinstance(error, CompileError) or name in {"CompilationError", "PTXASError", "CompileTimeAssertionFailure"}:
        kind = FailureKind.COMPILE_ERROR
    elif isinstance(error, torch.OutOfMemoryError | MemoryError):
        kind = FailureKind.OOM
    else:
        kind = next((kind for words, kind in _TELLTALES if words in text.lower()), FailureKind.CRASH)
    return Failure(kind, f"{name}: {text}")


def _keep_freed_memory() -> None:
    """Let the C library keep what is freed, so that a library call's temporaries do not pay for new pages each time."""
    if not sys.platform.startswith("linux"):
        return
    trim_threshold, mmap_threshold, limit = -1, -3, 2**30
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(trim_threshold, limit * 2 - 1)
        libc.mallopt(mmap_threshold, limit)
