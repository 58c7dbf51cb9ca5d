"""The row kernels on the CPU: numba and the library call, judged by the acceptance rule."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from tunedex.core.config import Config
from tunedex.core.host import cpu
from tunedex.kernels import get_kernel
from tunedex.kernels.base import InputSource
from tunedex.tuner.space import Space
from tunedex.tuner.verify import judge, relative_error

NAMES = ("layernorm_gelu_residual", "softmax")


def check(name: str, config: Config, parameters: dict[str, Any], *, outliers: bool = False) -> None:
    """Run ``config`` into poisoned outputs and judge them."""
    kernel = get_kernel(name)
    problem = kernel.signature.problem(parameters)
    source = InputSource(5, "cpu", outliers=outliers, strided=problem.layout == "strided")
    operands = kernel.operands(problem, source)
    before = {operand: tensor.clone() for operand, tensor in operands.items()}
    ((output, spec),) = kernel.outputs(problem).items()
    result = torch.full(spec.shape, float("nan"), dtype=getattr(torch, spec.dtype))
    kernel.implementation(config.implementation).bind(problem, config, cpu())(operands, {output: result})
    reference = kernel.reference(problem, operands)[output]
    verdict = judge(
        result,
        reference,
        dtype=spec.dtype,
        reduction_length=kernel.reduction_length(problem),
        eager_error=relative_error(kernel.eager(problem, operands)[output], reference.value),
    )
    assert verdict.lossless, f"{config}: {verdict.detail}"
    assert all(torch.equal(tensor, before[operand]) for operand, tensor in operands.items())


def specialisations(name: str) -> list[Config]:
    """One numba config for each compiled form."""
    kernel = get_kernel(name)
    problem = kernel.signature.problem({"rows": 1024, "cols": 3840, "dtype": "float32"})
    found: dict[tuple[Any, ...], Config] = {}
    for config in Space.of(kernel, problem, cpu()):
        if config.implementation == "numba":
            form = tuple(v for n, v in config.values.items() if n not in ("rows_per_task", "threads"))
            found[form] = config
    return list(found.values())


@pytest.mark.parametrize("name", NAMES)
def test_few_forms_are_compiled(name: str) -> None:
    pytest.importorskip("numba")
    assert len(specialisations(name)) == (5 if cpu().vector == "avx512" else 3)


@pytest.mark.parametrize("name", NAMES)
def test_every_numba_form(name: str) -> None:
    pytest.importorskip("numba")
    for config in specialisations(name):
        check(name, config, {"batch": 2, "rows": 9, "cols": 203, "dtype": "float32"})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "parameters",
    [
        {"rows": 1, "cols": 1},
        {"rows": 9, "cols": 3},
        {"rows": 300, "cols": 16},
        {"rows": 5, "cols": 4096},
        {"rows": 5, "cols": 4095},
        {"batch": 3, "rows": 4, "cols": 37, "layout": "strided"},
        {"rows": 4, "cols": 37, "alignment": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [0, 1])
def test_numba_shapes(name: str, parameters: dict[str, Any], threads: int) -> None:
    pytest.importorskip("numba")
    for config in specialisations(name):
        values = {**config.values, "rows_per_task": 4, "threads": threads}
        check(name, Config("numba", values), {**parameters, "dtype": "float32"})


@pytest.mark.skipif(cpu().vector != "avx512", reason="a CPU with AVX-512")
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_as_wide_as_asked(name: str) -> None:
    pytest.importorskip("numba")
    from tunedex.kernels.layernorm_gelu_residual_numba import _norm
    from tunedex.kernels.softmax_numba import _softmax

    kernel = get_kernel(name)
    problem = kernel.signature.problem({"rows": 2, "cols": 256, "dtype": "float32"})
    default = kernel.signature.default(problem, cpu())
    assert default is not None
    check(name, Config("numba", {**default.values, "vector_bits": 512}), {"rows": 2, "cols": 256, "dtype": "float32"})
    made = _softmax(True, False, 512) if name == "softmax" else _norm("erf", True, False, 512)
    (code,) = made.inspect_asm().values()  # type: ignore[attr-defined]
    assert re.search(r"vrndscaleps\b.*%zmm", code), "2^y is computed in whole vectors"


def test_only_wide_vector_units_offer_their_width() -> None:
    for vector, widths in (("avx512", (0, 512)), ("avx2", (0,)), ("neon", (0,))):
        for name in NAMES:
            kernel = get_kernel(name)
            problem = kernel.signature.problem({"rows": 64, "cols": 64, "dtype": "float32"})
            tunables = kernel.implementation("numba").tunables(problem, replace(cpu(), vector=vector))
            assert next(t.values for t in tunables if t.name == "vector_bits") == widths


@pytest.mark.parametrize("name", NAMES)
def test_numba_outliers(name: str) -> None:
    pytest.importorskip("numba")
    for config in specialisations(name):
        check(name, config, {"rows": 9, "cols": 203, "dtype": "float32"}, outliers=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("name", NAMES)
def test_library(name: str, dtype: str, layout: str) -> None:
    check(name, Config("library"), {"batch": 2, "rows": 9, "cols": 203, "dtype": dtype, "layout": layout})


@pytest.mark.parametrize("form", ["erf", "tanh"])
def test_both_forms_of_gelu(form: str) -> None:
    pytest.importorskip("numba")
    parameters = {"rows": 9, "cols": 203, "dtype": "float32", "gelu": form}
    check("layernorm_gelu_residual", Config("library"), parameters)
    for config in specialisations("layernorm_gelu_residual"):
        check("layernorm_gelu_residual", config, parameters)
