"""A kernel's costs, checked: they are the kernel's own code, and what is divided and bounded by them is not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from numbers import Real

from tunedex.core.problem import Problem
from tunedex.kernels.base import Cost, Kernel
from tunedex.tuner.faults import NotOpened, laid_on_the_problem
from tunedex.tuner.peaks import KNOWN_PEAKS


def cost_of(kernel: Kernel, problem: Problem) -> Cost:
    """The cost of ``problem`` as ``kernel`` states it.

    Raises:
        NotOpened: it states none: its code fails, or what it gives is no cost.
    """
    with laid_on_the_problem("has no cost"):
        cost = kernel.cost(problem)
        if not isinstance(cost, Cost):
            raise TypeError(f"a {type(cost).__name__} is no Cost")
        if not isinstance(cost.peak, str):
            raise TypeError(f"peak {cost.peak!r} is no text")
        if cost.peak and cost.peak not in KNOWN_PEAKS:
            raise ValueError(f"peak {cost.peak!r} is unknown; known are {', '.join(sorted(KNOWN_PEAKS))}")
        return Cost(_count("flops", cost.flops), _count("bytes", cost.bytes), cost.peak)


def bytes_of(kernel: Kernel, problem: Problem) -> float:
    """The bytes of operands and outputs; 0 where the kernel does not state them, for which its problem answers once it
    is measured."""
    try:
        return cost_of(kernel, problem).bytes
    except NotOpened:
        return 0.0


def named_peaks(asked: Iterable[tuple[Kernel, Problem]]) -> set[str]:
    """The peaks that the costs name, less those of problems that have none."""
    peaks: set[str] = set()
    for kernel, problem in asked:
        with suppress(NotOpened):
            peaks.add(cost_of(kernel, problem).peak)
    return peaks - {""}


def _count(name: str, value: object) -> float:
    """
    Raises:
        ValueError: ``value``, called ``name``, is no count.
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) < math.inf:
        raise ValueError(f"{name} {value!r} is not a finite number from 0")
    return float(value)
