"""A kernel whose configs do everything that a config must not do: out = 2 x, by the letter of its name."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.core.signature import BATCH, DefaultRule, Dimension, Operand, Signature
from tunedex.kernels.base import (
    Cost,
    Implementation,
    InputSource,
    Kernel,
    Launch,
    OutputSpec,
    OverLimit,
    Reference,
    Tensors,
    Tunable,
)

FAULTS = ("none", "raise", "abort", "exit", "wrong_last", "unwritten", "operand", "beside", "memory", "limit")

#: Faults that show only while the file that this setting names is there: configs that go wrong later. Where the file
#: holds the name of a fault, every config has that one.
LATE = ("late_raise", "late_exit")
LATE_SETTING = "PLANTED_LATE"

#: A problem of so many rows cannot be set up, and one of so many has no cost.
UNLUCKY_ROWS = 13
COSTLESS_ROWS = 17


def _run(fault: str, operands: Tensors, outputs: Tensors) -> None:
    x, out = operands["x"], outputs["out"]
    late = Path(os.environ.get(LATE_SETTING, "/nowhere"))
    if fault in LATE and late.exists():
        fault = fault.removeprefix("late_")
    if late.exists() and (everywhere := late.read_text()) in FAULTS:
        if everywhere == "raise":
            raise RuntimeError(f"planted in {late}")
        fault = everywhere
    if fault == "raise":
        raise RuntimeError("planted")
    if fault == "abort":
        os.abort()
    if fault == "exit":
        os._exit(0)
    if fault == "memory":
        raise MemoryError("planted")
    if fault == "limit":
        raise OverLimit("bytes of shared memory", 200_000, 100_000)
    if fault != "unwritten":
        torch.mul(x, 2, out=out)
    if fault == "wrong_last":
        out[..., -1, -1] *= 1.2
    if fault == "operand":
        x.add_(1)
    if fault == "beside":
        out.view(-1).as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(0)


class Planted(Implementation):
    name = "numba"
    kinds = frozenset({"cpu", "cuda"})

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return (Tunable("fault", FAULTS + LATE, "what goes wrong"),)

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        return lambda operands, outputs: _run(str(config.values["fault"]), operands, outputs)


class Library(Implementation):
    name = "library"
    kinds = frozenset({"cpu", "cuda"})

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return ()

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        return lambda operands, outputs: _run("none", operands, outputs)


class PlantedKernel(Kernel):
    signature = Signature(
        kernel="planted",
        version="000000000001",
        formula="out = 2 x",
        dimensions=(BATCH, Dimension("rows"), Dimension("cols")),
        operands=(Operand("x", ("float32",)),),
        defaults=(
            DefaultRule("cpu", {"implementation": "numba", "fault": "none"}),
            DefaultRule("cuda", {"implementation": "numba", "fault": "none"}),
        ),
    )
    implementations = (Planted(), Library())

    def cost(self, problem: Problem) -> Cost:
        if problem.dims["rows"] == COSTLESS_ROWS:
            raise ZeroDivisionError("planted: no cost")
        count = math.prod(problem.dims.values())
        return Cost(flops=count, bytes=8 * count)

    def reduction_length(self, problem: Problem) -> int:
        return 1

    def operands(self, problem: Problem, source: InputSource) -> dict[str, torch.Tensor]:
        return {"x": source.normal(tuple(problem.dims.values()), problem.dtype)}

    def outputs(self, problem: Problem) -> dict[str, OutputSpec]:
        return {"out": OutputSpec(tuple(problem.dims.values()), problem.dtype)}

    def reference(self, problem: Problem, operands: Tensors, dtype: torch.dtype | None = None) -> dict[str, Reference]:
        if problem.dims["rows"] == UNLUCKY_ROWS:
            raise RuntimeError("planted: no reference")
        value = operands["x"].to(dtype or torch.float64) * 2
        return {"out": Reference(value, value.abs())}

    def eager(self, problem: Problem, operands: Tensors) -> dict[str, torch.Tensor]:
        return {"out": operands["x"] * 2}

    def problem_of(self, operands: Tensors, attributes: Mapping[str, str]) -> Problem:
        batch, rows, cols = operands["x"].shape
        return self.signature.problem({"batch": batch, "rows": rows, "cols": cols, "dtype": "float32"})


KERNEL = PlantedKernel()
