"""The acceptance rule: is a result right, and by how much is it off.

A result is accepted when, on each input set,

1. every element errs by at most ``4 (u + 2^-24 sqrt(L)) scale``, where ``u`` is the unit roundoff of the output's
   dtype, ``L`` the reduction length and ``scale`` the size of what the unfused chain rounds on the way to that
   element (`Reference.scale`), plus the smallest normal number of the dtype; and
2. its relative L2 error against float64 is at most 1.05 times the eager chain's plus ``2^-24 sqrt(L)``.

A caller's ``max_error`` replaces (2) and takes the place of ``u`` in (1) where it is larger. A result that only
passes so is accepted, but not lossless.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunedex.core.dtypes import DTYPES
from tunedex.kernels.base import Reference

if TYPE_CHECKING:
    import torch

ELEMENT_ROUNDINGS = 4.0
EAGER_FACTOR = 1.05
ACCUMULATOR_ROUNDOFF = 2.0**-24

_HASH_CHUNK = 1 << 24


@dataclass(frozen=True)
class Verdict:
    """``error`` is the relative L2 error; ``detail`` says where and by how much a refused result is off."""

    error: float
    accepted: bool
    lossless: bool
    detail: str = ""


def judge(
    result: torch.Tensor,
    reference: Reference,
    *,
    dtype: str,
    reduction_length: int,
    eager_error: float,
    max_error: float | None = None,
) -> Verdict:
    """Judge one output of one input set by the acceptance rule."""
    import torch

    floor = ACCUMULATOR_ROUNDOFF * math.sqrt(reduction_length)
    unit = DTYPES[dtype].unit_roundoff
    smallest = torch.finfo(getattr(torch, dtype)).tiny
    deviation = (result.double() - reference.value).abs_()
    error = _relative(deviation, reference.value)
    if not math.isfinite(error):
        where = _first(~torch.isfinite(deviation), result, reference)
        return Verdict(math.inf, accepted=False, lossless=False, detail=f"not finite or not written at {where}")

    def beyond(roundoff: float) -> torch.Tensor:
        return deviation > ELEMENT_ROUNDINGS * (roundoff + floor) * reference.scale + smallest

    outside = beyond(unit)
    lossless = not bool(outside.any()) and error <= EAGER_FACTOR * eager_error + floor
    if lossless:
        return Verdict(error, accepted=True, lossless=True)
    if max_error is not None:
        outside = beyond(max(unit, max_error))
        if not bool(outside.any()) and error <= max_error:
            return Verdict(error, accepted=True, lossless=False)
    if bool(outside.any()):
        count = int(outside.sum())
        detail = f"{count} elements beyond tolerance, first at {_first(outside, result, reference)}"
    else:
        bound = EAGER_FACTOR * eager_error + floor if max_error is None else max_error
        detail = f"relative L2 error {error:.3g} is above {bound:.3g}"
    return Verdict(error, accepted=False, lossless=False, detail=detail)


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """||result - reference|| / ||reference||, in float64; infinite where a result is not finite."""
    return _relative(result.double() - reference, reference)


def bits_hash(tensor: torch.Tensor) -> str:
    """32 hexadecimal digits from the bits of ``tensor``, computed where it lies.

    Two sums of the elements' bits times odd weights, modulo 2^64: integer addition is associative, so the
    order in which a device adds does not show.
    """
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.contiguous().view(integers).flatten()
    low = high = 0
    for start in range(0, bits.numel(), _HASH_CHUNK):
        part = bits[start : start + _HASH_CHUNK].to(torch.int64)
        index = torch.arange(start, start + part.numel(), device=part.device, dtype=torch.int64)
        weight = (index * 2 + 1) * 0x9E3779B97F4A7C1
        low += int(((part + 0x51ED27) * weight).sum())
        high += int(((part ^ 0x2545F491) * (weight + 2 * index * index)).sum())
    mask = 2**64 - 1
    return f"{low & mask:016x}{high & mask:016x}"


def _relative(deviation: torch.Tensor, reference: torch.Tensor) -> float:
    size = float(reference.norm())
    off = float(deviation.norm())
    if math.isnan(off):
        return math.inf
    return off / size if size else (0.0 if off == 0 else math.inf)


def _first(mask: torch.Tensor, result: torch.Tensor, reference: Reference) -> str:
    position = int(mask.flatten().int().argmax())
    index = []
    rest = position
    for size in reversed(mask.shape):
        index.append(rest % size)
        rest //= size
    got, want = float(result.flatten()[position]), float(reference.value.flatten()[position])
    return f"[{', '.join(map(str, reversed(index)))}]: {got:.6g} instead of {want:.6g}"
