"""A small case of each kernel, what it takes to publish a config for it, and what is accepted of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tunedex import ops
from tunedex.core import host
from tunedex.core.config import Config
from tunedex.core.measurement import Measurement, Policy
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.signature import Signature
from tunedex.db import open_store
from tunedex.kernels.base import InputSource
from tunedex.kernels.registry import get_kernel

#: Rounding of one result, and what sums in another order may add, by dtype: relative to the reference's scale.
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}

LIBRARY: dict[str, Config] = {
    "layernorm_gelu_residual": Config("library"),
    "softmax": Config("library"),
    "linear_gelu": Config("library", {"call": "eager", "precision": "ieee"}),
}


@dataclass(frozen=True)
class Case:
    """A function with a kernel's name, and parameters of a small problem."""

    kernel: str
    run: Callable[..., torch.Tensor]
    dims: Mapping[str, int]

    def problem(self, dtype: str = "float32", **changes: Any) -> Problem:
        return get_kernel(self.kernel).signature.problem({**self.dims, "dtype": dtype, **changes})

    def tensors(self, problem: Problem, *, seed: int = 0, strided: bool = False) -> dict[str, torch.Tensor]:
        return get_kernel(self.kernel).operands(problem, InputSource(seed, "cpu", strided=strided))


CASES = [
    Case("layernorm_gelu_residual", ops.layernorm_gelu_residual, {"batch": 2, "rows": 5, "cols": 70}),
    Case("softmax", ops.softmax, {"batch": 2, "rows": 5, "cols": 70}),
    Case("linear_gelu", ops.linear_gelu, {"batch": 2, "m": 9, "n": 33, "k": 70}),
]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)


def accept(case: Case, problem: Problem, operands: Mapping[str, torch.Tensor], result: torch.Tensor) -> None:
    """``result`` lies within a few roundings of the float64 reference."""
    (reference,) = get_kernel(case.kernel).reference(problem, operands).values()
    apart = (result.double().view(reference.value.shape) - reference.value).abs() / reference.scale
    assert result.isfinite().all()
    assert float(apart.max()) < TOLERANCE[problem.dtype]


def publish(path: Path, case: Case, problem: Problem, *configs: Config, signature: Signature | None = None) -> None:
    """Publish ``configs``, measured with the kernel as it is installed or as ``signature`` says that it was."""
    measured: dict[str, Any] = {
        "samples": 9,
        "policy": Policy.EAGER_COLD,
        "error": 1e-7,
        "lossless": True,
        "output_hash": "aa",
    }
    signature = signature or get_kernel(case.kernel).signature
    rows = [
        Row(rank, config, Measurement(10.0 + rank, 9.0, 12.0, **measured), signature.version, "e" * 32)
        for rank, config in enumerate(configs)
    ]
    with open_store(str(path)) as store:
        store.register_device(host.cpu())
        store.register_signatures([signature])
        store.publish(host.cpu().key, {problem: rows}, sweep=None)


def running() -> list[Config | None]:
    """The configs that are bound now."""
    return [plan.config for plan in ops._plans.values()]
