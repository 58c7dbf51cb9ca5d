"""Operands and outputs: what a config reads while it is verified and timed, and the guarded memory it writes to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch

from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.kernels.base import InputSource, Kernel, OutputSpec, Tensors
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.verify import SampledStandard, Standard, WholeStandard, relative_error

_ALIGNMENT_BYTES = 16
_WORD_BYTES = 8
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

#: What the memory beside an output is filled with, byte by byte.
_GUARD_BYTE = 0x5A

#: Compute capabilities whose float64 is half as fast as their float32. On every other one it is 32 to 64 times slower.
_FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})


@dataclass(frozen=True)
class TensorSet:
    """Operands and the outputs that belong to them."""

    operands: Tensors
    outputs: Tensors

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.operands.values(), *self.outputs.values()))

    def clone(self) -> TensorSet:
        """The same values in memory of their own, with the same strides and the same alignment class."""
        return TensorSet(
            {name: copied(t) for name, t in self.operands.items()},
            {name: copied(t) for name, t in self.outputs.items()},
        )


@dataclass(frozen=True)
class InputSet:
    """Operands, a copy of their values, and what each output (or written operand) is held against."""

    operands: dict[str, torch.Tensor]
    kept: dict[str, torch.Tensor]
    standards: dict[str, Standard]
    #: The operands that the kernel declares to write.
    writes: frozenset[str] = frozenset()

    @classmethod
    def make(
        cls, kernel: Kernel, problem: Problem, source: InputSource, max_error: float | None, *, slow: bool
    ) -> InputSet:
        """Draw operands from ``source`` and make their standards, once a problem; ``slow`` says that float64 is."""
        operands = kernel.operands(problem, source)
        kept = {name: copied(tensor) for name, tensor in operands.items()}
        made = cls(operands, kept, _standards(kernel, problem, operands, max_error, slow=slow), kernel.writes)
        made.restore(operands)
        return made

    @property
    def guarded(self) -> tuple[str, ...]:
        """The operands that nothing may write."""
        return tuple(name for name in self.operands if name not in self.writes)

    def changed(self) -> torch.Tensor:
        """For each of `guarded`, whether its bits have changed: a vector on the device, waiting for nothing."""
        if not self.guarded:
            return torch.zeros(0, dtype=torch.bool, device=next(iter(self.operands.values())).device)
        pairs = ((_bits(self.operands[name]), _bits(self.kept[name])) for name in self.guarded)
        return torch.stack([torch.ne(now, before).any() for now, before in pairs])

    def restore(self, operands: Mapping[str, torch.Tensor]) -> None:
        """Give those of ``operands`` that the kernel writes the values they had."""
        for name in self.writes:
            operands[name].copy_(self.kept[name])

    def results(self, outputs: Tensors) -> dict[str, torch.Tensor]:
        """What is judged, by name: the outputs, and operands that are a result as well."""
        return {name: outputs[name] if name in outputs else self.operands[name] for name in self.standards}


class Outputs:
    """The outputs of a problem, each in the middle of a larger buffer whose ends are watched."""

    def __init__(self, specs: Mapping[str, OutputSpec], device: torch.device) -> None:
        self.device = device
        self.tensors: dict[str, torch.Tensor] = {}
        self._ends: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name, spec in specs.items():
            dtype: torch.dtype = getattr(torch, spec.dtype)
            guard = SETTINGS.guard_elements * dtype.itemsize
            size = math.prod(spec.shape) * dtype.itemsize
            buffer = torch.full((size + 2 * guard,), _GUARD_BYTE, dtype=torch.uint8, device=device)
            self.tensors[name] = buffer[guard : guard + size].view(dtype).view(spec.shape)
            self._ends.append((buffer[:guard], buffer[guard + size :]))

    def poison(self) -> None:
        """Fill the outputs with what no result is, so that an element never written shows."""
        for output in self.tensors.values():
            if output.dtype is torch.bool:
                output.view(torch.uint8).fill_(_GUARD_BYTE)
            else:
                output.fill_(math.nan if output.is_floating_point() else torch.iinfo(output.dtype).min)

    def trespassed(self) -> torch.Tensor:
        """For each output, whether the memory beside it was written: a vector on the device, waiting for nothing."""
        return torch.stack([torch.stack([(end != _GUARD_BYTE).any() for end in ends]).any() for ends in self._ends])


def float64_is_slow(device: Device) -> bool:
    """Whether ``device`` computes in float64 at less than an eighth of its float32 rate, by its compute capability.

    So do Turing, Ampere but for GA100, Ada, and Blackwell but for GB100 (NVIDIA, CUDA C++ Programming Guide, arithmetic
    throughput). One that is not known is taken for slow, which costs no more than a looser bound on a whole result.
    """
    return device.kind == "cuda" and device.compute_capability not in _FAST_FLOAT64


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` in new memory with the same strides, as far from a multiple of 16 bytes as it is itself; zeros lie
    between its rows."""
    start = tensor.data_ptr() % _ALIGNMENT_BYTES // tensor.element_size()
    spread = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = torch.zeros(start + spread + 1, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, tensor.stride(), start).copy_(tensor)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as integers, as wide as they can be: of equal bits or not, whatever a NaN is equal to."""
    size = tensor.element_size()
    if tensor.is_contiguous() and tensor.nbytes % _WORD_BYTES == tensor.storage_offset() * size % _WORD_BYTES == 0:
        return tensor.view(-1).view(torch.int64)
    return tensor.view(_INTEGERS[size])


def _standards(
    kernel: Kernel, problem: Problem, operands: dict[str, torch.Tensor], max_error: float | None, *, slow: bool
) -> dict[str, Standard]:
    length = kernel.reduction_length(problem)
    # References first: they leave the operands as they are, which a chain that writes some does not.
    if slow and (part := _sample(kernel, problem, operands)):
        rows, smaller, some = part
        exact = kernel.reference(smaller, some)
        rough = kernel.reference(problem, operands, torch.float32)
    else:
        rows, exact, rough = None, kernel.reference(problem, operands), {}
    for name, reference in (*exact.items(), *rough.items()):
        if not reference.value.isfinite().all():  # else it would refuse every config
            raise ValueError(f"the reference of {name} is not finite")
    with torch.no_grad():
        eager = {**operands, **kernel.eager(problem, operands)}
    standards: dict[str, Standard] = {}
    for name, reference in exact.items():
        dtype = str(eager[name].dtype).removeprefix("torch.")
        standard = partial(WholeStandard, dtype=dtype, reduction_length=length, max_error=max_error)
        if rows is None:
            standards[name] = standard(reference, eager_error=relative_error(eager[name], reference.value))
            continue
        eager_rows, rough_rows = (each.index_select(-2, rows) for each in (eager[name], rough[name].value))
        sample = standard(reference, eager_error=relative_error(eager_rows, reference.value), rows=rows.tolist())
        whole = standard(
            rough[name],
            eager_error=relative_error(eager[name], rough[name].value),
            reference_error=relative_error(rough_rows, reference.value),
        )
        standards[name] = SampledStandard(whole, sample, rows)
    return standards


def _sample(kernel: Kernel, problem: Problem, operands: Tensors) -> tuple[torch.Tensor, Problem, Tensors] | None:
    """Rows of the outputs that float64 is to see, and the problem that they are; None where rows are none.

    The first, the last (the end of a ragged tile) and seeded ones between them, with elements enough in each output.
    """
    verifying = SETTINGS.verifying
    shapes = [spec.shape for spec in kernel.outputs(problem).values()]
    if any(len(shape) < 2 for shape in shapes):
        return None
    total = shapes[0][-2]
    enough = (-(-verifying.sampled_elements * total // max(1, math.prod(shape))) for shape in shapes)
    count = min(total, max(verifying.sampled_rows, *enough))
    between = torch.randperm(max(0, total - 2), generator=torch.Generator().manual_seed(SETTINGS.input_seed)) + 1
    numbers = torch.cat([torch.tensor([0, total - 1]), between[: max(0, count - 2)]]).unique()
    rows = numbers.to(next(iter(operands.values())).device)
    part = kernel.rows_of(problem, operands, rows)
    return (rows, *part) if part else None
