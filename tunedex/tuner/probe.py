"""What a self-test asks of the measuring process besides what a sweep does: how far its clocks can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import torch

from tunedex.core.measurement import Policy
from tunedex.kernels.base import Tensors
from tunedex.tuner.bench import Bench
from tunedex.tuner.sampling import Stopwatch, quantile
from tunedex.tuner.sets import TensorSet
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.timing import between_events_us


@dataclass(frozen=True)
class Repeated:
    """Two series of samples of the same copy: their medians in microseconds, and the wider of their spreads between
    the 20 % and 80 % quantiles, as a share of the median."""

    first_us: float
    second_us: float
    spread: float


@dataclass(frozen=True)
class Clocks:
    """One large copy by three clocks, in microseconds a call: one by one, in a CUDA graph, and many between events."""

    eager_us: float
    graph_us: float
    events_us: float


@dataclass(frozen=True)
class Caches:
    """A copy that fits the L2 cache, in microseconds a call: with the cache cold and with it warm."""

    cold_us: float
    warm_us: float


class Probe(Bench):
    """A bench that times copies too."""

    def repeated(self) -> Repeated:
        """The same copy twice over, with a cold cache where the device has one that can be emptied."""
        settings = SETTINGS.selftest
        policy = Policy.EAGER_COLD if self._device.kind == "cuda" else Policy.EAGER_WARM
        stopwatch = self._timer.stopwatch(_copy, [self._copied(self._large_bytes)], policy)
        series = [sorted(stopwatch() for _ in range(settings.samples)) for _ in range(2)]
        spread = max((quantile(each, 0.8) - quantile(each, 0.2)) / median(each) for each in series)
        return Repeated(median(series[0]), median(series[1]), spread)

    def clocks(self) -> Clocks:
        """Of a CUDA device."""
        large = self._copied(self._large_bytes)
        calls = SETTINGS.selftest.samples

        def many() -> None:
            for _ in range(calls):
                _copy(large.operands, large.outputs)

        many()
        return Clocks(
            eager_us=self._median(self._timer.stopwatch(_copy, [large], Policy.EAGER_WARM)),
            graph_us=self._median(self._timer.stopwatch(_copy, [large], Policy.GRAPH_WARM)),
            events_us=between_events_us(many) / calls,
        )

    def caches(self) -> Caches:
        """Of a CUDA device."""
        small = self._copied(max(self._device.l2_bytes // 8, 2**20))
        count = self._timer.sets_needed(Policy.GRAPH_COLD, small.bytes)
        sets = [small, *(small.clone() for _ in range(count - 1))]
        return Caches(
            cold_us=self._median(self._timer.stopwatch(_copy, sets, Policy.GRAPH_COLD)),
            warm_us=self._median(self._timer.stopwatch(_copy, sets, Policy.GRAPH_WARM)),
        )

    @property
    def _large_bytes(self) -> int:
        settings = SETTINGS.selftest
        return settings.cuda_copy_bytes if self._device.kind == "cuda" else settings.cpu_copy_bytes

    def _copied(self, count: int) -> TensorSet:
        """A tensor of ``count`` bytes, and where to copy it."""
        source = torch.ones(count, dtype=torch.uint8, device=self._torch_device)
        return TensorSet({"x": source}, {"out": torch.empty_like(source)})

    @staticmethod
    def _median(stopwatch: Stopwatch) -> float:
        return median(stopwatch() for _ in range(SETTINGS.selftest.samples))


def _copy(operands: Tensors, outputs: Tensors) -> None:
    outputs["out"].copy_(operands["x"])
