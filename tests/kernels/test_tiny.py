"""The defaults on tiny, ragged and badly scaled problems, which have nothing to average errors over."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.host import cpu
from tunedex.kernels import get_kernel
from tunedex.kernels.base import InputSource
from tunedex.tuner.verify import judge, relative_error

H200 = Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")
DTYPES = ("float32", "float16", "bfloat16")

ROWS = ((1, 1), (1, 2), (1, 3), (1, 7), (7, 1), (1, 300), (300, 1), (3, 17), (5, 301))
PRODUCTS = ((1, 1, 1), (1, 7, 1), (7, 1, 1), (1, 1, 7), (1, 5, 64), (5, 1, 64), (1, 300, 3), (70, 1, 2), (1, 1, 1000))
SIZES: dict[str, tuple[dict[str, int], ...]] = {
    "layernorm_gelu_residual": tuple({"rows": rows, "cols": cols} for rows, cols in ROWS),
    "softmax": tuple({"rows": rows, "cols": cols} for rows, cols in ROWS),
    "linear_gelu": tuple({"m": m, "n": n, "k": k} for m, n, k in PRODUCTS),
}


def forms(kernel: str) -> tuple[dict[str, str], ...]:
    return ({},) if kernel == "softmax" else ({"gelu": "erf"}, {"gelu": "tanh"})


def default(kernel: str, parameters: dict[str, Any], device: Device) -> Config:
    signature = get_kernel(kernel).signature
    config = signature.default(signature.problem(parameters), device)
    assert config is not None
    return config


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 1000.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SIZES)
def test_the_default_on_a_cpu(name: str, dtype: str, scale: float) -> None:
    kernel = get_kernel(name)
    judged = 0
    for sizes, form, outliers, seed in itertools.product(SIZES[name], forms(name), (False, True), range(3)):
        parameters = {**sizes, **form, "dtype": dtype}
        problem, config = kernel.signature.problem(parameters), default(name, parameters, cpu())
        operands = kernel.operands(problem, InputSource(seed, "cpu", outliers=outliers))
        operands["x"].mul_(scale)
        eager = kernel.eager(problem, operands)["out"]
        if not eager.isfinite().all():  # too large for the dtype: nothing is right
            continue
        out = torch.full_like(eager, float("nan"))
        kernel.implementation(config.implementation).bind(problem, config, cpu())(operands, {"out": out})
        reference = kernel.reference(problem, operands)["out"]
        verdict = judge(
            out,
            reference,
            dtype=dtype,
            reduction_length=kernel.reduction_length(problem),
            eager_error=relative_error(eager, reference.value),
        )
        assert verdict.lossless, f"{problem} {config} {outliers} {seed}: {verdict.detail}"
        judged += 1
    assert judged > 20


@pytest.mark.parametrize("name", ["layernorm_gelu_residual", "softmax"])
@pytest.mark.parametrize("device", [H200, cpu()], ids=["cuda", "cpu"])
def test_narrow_float32_rows_are_left_to_the_library(name: str, device: Device) -> None:
    sizes = {"rows": 1000, "dtype": "float32"}
    assert default(name, {**sizes, "cols": 15}, device).library
    assert not default(name, {**sizes, "cols": 16}, device).library


def test_a_few_sums_are_left_to_the_library() -> None:
    sizes = {"k": 1000, "dtype": "float32"}
    assert default("linear_gelu", {**sizes, "m": 31, "n": 31}, cpu()).library
    assert not default("linear_gelu", {**sizes, "m": 1, "n": 32}, cpu()).library
    assert not default("linear_gelu", {**sizes, "m": 32, "n": 1}, cpu()).library


def gpu_cases() -> list[dict[str, Any]]:
    """Every tiny problem whose default on a GPU is Triton's; bfloat16 is not what the interpreter can judge."""
    cases = []
    for name, dtype in itertools.product(SIZES, ("float32", "float16")):
        for sizes, form, outliers in itertools.product(SIZES[name], forms(name), (False, True)):
            parameters = {**sizes, **form, "dtype": dtype}
            config = default(name, parameters, H200)
            if config.implementation == "triton":
                case = {"kernel": name, "parameters": parameters, "values": dict(config.values), "outliers": outliers}
                cases.append(case)
    return cases


def test_the_default_on_a_gpu_through_the_interpreter(interpret: Callable[..., Any]) -> None:
    pytest.importorskip("triton")
    cases = gpu_cases()
    assert {case["kernel"] for case in cases} == set(SIZES)
    verdicts = interpret("interpreted_cases.py", cases)
    refused = [
        (case["kernel"], case["parameters"], case["outliers"], verdict["detail"])
        for case, verdict in zip(cases, verdicts, strict=True)
        if not verdict["accepted"]
    ]
    assert not refused
