"""References of part of a problem and in float32: what stands in where float64 is slow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tunedex.kernels import get_kernel
from tunedex.kernels.base import InputSource

CASES: list[tuple[str, dict[str, Any]]] = [
    ("layernorm_gelu_residual", {"rows": 37, "cols": 61, "dtype": "float32", "gelu": "tanh"}),
    ("layernorm_gelu_residual", {"batch": 3, "rows": 37, "cols": 64, "dtype": "bfloat16", "layout": "strided"}),
    ("softmax", {"batch": 2, "rows": 19, "cols": 33, "dtype": "float16"}),
    ("linear_gelu", {"m": 35, "n": 27, "k": 48, "dtype": "bfloat16"}),
    ("linear_gelu", {"batch": 2, "m": 35, "n": 27, "k": 48, "dtype": "float32"}),
]


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=str)
def test_some_rows_have_the_reference_that_they_have_among_all(name: str, parameters: dict[str, Any]) -> None:
    kernel = get_kernel(name)
    problem = kernel.signature.problem(parameters)
    operands = kernel.operands(problem, InputSource(3, "cpu", outliers=True, strided=problem.layout == "strided"))
    rows = torch.tensor([0, 5, 18])
    part = kernel.rows_of(problem, operands, rows)
    assert part is not None
    smaller, some = part
    assert smaller.batch == problem.batch
    for output, whole in kernel.reference(problem, operands).items():
        found = kernel.reference(smaller, some)[output]
        torch.testing.assert_close(found.value, whole.value.index_select(-2, rows), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(found.scale, whole.scale.index_select(-2, rows), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=str)
def test_float32_agrees_with_float64_within_its_roundings(name: str, parameters: dict[str, Any]) -> None:
    kernel = get_kernel(name)
    problem = kernel.signature.problem(parameters)
    operands = kernel.operands(problem, InputSource(3, "cpu", outliers=True))
    before = {operand: tensor.clone() for operand, tensor in operands.items()}
    exact, rough = kernel.reference(problem, operands), kernel.reference(problem, operands, torch.float32)
    assert all(torch.equal(tensor, before[operand]) for operand, tensor in operands.items())
    for output, reference in exact.items():
        assert rough[output].value.dtype is rough[output].scale.dtype is torch.float32
        off = (rough[output].value.double() - reference.value).abs()
        assert bool((off <= 2.0**-21 * kernel.reduction_length(problem) ** 0.5 * reference.scale + 1e-30).all())
        torch.testing.assert_close(rough[output].scale.double(), reference.scale, rtol=1e-3, atol=1e-6)
