"""The row kernels on a real GPU: a sample of each implementation's space, judged by the acceptance rule."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tunedex.core.config import Config  # noqa: E402
from tunedex.core.device import Device  # noqa: E402
from tunedex.kernels import get_kernel  # noqa: E402
from tunedex.kernels.base import CompileError, InputSource, Launch, OverLimit, Tensors  # noqa: E402
from tunedex.tuner.space import Space  # noqa: E402
from tunedex.tuner.verify import judge, relative_error  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

NAMES = ("layernorm_gelu_residual", "softmax")
SAMPLE = 6

PROBLEMS: tuple[dict[str, Any], ...] = (
    {"batch": 2, "rows": 777, "cols": 3840, "dtype": "bfloat16"},
    {"batch": 8, "rows": 1000, "cols": 4224, "dtype": "float16"},
    {"batch": 3, "rows": 301, "cols": 1001, "dtype": "float32"},
    {"batch": 2, "rows": 301, "cols": 1001, "dtype": "bfloat16"},
    {"batch": 2, "rows": 301, "cols": 1000, "dtype": "bfloat16", "layout": "strided"},
    {"batch": 2, "rows": 301, "cols": 1000, "dtype": "float16", "layout": "strided", "alignment": 2},
    {"batch": 2, "rows": 301, "cols": 1000, "dtype": "float32", "alignment": 4},
    {"rows": 3, "cols": 7, "dtype": "float16"},
    {"rows": 5, "cols": 32768, "dtype": "bfloat16"},
)


def device() -> Device:
    """What the first CUDA device is, as far as spaces and launches ask."""
    found = torch.cuda.get_device_properties(0)
    return Device(
        kind="cuda",
        name=found.name,
        multiprocessors=found.multi_processor_count,
        memory_bytes=found.total_memory,
        compute_capability=(found.major, found.minor),
        l2_bytes=found.L2_cache_size,
        shared_memory_bytes=found.shared_memory_per_block_optin,
    )


def bound(name: str, parameters: dict[str, Any], config: Config) -> tuple[Launch, Tensors, Tensors]:
    """The launch of ``config``, operands, and poisoned outputs."""
    kernel = get_kernel(name)
    problem = kernel.signature.problem(parameters)
    operands = kernel.operands(problem, InputSource(9, "cuda", outliers=True, strided=problem.layout == "strided"))
    outputs = {
        output: torch.full(spec.shape, float("nan"), dtype=getattr(torch, spec.dtype), device="cuda")
        for output, spec in kernel.outputs(problem).items()
    }
    return kernel.implementation(config.implementation).bind(problem, config, device()), operands, outputs


def check(name: str, parameters: dict[str, Any], config: Config) -> None:
    kernel = get_kernel(name)
    problem = kernel.signature.problem(parameters)
    launch, operands, outputs = bound(name, parameters, config)
    launch(operands, outputs)
    reference = kernel.reference(problem, operands)["out"]
    verdict = judge(
        outputs["out"],
        reference,
        dtype=problem.dtype,
        reduction_length=kernel.reduction_length(problem),
        eager_error=relative_error(kernel.eager(problem, operands)["out"], reference.value),
    )
    assert verdict.lossless, f"{config}: {verdict.detail}"


@pytest.mark.parametrize("parameters", PROBLEMS, ids=str)
@pytest.mark.parametrize("implementation", ["triton", "cuda", "library"])
@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_the_space(name: str, implementation: str, parameters: dict[str, Any]) -> None:
    kernel = get_kernel(name)
    space = Space.of(kernel, kernel.signature.problem(parameters), device())
    configs = [config for config in space if config.implementation == implementation]
    assert configs, space.refused
    chosen = random.Random(4).sample(configs, min(SAMPLE, len(configs)))
    if space.default and space.default.implementation == implementation:
        chosen.append(space.default)
    for config in chosen:
        try:
            kernel.implementation(implementation).compile(space.problem, config, device())
        except OverLimit:
            continue
        except CompileError as error:
            pytest.fail(f"{config}: {error}")
        check(name, parameters, config)


@pytest.mark.parametrize("form", ["erf", "tanh"])
@pytest.mark.parametrize("math", ["exact", "fitted"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gelu_forms(form: str, math: str, dtype: str) -> None:
    kernel = get_kernel("layernorm_gelu_residual")
    parameters = {"rows": 500, "cols": 3840, "dtype": dtype, "gelu": form}
    default = kernel.signature.default(kernel.signature.problem(parameters), device())
    assert default is not None
    check("layernorm_gelu_residual", parameters, Config("triton", {**default.values, "gelu_math": math}))


@pytest.mark.parametrize("streams", [1, 2, 8])
@pytest.mark.parametrize("implementation", ["triton", "cuda"])
def test_streams_join_eagerly_and_in_a_graph(implementation: str, streams: int) -> None:
    """Results are complete once the current stream is, and a captured launch follows its inputs."""
    kernel = get_kernel("softmax")
    parameters = {"batch": 8, "rows": 512, "cols": 4224, "dtype": "bfloat16"}
    space = Space.of(kernel, kernel.signature.problem(parameters), device())
    config = next(c for c in space if c.implementation == implementation and c.streams == streams)
    launch, operands, outputs = bound("softmax", parameters, config)
    launch(operands, outputs)
    expected = torch.softmax(operands["x"].double(), -1)
    assert torch.allclose(outputs["out"].double(), expected, atol=1e-2)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(operands, outputs)
    operands["x"].mul_(-0.5)
    outputs["out"].fill_(float("nan"))
    graph.replay()
    assert torch.allclose(outputs["out"].double(), torch.softmax(operands["x"].double(), -1), atol=1e-2)


@pytest.mark.parametrize("implementation", ["triton", "cuda"])
@pytest.mark.parametrize("name", NAMES)
def test_offsets_beyond_32_bits(name: str, implementation: str) -> None:
    """The last rows of operands with more than 2^31 elements, apart by a pitch so that one buffer serves."""
    rows, cols, pitch = 3, 64, 2**30 + 8
    if torch.cuda.get_device_properties(0).total_memory < 24 * 2**30:
        pytest.skip("needs 24 GiB")
    kernel = get_kernel(name)
    buffer = torch.empty(pitch * (rows - 1) + cols, dtype=torch.float16, device="cuda")
    x = buffer.as_strided((rows, cols), (pitch, 1))
    x.copy_(torch.randn(rows, cols))
    operands = {"x": x}
    if name == "layernorm_gelu_residual":
        vector = torch.ones(cols, dtype=torch.float16, device="cuda")
        operands |= {"weight": vector, "bias": vector, "residual": x}
    problem = kernel.problem_of(operands, {})
    space = Space.of(kernel, problem, device())
    config = next(c for c in space if c.implementation == implementation)
    out = torch.full((1, rows, cols), float("nan"), dtype=torch.float16, device="cuda")
    kernel.implementation(implementation).bind(problem, config, device())(operands, {"out": out})
    expected = kernel.eager(problem, operands)["out"]
    assert torch.allclose(out[0].float(), expected.float(), atol=1e-2)
