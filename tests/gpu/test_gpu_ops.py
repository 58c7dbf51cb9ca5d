"""On a real GPU: one key whoever asks, what NVML says beside torch, and ops with their numerics, graphs and streams."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

import tunedex
from tunedex import ops
from tunedex.client import this_device
from tunedex.core.cuda import from_properties
from tunedex.core.device import Device
from tunedex.kernels.base import InputSource
from tunedex.kernels.registry import get_kernel
from tunedex.tuner.devices import detect, environment_of, sample

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

#: Rounding of one result, and what sums in another order may add, by dtype: relative to the reference's scale.
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}

CASES: list[tuple[str, Callable[..., torch.Tensor], dict[str, int]]] = [
    ("layernorm_gelu_residual", ops.layernorm_gelu_residual, {"batch": 2, "rows": 33, "cols": 1000}),
    ("softmax", ops.softmax, {"batch": 2, "rows": 33, "cols": 1000}),
    ("linear_gelu", ops.linear_gelu, {"batch": 2, "m": 65, "n": 200, "k": 136}),
]
every_case = pytest.mark.parametrize(("kernel", "run", "dims"), CASES, ids=[case[0] for case in CASES])


@pytest.fixture(autouse=True)
def _own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TUNEDEX_URL", "TUNEDEX_DB", "TUNEDEX_PIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(tunedex, "_clients", {})
    monkeypatch.setattr(tunedex, "_last", (None, "stable", None))
    ops._plans.clear()
    yield
    ops._plans.clear()


def accept(kernel: str, operands: Mapping[str, torch.Tensor], result: torch.Tensor, dims: Mapping[str, int]) -> None:
    problem = get_kernel(kernel).signature.problem({**dims, "dtype": result.dtype})
    (reference,) = get_kernel(kernel).reference(problem, operands).values()
    apart = (result.double().view(reference.value.shape) - reference.value).abs() / reference.scale
    assert result.isfinite().all()
    assert float(apart.max()) < TOLERANCE[problem.dtype]


def test_tuner_client_and_driver_name_one_device() -> None:
    tuned = detect("cuda:0")[0].device
    assert from_properties(torch.cuda.get_device_properties(0)).key == tuned.key
    torch.zeros(1, device="cuda")
    assert this_device().key == tuned.key
    code = "import json; from tunedex.client import this_device; print(json.dumps(this_device().to_dict()))"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert Device.from_dict(json.loads(asked.stdout)).key == tuned.key


def test_nvml_describes_the_device_that_torch_sees() -> None:
    for found in detect("cuda"):
        assert found.uuid
        assert found.uuid.split("-", 1)[0] in ("GPU", "MIG")
        assert found.device.attributes["power_limit_w"] > 0
        assert sample(found.device).clock_mhz
        environment = environment_of(found.device)
        assert environment.driver
        assert environment.cuda
        assert environment.triton


@every_case
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numerics(kernel: str, run: Callable[..., torch.Tensor], dims: dict[str, int], dtype: str) -> None:
    problem = get_kernel(kernel).signature.problem({**dims, "dtype": dtype})
    operands = get_kernel(kernel).operands(problem, InputSource(0, "cuda"))
    accept(kernel, operands, run(**operands), dims)
    (plan,) = ops._plans.values()
    assert plan.config == get_kernel(kernel).signature.default(problem, detect("cuda:0")[0].device)


@every_case
def test_a_bound_call_is_captured_and_an_unbound_one_too(
    kernel: str, run: Callable[..., torch.Tensor], dims: dict[str, int]
) -> None:
    problem = get_kernel(kernel).signature.problem({**dims, "dtype": "bfloat16"})
    operands = get_kernel(kernel).operands(problem, InputSource(0, "cuda"))
    other = get_kernel(kernel).operands(problem.at_batch(3), InputSource(1, "cuda"))
    for _ in range(2):
        out = torch.empty_like(run(**operands))
    unseen = torch.empty((3, *out.shape[1:]), dtype=out.dtype, device="cuda")
    torch.nn.functional.linear(other["x"], other["x"][0])  # the library's own workspace, outside of the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(**operands, out=out)
        run(**other, out=unseen)
    out.fill_(float("nan"))
    unseen.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    accept(kernel, operands, out, dims)
    accept(kernel, other, unseen, {**dims, "batch": 3})


@every_case
def test_a_call_runs_on_the_current_stream(kernel: str, run: Callable[..., torch.Tensor], dims: dict[str, int]) -> None:
    problem = get_kernel(kernel).signature.problem({**dims, "dtype": "bfloat16"})
    operands = get_kernel(kernel).operands(problem, InputSource(0, "cuda"))
    late = {name: torch.zeros_like(tensor) for name, tensor in operands.items()}
    run(**operands)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        for name, tensor in operands.items():
            late[name].copy_(tensor)
        result = run(**late)
    stream.synchronize()
    accept(kernel, operands, result, dims)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second GPU")
def test_tensors_of_another_than_the_current_device() -> None:
    x = torch.randn(8, 4096, device="cuda:1")
    with torch.cuda.device(0):
        torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
