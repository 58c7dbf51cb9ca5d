"""The acceptance rule: is a result right, and by how much is it off.

A result is accepted when, on each input set,

1. every element errs by at most ``4 (u + 2^-24 sqrt(L)) scale``, where ``u`` is the unit roundoff of the output's
   dtype, ``L`` the reduction length and ``scale`` the size of what the unfused chain rounds on the way to that
   element (`Reference.scale`), plus the smallest normal number of the dtype; and
2. its relative L2 error against float64 is at most 1.05 times the eager chain's plus ``2^-24 sqrt(L)``.

A caller's ``max_error`` replaces (2) and takes the place of ``u`` in (1) where it is larger. A result that only
passes so is accepted, but not lossless. Integers have no tolerance: they are equal or wrong.

A reference has rounded as well, in its own dtype of unit roundoff ``v``: by the rule's own words an element of it may
be off by ``4 (v + v sqrt(L)) scale``, and the whole by a relative L2 error ``d`` that is measured where float64 is
sampled, and is taken for at least ``v (1 + sqrt(L))``. By the triangle inequality a result that passes against
float64 is within the sum of both tolerances of such a reference, and within ``1.05 e + 2^-24 sqrt(L) + 2.05 d`` of it
as a whole, where ``e`` is the eager chain's error against the same reference. A reference in float64 adds nothing
that could be seen; one in float32 widens the rule a little, which is made up for by sampled rows (`SampledStandard`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunedex.core.dtypes import DTYPES
from tunedex.kernels.base import Reference
from tunedex.tuner.settings import SETTINGS

if TYPE_CHECKING:
    import torch

ELEMENT_ROUNDINGS = 4.0
EAGER_FACTOR = 1.05
ACCUMULATOR_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Verdict:
    """``error`` is the relative L2 error; ``detail`` says where and by how much a refused result is off."""

    error: float
    accepted: bool
    lossless: bool
    detail: str = ""


class Standard(ABC):
    """What one output of one input set is held against, prepared once a problem."""

    @abstractmethod
    def figures(self, result: torch.Tensor) -> torch.Tensor:
        """What the verdict is made from, as a float64 vector on the device of ``result``. Waits for nothing, so that
        the figures of several outputs travel to the host at once."""

    @abstractmethod
    def verdict(self, figures: Sequence[float], result: torch.Tensor) -> Verdict:
        """The verdict on ``result`` from its `figures`; looks at it again only to say where it is wrong."""

    def judge(self, result: torch.Tensor) -> Verdict:
        """Both steps at once."""
        return self.verdict(self.figures(result).tolist(), result)

    def error(self, result: torch.Tensor) -> float:
        """The relative L2 error of ``result``, right or wrong; infinite where it is not finite."""
        return self.judge(result).error


class WholeStandard(Standard):
    """Holds the whole of an output against one reference.

    The tolerance of each element is kept as its reciprocal in float32, so that the largest ratio of a deviation to its
    tolerance decides about all elements, at the price of one multiplication.

    Args:
        reference: of the output's shape, in float64 or float32.
        dtype: the output's.
        reduction_length: terms of the longest sum behind one element.
        eager_error: the relative L2 error of the eager chain against ``reference``.
        max_error: the relative L2 error that the caller bears; None for none.
        reference_error: the relative L2 error of ``reference`` itself, where it was measured.
        rows: which rows of the output these are, where they are not all of it: they name what is wrong.
    """

    def __init__(
        self,
        reference: Reference,
        *,
        dtype: str,
        reduction_length: int,
        eager_error: float,
        max_error: float | None = None,
        reference_error: float = 0.0,
        rows: Sequence[int] | None = None,
    ) -> None:
        import torch

        self._rows = rows
        self.value = reference.value
        self._size = float(torch.linalg.vector_norm(reference.value, dtype=torch.float64))
        self._max_error = max_error
        self._terms = math.sqrt(reduction_length)
        self._floor = ACCUMULATOR_ROUNDOFF * self._terms
        own_roundoff = torch.finfo(reference.value.dtype).eps / 2
        self._own_floor = own_roundoff * (1 + self._terms)
        self.reference_error = max(reference_error, self._own_floor)
        self._bound = EAGER_FACTOR * eager_error + self._floor + (1 + EAGER_FACTOR) * self.reference_error
        self._unit = DTYPES[dtype].unit_roundoff if dtype in DTYPES else 0.0
        exact = not getattr(torch, dtype).is_floating_point
        self._smallest = 0.5 if exact else torch.finfo(getattr(torch, dtype)).tiny
        self._strict = 0.0 if exact else self._factor(self._unit)
        # A scale that is no number, as where an operand is infinite, says nothing: the element is bound by the rest.
        tolerance = reference.scale.nan_to_num(nan=0.0, posinf=math.inf).mul_(self._strict).add_(self._smallest)
        self._weight = tolerance.reciprocal_().to(torch.float64 if dtype == "float64" else torch.float32)

    def _factor(self, roundoff: float) -> float:
        """What the scale of an element is multiplied with for its tolerance."""
        return ELEMENT_ROUNDINGS * (roundoff + self._floor + self._own_floor)

    def figures(self, result: torch.Tensor) -> torch.Tensor:
        """The norm of the deviation, and the largest ratio of a deviation to its tolerance."""
        import torch

        if not result.numel():
            return result.new_zeros(2, dtype=torch.float64)
        norms, ratios = [], []
        for deviation, weight in _deviations(result, self.value, self._weight):
            norms.append(torch.linalg.vector_norm(deviation, dtype=torch.float64))
            ratios.append(torch.linalg.vector_norm(deviation.mul_(weight), math.inf).double())
        return torch.stack([torch.linalg.vector_norm(torch.stack(norms)), torch.stack(ratios).amax()])

    def verdict(self, figures: Sequence[float], result: torch.Tensor) -> Verdict:
        off, ratio = figures
        error = _share(off, self._size)
        if not math.isfinite(error):
            # Types of 8 bits do not know what is finite.
            where = self._first(~result.to(self.value.dtype).isfinite(), result)
            return Verdict(math.inf, accepted=False, lossless=False, detail=f"not finite or not written at {where}")
        if ratio <= 1 and error <= self._bound:
            return Verdict(error, accepted=True, lossless=True)
        roundoff, bound = self._unit, self._bound
        if self._max_error is not None:
            roundoff, bound = max(self._unit, self._max_error), self._max_error + self.reference_error
        outside = self._outside(result, roundoff)
        count = int(outside.sum())
        if count:
            detail = f"{count} elements beyond tolerance, first at {self._first(outside, result)}"
        elif error > bound:
            detail = f"relative L2 error {error:.3g} is above {bound:.3g}"
        else:
            # With no error borne it was the tolerances' rounding that spoke against an element.
            return Verdict(error, accepted=True, lossless=self._max_error is None)
        return Verdict(error, accepted=False, lossless=False, detail=detail)

    def _outside(self, result: torch.Tensor, roundoff: float) -> torch.Tensor:
        """Which elements are beyond their tolerance at this unit roundoff."""
        import torch

        grown = self._factor(roundoff) / self._strict if self._strict else 1.0
        masks = []
        for deviation, weight in _deviations(result, self.value, self._weight):
            tolerance = weight.double().reciprocal_().sub_(self._smallest).mul_(grown).add_(self._smallest)
            masks.append(deviation.abs_() > tolerance)
        return torch.cat(masks).view(result.shape)

    def _first(self, mask: torch.Tensor, result: torch.Tensor) -> str:
        import torch

        position = int(mask.flatten().to(torch.uint8).argmax())
        index: list[int] = []
        rest = position
        for size in reversed(mask.shape):
            index.insert(0, rest % size)
            rest //= size
        got, want = float(result.flatten()[position]), float(self.value.flatten()[position])
        if self._rows is not None:
            index[-2] = self._rows[index[-2]]
        return f"{index}: {got:.6g} instead of {want:.6g}"


class SampledStandard(Standard):
    """Holds the whole of an output against a reference in float32, and some rows of it against float64.

    A gross fault is found anywhere, a slight one in the sampled rows, and those are judged as where float64 is fast.
    The error is that of the sample, or what the whole is off for certain where that is more.
    """

    def __init__(self, whole: WholeStandard, exact: WholeStandard, rows: torch.Tensor) -> None:
        self._whole, self._exact, self._rows = whole, exact, rows

    def figures(self, result: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.cat([self._whole.figures(result), self._exact.figures(self._some(result))])

    def verdict(self, figures: Sequence[float], result: torch.Tensor) -> Verdict:
        whole = self._whole.verdict(figures[:2], result)
        if not whole.accepted:
            return whole
        exact = self._exact.verdict(figures[2:], self._some(result))
        error = max(exact.error, whole.error - self._whole.reference_error)
        return Verdict(error, exact.accepted, exact.lossless and whole.lossless, exact.detail)

    def _some(self, result: torch.Tensor) -> torch.Tensor:
        return result.index_select(-2, self._rows)


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
    standard = WholeStandard(
        reference, dtype=dtype, reduction_length=reduction_length, eager_error=eager_error, max_error=max_error
    )
    return standard.judge(result)


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """||result - reference|| / ||reference||, computed in the dtype of ``reference``; infinite where not finite."""
    import torch

    norms = [torch.linalg.vector_norm(off, dtype=torch.float64) for off, _ in _deviations(result, reference, reference)]
    off, size = torch.stack([torch.stack(norms).norm(), reference.double().norm()]).tolist()
    return _share(off, size)


def _share(off: float, size: float) -> float:
    if not math.isfinite(off):
        return math.inf
    return off / size if size else (0.0 if off == 0 else math.inf)


def _deviations(
    result: torch.Tensor, reference: torch.Tensor, weight: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """``reference - result`` in memory of its own, and what of ``weight`` lies beside it, a flat part at a time."""
    import torch

    verifying = SETTINGS.verifying
    count = verifying.chunk_elements_cuda if result.is_cuda else verifying.chunk_elements_cpu
    parts = (tensor.reshape(-1).split(count) for tensor in (result, reference, weight))
    for got, want, beside in zip(*parts, strict=True):
        # Types of 8 bits do not take part in arithmetic.
        yield torch.sub(want, got.to(want.dtype) if got.element_size() == 1 else got), beside


#: Odd numbers with half their bits set, for `bits_hash`: those of splitmix64.
_STEP, _FIRST, _SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def bits_hash(tensor: torch.Tensor) -> str:
    """32 hexadecimal digits from the bits of ``tensor``, computed where it lies.

    Each word of eight bytes is mixed with its place (by splitmix64's finalizer: G. Steele, D. Lea and C. Flood, "Fast
    Splittable Pseudorandom Number Generators", OOPSLA 2014), and the sums of what is half mixed and of what is mixed
    are the hash: integer addition is associative, so the order in which a device adds does not show.
    """
    import torch

    octets = tensor.contiguous().reshape(-1).view(torch.uint8)
    whole = octets.numel() // 8 * 8
    if octets.storage_offset() % 8:
        octets = octets.clone()
    verifying = SETTINGS.verifying
    count = verifying.chunk_elements_cuda if tensor.is_cuda else verifying.chunk_elements_cpu
    sums = [octets.new_zeros(2, dtype=torch.int64)]
    start = 0
    for words in (*octets[:whole].view(torch.int64).split(count), octets[whole:].to(torch.int64)):
        mixed = torch.arange(start, start + words.numel(), device=words.device).mul_(_STEP).add_(words)
        start += words.numel()
        _fold(mixed, 30)
        _fold(mixed.mul_(_FIRST), 27)
        half = mixed.sum()
        _fold(mixed.mul_(_SECOND), 31)
        sums.append(torch.stack([half, mixed.sum()]))
    low, high = torch.stack(sums).sum(0).tolist()
    mask = 2**64 - 1
    return f"{low & mask:016x}{high & mask:016x}"


def _fold(words: torch.Tensor, bits: int) -> None:
    """Exclusive-or of each word with itself shifted right by ``bits``, in place, as if it had no sign."""
    words.bitwise_xor_((words >> bits).bitwise_and_((1 << (64 - bits)) - 1))
