"""linear_gelu on a real GPU: a sample of each variant's space and every library call, by the acceptance rule."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tunedex.core.config import Config
from tunedex.core.cuda import from_properties
from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.kernels import linear_gelu_triton
from tunedex.kernels.base import CompileError, InputSource
from tunedex.kernels.linear_gelu import KERNEL
from tunedex.tuner.space import Space
from tunedex.tuner.verify import Verdict, judge, relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

#: What tf32, which truncates what it multiplies to 10 bits, is allowed here.
TF32_ERROR = 3e-3

PROBLEMS: tuple[dict[str, Any], ...] = (
    {"m": 1000, "n": 776, "k": 520, "dtype": "bfloat16"},
    {"batch": 3, "m": 301, "n": 776, "k": 520, "dtype": "float16", "gelu": "erf"},
    {"m": 301, "n": 333, "k": 517, "dtype": "bfloat16"},
    {"m": 301, "n": 336, "k": 520, "dtype": "bfloat16", "layout": "strided"},
    {"m": 301, "n": 336, "k": 520, "dtype": "float16", "layout": "strided", "alignment": 2},
    {"m": 1000, "n": 776, "k": 520, "dtype": "float32"},
    {"m": 301, "n": 333, "k": 517, "dtype": "float32", "gelu": "erf", "layout": "strided"},
    {"m": 3, "n": 776, "k": 520, "dtype": "float16"},
)
TILE = {
    "precision": "ieee",
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "group_m": 8,
    "num_warps": 4,
    "num_stages": 3,
}


@pytest.fixture(scope="module")
def device() -> Device:
    return from_properties(torch.cuda.get_device_properties(0))


def judged(asked: Problem, config: Config, device: Device, *, outliers: bool = True) -> Verdict:
    """The verdict on ``config``, run into a poisoned output."""
    source = InputSource(9, "cuda", outliers=outliers, strided=asked.layout == "strided")
    operands = KERNEL.operands(asked, source)
    spec = KERNEL.outputs(asked)["out"]
    out = torch.full(spec.shape, float("nan"), dtype=getattr(torch, spec.dtype), device="cuda")
    KERNEL.implementation(config.implementation).bind(asked, config, device)(operands, {"out": out})
    reference = KERNEL.reference(asked, operands)["out"]
    return judge(
        out,
        reference,
        dtype=spec.dtype,
        reduction_length=KERNEL.reduction_length(asked),
        eager_error=relative_error(KERNEL.eager(asked, operands)["out"], reference.value),
        max_error=TF32_ERROR if config.values["precision"] == "tf32" else None,
    )


def sample(asked: Problem, device: Device, count: int) -> list[Config]:
    """Triton configs of the space, the same ones every time, ``count`` for each variant and precision."""
    groups: dict[tuple[Any, Any], list[Config]] = {}
    for config in Space.of(KERNEL, asked, device):
        if config.implementation == "triton":
            groups.setdefault((config.values["variant"], config.values["precision"]), []).append(config)
    chooser = random.Random(5)
    return [config for group in groups.values() for config in chooser.sample(group, min(count, len(group)))]


@pytest.mark.parametrize("parameters", PROBLEMS, ids=str)
def test_triton(parameters: dict[str, Any], device: Device) -> None:
    asked = KERNEL.signature.problem(parameters)
    ran = set()
    for config in sample(asked, device, 4):
        try:
            KERNEL.implementation("triton").compile(asked, config, device)
        except CompileError:
            continue
        verdict = judged(asked, config, device)
        assert verdict.accepted, f"{config}: {verdict.detail}"
        assert verdict.lossless == (config.values["precision"] == "ieee")
        ran.add(config.values["variant"])
    descriptors = parameters["k"] % 8 == 0 and parameters.get("alignment", 16) == 16 and device.target >= 90
    assert ran == ({"pointer", "descriptor", "persistent"} if descriptors else {"pointer"})


@pytest.mark.parametrize("parameters", PROBLEMS, ids=str)
def test_library_calls(parameters: dict[str, Any], device: Device) -> None:
    asked = KERNEL.signature.problem(parameters)
    calls = [config for config in Space.of(KERNEL, asked, device) if config.implementation == "library"]
    before = torch.backends.cuda.matmul.fp32_precision
    for config in calls:
        verdict = judged(asked, config, device, outliers=False)
        if parameters["dtype"] == "float32" and config.values["call"] == "addmm_activation":
            # The library's tanh is an approximation, good enough for 16 bits: a sweep may refuse it here.
            assert verdict.error < 1e-5 or config.values["precision"] == "tf32"
            continue
        assert verdict.accepted, f"{config}: {verdict.detail}"
        assert verdict.lossless == (config.values["precision"] == "ieee")
    assert torch.backends.cuda.matmul.fp32_precision == before
    assert len(calls) == (1 if "gelu" in parameters else 2) * (2 if parameters["dtype"] == "float32" else 1)


@pytest.mark.parametrize("parameters", PROBLEMS, ids=str)
def test_the_default(parameters: dict[str, Any], device: Device) -> None:
    asked = KERNEL.signature.problem(parameters)
    config = KERNEL.signature.default(asked, device)
    assert config is not None
    verdict = judged(asked, config, device)
    assert verdict.lossless, verdict.detail


@pytest.mark.parametrize("variant", ["pointer", "descriptor", "persistent"])
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_a_launch_finds_what_was_compiled_without_it(
    variant: str, layout: str, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.target < 90 and variant != "pointer":
        pytest.skip("no tensor memory accelerator")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    asked = KERNEL.signature.problem({"m": 264, "n": 280, "k": 136, "dtype": "bfloat16", "layout": layout})
    config = Config("triton", {**TILE, "variant": variant})
    for function in (linear_gelu_triton._pointer, linear_gelu_triton._descriptor, linear_gelu_triton._persistent):
        function.device_caches.clear()
    KERNEL.implementation("triton").compile(asked, config, device)
    compiled = set(tmp_path.rglob("*.cubin"))
    assert len(compiled) == 1
    assert judged(asked, config, device).accepted
    assert set(tmp_path.rglob("*.cubin")) == compiled


@pytest.mark.parametrize("name", ["pointer", "persistent", "addmm_activation", "eager"])
def test_capture(name: str, device: Device) -> None:
    """A bound config is captured in a CUDA graph from its second call on, and the graph computes anew."""
    if device.target < 90 and name == "persistent":
        pytest.skip("no tensor memory accelerator")
    asked = KERNEL.signature.problem({"m": 264, "n": 280, "k": 136, "dtype": "bfloat16"})
    config = (
        Config("triton", {**TILE, "variant": name})
        if name in ("pointer", "persistent")
        else Config("library", {"call": name, "precision": "ieee"})
    )
    operands = KERNEL.operands(asked, InputSource(1, "cuda"))
    out = torch.empty(1, 264, 280, dtype=torch.bfloat16, device="cuda")
    launch = KERNEL.implementation(config.implementation).bind(asked, config, device)
    launch(operands, {"out": out})
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(operands, {"out": out})
    operands["x"].copy_(KERNEL.operands(asked, InputSource(2, "cuda"))["x"])
    out.fill_(float("nan"))
    graph.replay()
    expected = KERNEL.reference(asked, operands)["out"].value
    assert relative_error(out, expected) < 2**-8


@pytest.mark.parametrize("variant", ["pointer", "descriptor", "persistent"])
def test_offsets_beyond_2_to_the_31(variant: str, device: Device) -> None:
    """An output of more than 2^31 elements, of which the last rows are checked."""
    if device.target < 90 and variant != "pointer":
        pytest.skip("no tensor memory accelerator")
    m, n, k, tail = 33_000, 65_544, 64, 130
    if device.memory_bytes < 16 * 2**30:
        pytest.skip("needs 16 GiB")
    assert (m - tail) * n > 2**31
    asked = KERNEL.signature.problem({"m": m, "n": n, "k": k, "dtype": "bfloat16"})
    operands = KERNEL.operands(asked, InputSource(1, "cuda"))
    out = torch.full((1, m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
    config = Config("triton", {**TILE, "variant": variant})
    KERNEL.implementation("triton").bind(asked, config, device)(operands, {"out": out})
    last = {**operands, "x": operands["x"][:, -tail:]}
    expected = KERNEL.reference(KERNEL.problem_of(last, {}), last)["out"].value
    assert relative_error(out[:, -tail:], expected) < 2**-8
    assert not out[0, :: m // 7].isnan().any()
