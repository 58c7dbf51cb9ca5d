"""Timers: one sample of one config under one policy, on a CUDA device or on the CPU.

A policy says how the calls are launched (one by one, or replayed in a CUDA graph) and whether they find the L2
cache cold. Cold and eager: a buffer larger than the cache is overwritten before each call, outside the timed
region. Cold and in a graph: the calls of one replay rotate over input and output sets of at least three times the
cache. On a CPU every call finds its operands where the call before left them, in memory that is reused.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tunedex.core.device import Device
from tunedex.core.errors import TunedexError
from tunedex.core.measurement import Policy
from tunedex.kernels.base import Launch
from tunedex.tuner.sampling import Stopwatch
from tunedex.tuner.settings import Timing

if TYPE_CHECKING:
    import torch

    from tunedex.tuner.sets import TensorSet


class CaptureError(TunedexError):
    """A launch cannot be captured in a CUDA graph, which its problem is timed in: it waits for the device, say."""


#: Calls something for at least so many seconds; gives the number of calls, all of which are over.
Repeater = Callable[[float], int]


class Timer(ABC):
    """Times launches on one device."""

    @abstractmethod
    def policy(self, floor_us: float) -> Policy:
        """The policy that decides for a problem with this floor."""

    @abstractmethod
    def stopwatch(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Stopwatch:
        """What takes samples of ``launch`` under ``policy``; it has run on every set before it returns."""

    @abstractmethod
    def sets_needed(self, policy: Policy, set_bytes: int) -> int:
        """How many tensor sets `stopwatch` wants under ``policy``."""

    @abstractmethod
    def repeater(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Repeater:
        """What calls ``launch`` again and again, one call after the other with nothing between them; it has run before
        this returns. They are in a graph and rotate over the sets where ``policy`` has them so. The cache is never
        overwritten, so calls that are launched one by one find there what the call before left."""

    @abstractmethod
    def warm_up(self, seconds: float) -> None:
        """Keep the device busy, so that clocks are up before the first config."""

    def wait(self) -> None:  # noqa: B027 - a CPU has done it when it returns
        """Return when the device has done what it was given, and raise what went wrong on it."""


class CpuTimer(Timer):
    def policy(self, floor_us: float) -> Policy:
        return Policy.EAGER_WARM

    def sets_needed(self, policy: Policy, set_bytes: int) -> int:
        return 1

    def stopwatch(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Stopwatch:
        operands, outputs = sets[0].operands, sets[0].outputs

        def sample() -> float:
            start = time.perf_counter_ns()
            launch(operands, outputs)
            return (time.perf_counter_ns() - start) / 1e3

        sample()
        return sample

    def repeater(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Repeater:
        def repeat(seconds: float) -> int:
            calls, end = 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                launch(sets[0].operands, sets[0].outputs)
                calls += 1
            return calls

        repeat(0.0)
        return repeat

    def warm_up(self, seconds: float) -> None:
        import torch

        a = torch.ones(512, 512)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            a @ a


class CudaTimer(Timer):
    """``device`` is the Tunedex device, ``torch_device`` where its tensors lie."""

    def __init__(self, device: Device, torch_device: torch.device, timing: Timing) -> None:
        import torch

        self._torch = torch
        self._device = device
        self._torch_device = torch_device
        self._timing = timing
        cache_bytes = max(device.l2_bytes, timing.least_cache_bytes)
        self._flush = torch.empty(timing.caches_rotated * cache_bytes, dtype=torch.int8, device=torch_device)

    def policy(self, floor_us: float) -> Policy:
        return Policy.GRAPH_COLD if floor_us < self._timing.graph_below_us else Policy.EAGER_COLD

    def sets_needed(self, policy: Policy, set_bytes: int) -> int:
        if policy is not Policy.GRAPH_COLD:
            return 1
        wanted = -(-self._flush.numel() // max(1, set_bytes))
        return max(2, min(wanted, self._timing.graph_max_launches))

    def stopwatch(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Stopwatch:
        if policy.graph:
            return self._graph(launch, sets if policy.cold else sets[:1])
        return self._eager(launch, sets[0], cold=policy.cold)

    def _eager(self, launch: Launch, tensors: TensorSet, *, cold: bool) -> Stopwatch:
        """Before the timed call the device is kept busy for longer than the host needs to launch, by overwriting the
        cache (cold) or by the call itself (warm): else the time would be the host's."""

        def call() -> None:
            launch(tensors.operands, tensors.outputs)

        call()
        before = self._overwrite_cache if cold else call
        busy_us = between_events_us(before)
        turns = 1 + math.ceil(self._timing.launches_covered * self._host_us(call) / max(busy_us, 1.0))

        def sample() -> float:
            for _ in range(turns):
                before()
            return between_events_us(call)

        return sample

    def _graph(self, launch: Launch, sets: Sequence[TensorSet]) -> Stopwatch:
        """Each replay starts behind an overwritten cache, which also hides the host's launch of the graph. Sets that
        are together too small for a cold cache are therefore called once a replay."""
        timing = self._timing
        for tensors in sets:  # compiles whatever the sets need, which a capture must not
            launch(tensors.operands, tensors.outputs)
        once_us = min(self._eager(launch, sets[0], cold=len(sets) > 1)() for _ in range(2))
        rotates = sum(tensors.bytes for tensors in sets) >= self._flush.numel() or len(sets) == 1
        rounds = max(1, round(timing.graph_us / max(once_us, 1.0) / len(sets))) if rotates else 1
        rounds = max(1, min(rounds, timing.graph_max_launches // len(sets)))
        calls = rounds * len(sets)
        graph = self._captured(launch, sets, rounds)
        warm = sets[0] if len(sets) == 1 else None

        def sample() -> float:
            self._overwrite_cache()
            if warm is not None:
                launch(warm.operands, warm.outputs)
            return between_events_us(graph.replay) / calls

        sample()
        return sample

    def _captured(self, launch: Launch, sets: Sequence[TensorSet], rounds: int) -> torch.cuda.CUDAGraph:
        """A graph that calls ``launch`` on each of the sets, ``rounds`` times over. It has run on them before.

        Raises:
            CaptureError: ``launch`` does what a graph cannot hold.
        """
        cuda = self._torch.cuda
        graph = cuda.CUDAGraph()
        cuda.synchronize()
        cause: Exception | None = None
        try:
            with cuda.graph(graph):
                try:
                    for _ in range(rounds):
                        for tensors in sets:
                            launch(tensors.operands, tensors.outputs)
                except Exception as error:
                    cause = error  # which the end of a broken capture hides
                    raise
        except Exception as error:
            cuda.synchronize()  # raises where it is the device that is at fault
            cause = cause or error
            said = str(cause).strip().partition("\n")[0]
            raise CaptureError(f"it cannot be captured in a CUDA graph: {type(cause).__name__}: {said}") from error
        return graph

    def repeater(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Repeater:
        if not policy.cold:
            sets = sets[:1]

        def once() -> None:
            for tensors in sets:
                launch(tensors.operands, tensors.outputs)

        once()
        calls, turn = len(sets), once
        if policy.graph:
            rounds = max(1, self._timing.graph_max_launches // len(sets))
            calls, turn = rounds * len(sets), self._captured(launch, sets, rounds).replay
        # Some turns at once, so that waiting for the device, which ends them, is a small part of the time.
        turns = max(1, math.ceil(self._timing.graph_us / max(between_events_us(turn), 1.0)))

        def repeat(seconds: float) -> int:
            done, end = 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                for _ in range(turns):
                    turn()
                self._torch.cuda.synchronize()
                done += turns
            return done * calls

        return repeat

    def _overwrite_cache(self) -> None:
        self._flush.zero_()

    def _host_us(self, call: Callable[[], object]) -> float:
        """How long the host takes to launch ``call``, in microseconds; the least of three."""
        times = []
        for _ in range(3):
            self._torch.cuda.synchronize()
            start = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - start) / 1e3)
        self._torch.cuda.synchronize()
        return min(times)

    def wait(self) -> None:
        self._torch.cuda.synchronize()

    def warm_up(self, seconds: float) -> None:
        torch = self._torch
        a = torch.randn(2048, 2048, device=self._torch_device)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(10):
                a @ a
            torch.cuda.synchronize()


def between_events_us(run: Callable[[], object]) -> float:
    """The time on the current CUDA stream between an event before ``run()`` and one after, in microseconds."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
