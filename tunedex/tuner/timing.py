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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunedex.core.device import Device
from tunedex.core.measurement import Policy
from tunedex.kernels.base import Launch, Tensors
from tunedex.tuner.settings import Timing

if TYPE_CHECKING:
    import torch

#: Takes one sample and returns it in microseconds per call.
Sampler = Callable[[], float]

_CACHES_ROTATED = 3

#: The device is kept busy for this many times the host's launch, plus once.
_LAUNCHES_COVERED = 3


@dataclass(frozen=True)
class TensorSet:
    """Operands and the outputs that belong to them."""

    operands: Tensors
    outputs: Tensors

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.operands.values(), *self.outputs.values()))

    def clone(self) -> TensorSet:
        """The same values in memory of their own, with the same strides."""
        import torch

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            return copy.copy_(tensor)

        return TensorSet(
            {name: copied(t) for name, t in self.operands.items()},
            {name: copied(t) for name, t in self.outputs.items()},
        )


class Timer(ABC):
    """Times launches on one device."""

    @abstractmethod
    def policies(self, floor_us: float) -> tuple[Policy, Policy]:
        """The policy that decides for a problem with this floor, and the warm one that finals take beside it."""

    @abstractmethod
    def sampler(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy, estimate_us: float) -> Sampler:
        """A sampler of ``launch`` under ``policy``; ``estimate_us`` is about what one call takes."""

    @abstractmethod
    def sets_needed(self, policy: Policy, set_bytes: int) -> int:
        """How many tensor sets `sampler` wants under ``policy``."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything launched; raises what the device reports."""

    @abstractmethod
    def warm_up(self, seconds: float) -> None:
        """Keep the device busy, so that clocks are up before the first config."""


class CpuTimer(Timer):
    def policies(self, floor_us: float) -> tuple[Policy, Policy]:
        return Policy.EAGER_WARM, Policy.EAGER_WARM

    def sets_needed(self, policy: Policy, set_bytes: int) -> int:
        return 1

    def sampler(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy, estimate_us: float) -> Sampler:
        operands, outputs = sets[0].operands, sets[0].outputs

        def sample() -> float:
            start = time.perf_counter_ns()
            launch(operands, outputs)
            return (time.perf_counter_ns() - start) / 1e3

        return sample

    def synchronize(self) -> None:
        return None

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
        self._cache_bytes = max(device.l2_bytes, 32 * 2**20)
        self._flush = torch.empty(_CACHES_ROTATED * self._cache_bytes, dtype=torch.int8, device=torch_device)
        self._pool = torch.cuda.graph_pool_handle()

    def policies(self, floor_us: float) -> tuple[Policy, Policy]:
        if floor_us < self._timing.graph_below_us:
            return Policy.GRAPH_COLD, Policy.GRAPH_WARM
        return Policy.EAGER_COLD, Policy.EAGER_WARM

    def sets_needed(self, policy: Policy, set_bytes: int) -> int:
        if policy is not Policy.GRAPH_COLD:
            return 1
        return max(2, -(-_CACHES_ROTATED * self._cache_bytes // max(1, set_bytes)))

    def sampler(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy, estimate_us: float) -> Sampler:
        if policy.graph:
            return self._graph(launch, sets if policy is Policy.GRAPH_COLD else sets[:1], estimate_us)
        return self._eager(launch, sets[0], cold=policy is Policy.EAGER_COLD)

    def _eager(self, launch: Launch, tensors: TensorSet, *, cold: bool) -> Sampler:
        """Before the timed call the device is kept busy for longer than the host needs to launch, by overwriting the
        cache (cold) or by the call itself (warm): else the time would be the host's."""
        operands, outputs = tensors.operands, tensors.outputs

        def call() -> None:
            launch(operands, outputs)

        def flush() -> None:
            self._flush.zero_()

        before = flush if cold else call
        busy_us = between_events_us(before)
        turns = 1 + math.ceil(_LAUNCHES_COVERED * self._host_us(call) / max(busy_us, 1.0))

        def sample() -> float:
            for _ in range(turns):
                before()
            return between_events_us(call)

        return sample

    def _host_us(self, call: Callable[[], object]) -> float:
        """How long the host takes to launch ``call``, in microseconds; the least of three."""
        times = []
        for _ in range(3):
            self.synchronize()
            start = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - start) / 1e3)
        self.synchronize()
        return min(times)

    def _graph(self, launch: Launch, sets: Sequence[TensorSet], estimate_us: float) -> Sampler:
        cuda = self._torch.cuda
        timing = self._timing
        rounds = max(1, round(timing.graph_us / max(estimate_us, 1.0) / len(sets)))
        rounds = max(1, min(rounds, timing.graph_max_launches // len(sets)))
        graph = cuda.CUDAGraph()
        cuda.synchronize()
        with cuda.graph(graph, pool=self._pool):
            for _ in range(rounds):
                for tensors in sets:
                    launch(tensors.operands, tensors.outputs)
        graph.replay()
        cuda.synchronize()
        calls = rounds * len(sets)

        return lambda: between_events_us(graph.replay) / calls

    def synchronize(self) -> None:
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


def quantile(samples: Sequence[float], share: float) -> float:
    """The sample at ``share`` of the way through the sorted ``samples`` (nearest rank; the lower median at 0.5)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * (len(ordered) - 1) + 0.5))]
