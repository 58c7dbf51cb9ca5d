"""Runs a config on both input sets and judges all that it wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tunedex.core.canonical import key_of
from tunedex.core.measurement import Failure, FailureKind
from tunedex.kernels.base import Launch
from tunedex.tuner.failures import SpoiltProblem
from tunedex.tuner.sets import InputSet, Outputs
from tunedex.tuner.verify import bits_hash


@dataclass(frozen=True)
class Accepted:
    """The largest error over the input sets, the hash of the result's bits on the first of them, and the memory that a
    call allocates beyond operands and outputs."""

    error: float
    lossless: bool
    output_hash: str
    peak_memory_bytes: int | None


def check(launch: Launch, inputs: Sequence[InputSet], outputs: Outputs) -> Accepted | Failure:
    """Run ``launch`` on each of ``inputs``, the first of normal values and the others with outliers.

    Everything is compared where it lies, and one vector of numbers an input set travels to the host: waiting for it is
    what shows the faults that the device reports.
    """
    error, lossless, digest = 0.0, True, ""
    memory: int | None = None
    for n, made in enumerate(inputs):
        outputs.poison()
        before = _allocated(outputs.device)
        launch(made.operands, outputs.tensors)
        if before is not None:
            memory = max(memory or 0, torch.cuda.max_memory_allocated(outputs.device) - before)
        results = made.results(outputs.tensors)
        figures = [made.standards[name].figures(result) for name, result in results.items()]
        told = iter(torch.cat([_flags([made], outputs).double(), *figures]).tolist())
        if trespass := _trespass([made], outputs, told):
            return trespass
        for (name, result), sized in zip(results.items(), figures, strict=True):
            verdict = made.standards[name].verdict([next(told) for _ in sized], result)
            if not verdict.accepted:
                inputs_are = "outlier" if n else "normal"
                return Failure(FailureKind.WRONG_RESULT, f"{name}, {inputs_are} inputs: {verdict.detail}")
            error, lossless = max(error, verdict.error), lossless and verdict.lossless
        if n == 0:
            digest = key_of([bits_hash(result) for result in results.values()])
        made.restore(made.operands)
    return Accepted(error, lossless, digest, memory)


def trespass(inputs: Sequence[InputSet], outputs: Outputs) -> SpoiltProblem | None:
    """The failure of what has written an operand of ``inputs`` or memory beside ``outputs``; None where nothing did."""
    return _trespass(inputs, outputs, iter(_flags(inputs, outputs).tolist()))


def _flags(inputs: Sequence[InputSet], outputs: Outputs) -> torch.Tensor:
    """Whether memory was written that must not be, in the order in which `_trespass` names it."""
    return torch.cat([outputs.trespassed(), *(made.changed() for made in inputs)])


def _trespass(inputs: Sequence[InputSet], outputs: Outputs, told: Iterator[float]) -> SpoiltProblem | None:
    """The first fault of those that the next of ``told`` say."""
    faults = [f"{name}: memory beside the output was written" for name in outputs.tensors if next(told)]
    faults += [f"operand {name} was changed" for made in inputs for name in made.guarded if next(told)]
    return SpoiltProblem(FailureKind.WRONG_RESULT, faults[0]) if faults else None


def _allocated(device: torch.device) -> int | None:
    """What is allocated now, from where the peak counts anew; None on a device that does not tell."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
