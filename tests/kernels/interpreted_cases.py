"""Run kernels through Triton's interpreter and judge them: a process of its own, started by tests.

Reads a JSON list of cases on standard input, each ``{kernel, parameters, values, outliers, strided}``, and writes a
list of ``{accepted, detail, error, eager_error}`` on standard output. The interpreter runs on the CPU what would be
launched on ``DEVICE``.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.kernels.base import InputSource
from tunedex.kernels.offline import interpreted
from tunedex.tuner.verify import judge, relative_error

DEVICE = Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")


def widen_dots() -> None:
    """Make the interpreter multiply bfloat16 matrices as numbers: it holds them as 16-bit integers, and its matrix
    product takes those at face value."""
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain(self, widened(a), widened(b), *rest)

    InterpreterBuilder.create_dot = create_dot


def run(case: Mapping[str, Any]) -> dict[str, Any]:
    kernel = importlib.import_module(f"tunedex.kernels.{case['kernel']}").KERNEL
    problem = kernel.signature.problem(case["parameters"])
    source = InputSource(7, "cpu", outliers=case.get("outliers", False), strided=case.get("strided", False))
    operands = kernel.operands(problem, source)
    (name, spec), *_ = kernel.outputs(problem).items()
    poisoned = torch.full(spec.shape, float("nan"), dtype=getattr(torch, spec.dtype))
    kernel.implementation("triton").bind(problem, Config("triton", case["values"]), DEVICE)(operands, {name: poisoned})
    reference = kernel.reference(problem, operands)[name]
    eager_error = relative_error(kernel.eager(problem, operands)[name], reference.value)
    verdict = judge(
        poisoned,
        reference,
        dtype=spec.dtype,
        reduction_length=kernel.reduction_length(problem),
        eager_error=eager_error,
    )
    return {
        "accepted": verdict.accepted,
        "detail": verdict.detail,
        "error": relative_error(poisoned, reference.value),
        "eager_error": eager_error,
    }


if __name__ == "__main__":
    assert interpreted(), "TRITON_INTERPRET is not set"
    widen_dots()
    json.dump([run(case) for case in json.load(sys.stdin)], sys.stdout)
