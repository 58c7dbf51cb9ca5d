"""layernorm_gelu_residual: its formula, its eps, and the fitted GELU."""

from __future__ import annotations

import math

import pytest
import torch

from tunedex.core.config import Config
from tunedex.core.host import cpu
from tunedex.kernels import gelu, get_kernel
from tunedex.kernels.base import InputSource

KERNEL = get_kernel("layernorm_gelu_residual")


def test_reference_by_hand() -> None:
    problem = KERNEL.signature.problem({"rows": 1, "cols": 2, "dtype": "float32"})
    row = torch.tensor([[[1.0, 3.0]]])
    operands = {
        "x": row,
        "weight": torch.tensor([2.0, 1.0]),
        "bias": torch.tensor([0.5, 0.0]),
        "residual": torch.tensor([[[10.0, 20.0]]]),
    }
    n = 1 / math.sqrt(1 + 1e-5)  # mean 2, variance 1
    z = (-2 * n + 0.5, n)
    expected = [g * 0.5 * (1 + math.erf(g / math.sqrt(2))) + r for g, r in zip(z, (10.0, 20.0), strict=True)]
    found = KERNEL.reference(problem, operands)["out"]
    assert found.value.flatten().tolist() == pytest.approx(expected, rel=1e-12)
    assert bool((found.scale >= found.value.abs()).all())


def test_attribute_chooses_the_form() -> None:
    results = []
    for form in ("erf", "tanh"):
        problem = KERNEL.signature.problem({"rows": 4, "cols": 64, "dtype": "float32", "gelu": form})
        operands = KERNEL.operands(problem, InputSource(1, "cpu"))
        results.append(KERNEL.reference(problem, operands)["out"].value)
        assert torch.allclose(KERNEL.eager(problem, operands)["out"].double(), results[-1], atol=1e-5)
    assert 1e-5 < float((results[0] - results[1]).abs().max()) < 1e-2
    assert KERNEL.signature.problem({"rows": 4, "cols": 64, "dtype": "float32"}).attributes == {"gelu": "erf"}


@pytest.mark.parametrize("implementation", ["numba", "library"])
def test_a_launch_takes_another_eps(implementation: str) -> None:
    if implementation == "numba":
        pytest.importorskip("numba")
    problem = KERNEL.signature.problem({"rows": 3, "cols": 32, "dtype": "float32"})
    operands = KERNEL.operands(problem, InputSource(1, "cpu"))
    default = KERNEL.signature.default(problem, cpu())
    assert default is not None
    config = default if implementation == "numba" else Config("library")
    launch = KERNEL.implementation(implementation).bind(problem, config, cpu())
    out = torch.empty(1, 3, 32)
    launch(operands, {"out": out}, eps=0.5)
    assert torch.allclose(out, KERNEL.eager(problem, operands, eps=0.5)["out"], atol=1e-5)
    assert not torch.allclose(out, KERNEL.eager(problem, operands)["out"], atol=1e-3)


@pytest.mark.parametrize("implementation", ["numba", "library"])
def test_two_dimensional_tensors(implementation: str) -> None:
    """A call on ``[rows, cols]`` writes an output of ``[1, rows, cols]``."""
    if implementation == "numba":
        pytest.importorskip("numba")
    problem = KERNEL.signature.problem({"rows": 3, "cols": 32, "dtype": "float32"})
    operands = KERNEL.operands(problem, InputSource(1, "cpu"))
    flat = {name: tensor[0] if tensor.dim() == 3 else tensor for name, tensor in operands.items()}
    default = KERNEL.signature.default(problem, cpu())
    assert default is not None
    config = default if implementation == "numba" else Config("library")
    out = torch.empty(1, 3, 32)
    KERNEL.implementation(implementation).bind(problem, config, cpu())(flat, {"out": out})
    assert torch.allclose(out, KERNEL.eager(problem, operands)["out"], atol=1e-5)


def test_not_a_number_spreads_over_its_row_alone() -> None:
    pytest.importorskip("numba")
    problem = KERNEL.signature.problem({"rows": 3, "cols": 32, "dtype": "float32"})
    operands = KERNEL.operands(problem, InputSource(1, "cpu"))
    operands["x"][0, 1, 7] = math.nan
    default = KERNEL.signature.default(problem, cpu())
    assert default is not None
    out = torch.empty(1, 3, 32)
    KERNEL.implementation("numba").bind(problem, default, cpu())(operands, {"out": out})
    assert bool(out[0, 1].isnan().all())
    assert bool(out[0, [0, 2]].isfinite().all())


@pytest.mark.parametrize("form", gelu.FORMS)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-7), ("float16", 5e-6), ("bfloat16", 5e-6)])
def test_fitted_gelu(form: str, dtype: str, bound: float) -> None:
    """Within the bound relative to max(1, |z|) everywhere, and gone where GELU is."""
    z = torch.cat([torch.linspace(-12, 12, 100_001), torch.tensor([-1e4, -60.0, -0.0, 0.0, 60.0, 1e4])])
    a, q = z.abs(), torch.zeros_like(z)
    for c in reversed(gelu.fitted(form, dtype)):
        q = q * a + c
    found = z.clamp(min=0) - a * torch.exp2(q)
    exact = torch.nn.functional.gelu(z.double(), approximate="tanh" if form == "tanh" else "none")
    assert float(((found.double() - exact).abs() / a.clamp(min=1)).max()) < bound
    assert found[z < -30].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("form", gelu.FORMS)
def test_the_fitted_gelu_of_small_numbers_keeps_their_digits(form: str) -> None:
    z = torch.cat([torch.logspace(-6, 0, 1001), -torch.logspace(-6, 0, 1001)])
    a, q = z.abs(), torch.zeros_like(z)
    for c in reversed(gelu.fitted(form, "float32")):
        q = q * a + c
    found = z.clamp(min=0) - a * torch.exp2(q)
    exact = torch.nn.functional.gelu(z.double(), approximate="tanh" if form == "tanh" else "none")
    assert float(((found.double() - exact) / z).abs().max()) < 1.2e-7


@pytest.mark.parametrize("form", gelu.FORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_fitted_exponent_falls_for_ever(form: str, dtype: str) -> None:
    coefficients = gelu.fitted(form, dtype)
    a = torch.linspace(0, 60, 60_001, dtype=torch.float64)
    q = torch.zeros_like(a)
    for c in reversed(coefficients):
        q = q * a + c
    assert bool((q.diff() < 0).all())
    assert coefficients[-1] < 0
