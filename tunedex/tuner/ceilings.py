"""What a device reaches in practice: the copy rate and the vendor's matrix products, measured once an environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress

import torch

from tunedex.core.config import Config
from tunedex.core.problem import Problem
from tunedex.db.records import Ceilings
from tunedex.kernels.base import Kernel
from tunedex.kernels.precision import matmul_precision
from tunedex.tuner.costs import cost_of
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.timing import between_events_us

_COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}
_SIDE = {"cuda": 8192, "cpu": 1024}

#: How often one kernel reads the buffer that measures the cache: so often that its launch does not show.
_CACHE_READS = 128


def measure(device: torch.device, peaks: Iterable[str], cache_bytes: int = 0) -> Ceilings:
    """The copy rate (bytes read and written a second), for each of ``peaks`` that torch has a product of the FLOP/s of
    a square one, and the rate at which a cache of ``cache_bytes`` is read (0: none to speak of)."""
    kind = device.type
    source = torch.empty(_COPY_BYTES[kind], dtype=torch.uint8, device=device).random_(0, 256)
    target = torch.empty_like(source)
    copy_s = _best_s(device, lambda: target.copy_(source))
    rates: dict[str, float] = {}
    for peak in sorted(set(peaks) - {""}):
        with suppress(Exception):  # it has no such product, in 8 bits for instance: who asks copes without its rate
            rates[peak] = _matmul_rate(device, peak)
    return Ceilings(2 * _COPY_BYTES[kind] / copy_s, rates, _cache_rate(device, cache_bytes))


def _cache_rate(device: torch.device, cache_bytes: int) -> float | None:
    """Bytes a second from the cache: half of it is summed up again and again, by one kernel."""
    count = cache_bytes // 2 // torch.float32.itemsize
    if device.type != "cuda" or count == 0:
        return None
    again = torch.ones(count, device=device).expand(_CACHE_READS, count)
    out = torch.empty(_CACHE_READS, device=device)
    seconds = _best_s(device, lambda: torch.sum(again, dim=1, out=out))
    return again.numel() * torch.float32.itemsize / seconds


def _matmul_rate(device: torch.device, peak: str) -> float:
    side = _SIDE[device.type] if peak not in {"float32", "float64"} else _SIDE[device.type] // 2
    dtype = torch.float32 if peak == "tf32" else getattr(torch, peak)
    a = torch.randn(side, side, device=device).to(dtype)
    b = torch.randn(side, side, device=device).to(dtype)
    out = torch.empty(side, side, device=device, dtype=dtype)
    precision: AbstractContextManager[None] = nullcontext()
    if dtype is torch.float32 and device.type == "cuda":
        precision = matmul_precision("tf32" if peak == "tf32" else "ieee")
    with precision:
        seconds = _best_s(device, lambda: torch.mm(a, b, out=out))
    return 2.0 * side**3 / seconds


def faster_precisions(peak: str) -> tuple[str, ...]:
    """The compute precisions that products of dtype ``peak`` may also run in, where an error is borne."""
    return ("tf32",) if peak == "float32" else ()


def shortest_us(kernel: Kernel, problem: Problem, ceilings: Ceilings) -> float:
    """The floor of ``problem`` in microseconds at the measured ceilings, whatever the compute precision.

    Raises:
        NotOpened: ``kernel`` states no cost.
    """
    cost = cost_of(kernel, problem)
    return min(ceilings.floor_us(cost.flops, peak, cost.bytes) for peak in (cost.peak, *faster_precisions(cost.peak)))


def roofline_share(kernel: Kernel, problem: Problem, config: Config, time_us: float, ceilings: Ceilings) -> float:
    """The floor over ``time_us``, against the rate of the precision that ``config`` computes in.

    Raises:
        NotOpened: ``kernel`` states no cost.
    """
    cost = cost_of(kernel, problem)
    peak = config.precision if config.precision in faster_precisions(cost.peak) else cost.peak
    return ceilings.floor_us(cost.flops, peak, cost.bytes) / time_us


def _best_s(device: torch.device, run: Callable[[], object]) -> float:
    def once() -> float:
        if device.type == "cuda":
            return between_events_us(run) / 1e6
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    for _ in range(2):
        once()
    # The best counts: a ceiling is what the device can do, not what it did beside other work.
    return min(once() for _ in range(SETTINGS.ceiling_repeats))
