"""The fitted GELU where numbers end: infinities, what overflows to them, and what is no number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tunedex.core.config import Config
from tunedex.core.host import cpu
from tunedex.kernels import gelu
from tunedex.kernels.base import InputSource
from tunedex.kernels.layernorm_gelu_residual import KERNEL as NORM
from tunedex.kernels.linear_gelu import KERNEL as LINEAR

VALUES = (math.inf, -math.inf, math.nan, 3e38, -3e38, 1e19, -1e19, 16.5, -16.5, 1.0)


def check(z: torch.Tensor, found: torch.Tensor, form: str) -> None:
    """``found`` is GELU of float32 ``z``, whose limits at the infinities are infinity and 0."""
    exact = torch.nn.functional.gelu(z.double(), approximate="tanh" if form == "tanh" else "none")
    exact[z == -math.inf] = 0.0
    torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("form", gelu.FORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_term_is_gone_where_it_is_cut(form: str, dtype: str) -> None:
    exponent = 0.0
    for coefficient in reversed(gelu.fitted(form, dtype)):
        exponent = exponent * gelu.LARGEST + coefficient
    assert exponent < -150  # 2^-149 is the least float32


@pytest.mark.parametrize("form", gelu.FORMS)
def test_triton(form: str, interpret: Callable[..., Any]) -> None:
    pytest.importorskip("triton")
    found = interpret("interpreted_gelu.py", VALUES, timeout_s=120)
    for dtype in ("float32", "bfloat16"):
        check(torch.tensor(VALUES), torch.tensor(found[f"{form} {dtype}"]), form)


@pytest.mark.parametrize("form", gelu.FORMS)
def test_linear_on_a_cpu(form: str) -> None:
    pytest.importorskip("numba")
    problem = LINEAR.signature.problem({"m": len(VALUES), "n": 19, "k": 9, "gelu": form, "dtype": "float32"})
    x = torch.zeros(1, len(VALUES), 9)
    x[0, :, 4] = torch.tensor(VALUES)
    operands = {"x": x, "weight": torch.ones(19, 9), "bias": torch.zeros(19)}
    values = {"micro": "2x8", "rows_per_task": 4, "block_n": 16, "block_k": 8, "threads": 0}
    out = torch.full((1, len(VALUES), 19), 7.0)
    LINEAR.implementation("numba").bind(problem, Config("numba", values), cpu())(operands, {"out": out})
    for column in out[0].t():
        check(torch.tensor(VALUES), column, form)


@pytest.mark.parametrize("form", gelu.FORMS)
@pytest.mark.parametrize("vector_bits", [0, 512])
@pytest.mark.parametrize("prefetch", [False, True])
def test_norm_on_a_cpu(form: str, vector_bits: int, prefetch: bool) -> None:
    """Weights so large that every other scaled normal form overflows, and biases that make the rest."""
    pytest.importorskip("numba")
    problem = NORM.signature.problem({"rows": 3, "cols": 40, "gelu": form, "dtype": "float32"})
    operands = NORM.operands(problem, InputSource(3, "cpu"))
    operands["weight"][::2] = 3.4e38
    operands["weight"][1::2] = 0.0
    operands["bias"].zero_()[1::2] = torch.tensor(VALUES).repeat(2)
    operands["residual"].zero_()
    z = torch.nn.functional.layer_norm(operands["x"], (40,)) * operands["weight"] + operands["bias"]
    assert (z == math.inf).any()
    assert (z[..., ::2] == -math.inf).any()
    values = {"gelu_math": "fitted", "vector_bits": vector_bits, "prefetch": prefetch, "rows_per_task": 1, "threads": 0}
    out = torch.full((1, 3, 40), 7.0)
    NORM.implementation("numba").bind(problem, Config("numba", values), cpu())(operands, {"out": out})
    check(z.flatten(), out.flatten(), form)
