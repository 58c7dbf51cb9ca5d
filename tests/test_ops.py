"""The kernels as functions: numerics, layouts, gradients, out=, fallbacks, and that published answers are run."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import tunedex
from tunedex import ops
from tunedex.core import host
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.errors import BadInput
from tunedex.core.measurement import Measurement, Policy
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.db import open_store
from tunedex.kernels.base import InputSource, Launch
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


@pytest.fixture(autouse=True)
def _own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings, no database and nothing bound yet."""
    for name in ("TUNEDEX_URL", "TUNEDEX_DB", "TUNEDEX_PIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TUNEDEX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tunedex, "_clients", {})
    monkeypatch.setattr(tunedex, "_last", (None, "stable", None))
    ops._plans.clear()
    yield
    ops._plans.clear()


def accept(case: Case, problem: Problem, operands: Mapping[str, torch.Tensor], result: torch.Tensor) -> None:
    """``result`` lies within a few roundings of the float64 reference."""
    (reference,) = get_kernel(case.kernel).reference(problem, operands).values()
    apart = (result.double().view(reference.value.shape) - reference.value).abs() / reference.scale
    assert result.isfinite().all()
    assert float(apart.max()) < TOLERANCE[problem.dtype]


def publish(path: Path, case: Case, problem: Problem, *configs: Config) -> None:
    measured: dict[str, Any] = {
        "samples": 9,
        "policy": Policy.EAGER_COLD,
        "error": 1e-7,
        "lossless": True,
        "output_hash": "aa",
    }
    kernel = get_kernel(case.kernel)
    rows = [
        Row(rank, config, Measurement(10.0 + rank, 9.0, 12.0, **measured), kernel.signature.version, "e" * 32)
        for rank, config in enumerate(configs)
    ]
    with open_store(str(path)) as store:
        store.register_device(host.cpu())
        store.register_signatures([kernel.signature])
        store.publish(host.cpu().key, {problem: rows}, sweep=None)


def running() -> list[Config | None]:
    """The configs that are bound now."""
    return [plan.config for plan in ops._plans.values()]


@every_case
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_numerics(case: Case, dtype: str) -> None:
    problem = case.problem(dtype)
    operands = case.tensors(problem)
    result = case.run(**operands)
    assert result.dtype == operands["x"].dtype
    accept(case, problem, operands, result)


@every_case
def test_the_other_form_of_gelu(case: Case) -> None:
    if case.kernel == "softmax":
        with pytest.raises(TypeError):
            case.run(**case.tensors(case.problem()), gelu="tanh")
        return
    for form in ("erf", "tanh"):
        problem = case.problem(gelu=form)
        operands = case.tensors(problem)
        accept(case, problem, operands, case.run(**operands, gelu=form))


@every_case
def test_strided_rows(case: Case) -> None:
    problem = case.problem()
    operands = case.tensors(problem, strided=True)
    assert not operands["x"].is_contiguous()
    accept(case, problem, operands, case.run(**operands))


@every_case
@pytest.mark.parametrize("lead", [(), (6,), (2, 3), (1, 2, 3), (2, 1, 3, 1)])
def test_any_leading_dimensions(case: Case, lead: tuple[int, ...]) -> None:
    operands = case.tensors(case.problem())
    shaped = {
        name: tensor.reshape(-1)[: _count(lead) * tensor.shape[-1]].reshape(*lead, tensor.shape[-1]).contiguous()
        if name in ("x", "residual")
        else tensor
        for name, tensor in operands.items()
    }
    result = case.run(**shaped)
    expected = _unfused(case, shaped)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def _count(lead: tuple[int, ...]) -> int:
    return int(torch.Size(lead).numel())


def _unfused(case: Case, operands: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The chain that a user would write."""
    functional = torch.nn.functional
    x = operands["x"]
    if case.kernel == "softmax":
        return torch.softmax(x, -1)
    if case.kernel == "linear_gelu":
        return functional.gelu(functional.linear(x, operands["weight"], operands["bias"]), approximate="tanh")
    normal = functional.layer_norm(x, x.shape[-1:], operands["weight"], operands["bias"])
    return functional.gelu(normal) + operands["residual"]


@every_case
def test_transposed_and_expanded_operands(case: Case) -> None:
    operands = case.tensors(case.problem(batch=1))
    operands = {name: t[0] if t.dim() == 3 else t for name, t in operands.items()}
    turned = {**operands, "x": operands["x"].t().contiguous().t()}
    torch.testing.assert_close(case.run(**turned), _unfused(case, operands), rtol=1e-4, atol=1e-5)
    repeated = {name: t.expand(3, *t.shape) if name in ("x", "residual") else t for name, t in operands.items()}
    torch.testing.assert_close(case.run(**repeated), _unfused(case, repeated), rtol=1e-4, atol=1e-5)


@every_case
def test_an_operand_that_does_not_begin_aligned(case: Case) -> None:
    problem = case.problem()
    operands = case.tensors(problem)
    x = operands["x"]
    moved = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    accept(case, problem, operands, case.run(**{**operands, "x": moved}))


@every_case
def test_out_is_written_and_returned(case: Case) -> None:
    problem = case.problem()
    operands = case.tensors(problem)
    out = torch.full_like(case.run(**operands), float("nan"))
    assert case.run(**operands, out=out) is out
    accept(case, problem, operands, out)
    buffer = torch.full((out.numel() + 2,), float("nan"))
    unaligned = buffer[1:-1].view(out.shape)
    assert case.run(**operands, out=unaligned) is unaligned
    accept(case, problem, operands, unaligned)
    assert buffer[[0, -1]].isnan().all()


@every_case
def test_an_out_that_does_not_fit_is_refused_and_left_alone(case: Case) -> None:
    operands = case.tensors(case.problem())
    right = case.run(**operands)
    wrong = [
        torch.zeros(*right.shape[:-1], right.shape[-1] + 1),
        torch.zeros_like(right, dtype=torch.float64),
        torch.zeros(*right.shape[:-1], right.shape[-1] * 2)[..., ::2],
        torch.zeros_like(right, device="meta"),
    ]
    for out in wrong:
        with pytest.raises(BadInput, match="needs"):
            case.run(**operands, out=out)
    assert not any(out.any() for out in wrong[:3])


@every_case
def test_an_out_over_an_operand_is_refused(case: Case) -> None:
    operands = case.tensors(case.problem())
    right = case.run(**operands)
    memory = torch.zeros(operands["x"].numel() + right.numel())
    x = memory[: operands["x"].numel()].view(operands["x"].shape).copy_(operands["x"])
    over = memory[x.numel() - 4 : x.numel() - 4 + right.numel()].view(right.shape)
    with pytest.raises(BadInput, match="apart from x in memory"):
        case.run(**{**operands, "x": x}, out=over)
    beside = memory[x.numel() :].view(right.shape)
    torch.testing.assert_close(case.run(**{**operands, "x": x}, out=beside), right)


@every_case
def test_a_gradient_goes_through_the_unfused_chain(case: Case) -> None:
    operands = {name: t.clone().requires_grad_() for name, t in case.tensors(case.problem()).items()}
    result = case.run(**operands)
    upstream = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(result, list(operands.values()), upstream)
    expected = torch.autograd.grad(_unfused(case, operands), list(operands.values()), upstream)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(BadInput, match="no gradient through out="):
        case.run(**operands, out=torch.empty_like(result))
    with torch.no_grad():
        assert not case.run(**operands).requires_grad


@every_case
@pytest.mark.parametrize("dim", ["batch", "first", "last"])
def test_nothing_to_compute(case: Case, dim: str) -> None:
    operands = case.tensors(case.problem())
    cut = {
        "batch": lambda t: t[:0],
        "first": lambda t: t[:, :0],
        "last": lambda t: t[..., :0],
    }[dim]
    operands = {
        name: cut(t) if name in ("x", "residual") else (t[..., :0] if dim == "last" and t.dim() < 3 else t)
        for name, t in operands.items()
    }
    if case.kernel == "linear_gelu":
        operands["bias"] = torch.randn(33)
    result = case.run(**operands)
    assert result.shape == _unfused(case, operands).shape
    torch.testing.assert_close(result, _unfused(case, operands))
    out = torch.full_like(result, float("nan"))
    torch.testing.assert_close(case.run(**operands, out=out), result)


def test_eps_is_passed_on() -> None:
    case = CASES[0]
    operands = case.tensors(case.problem())
    x = operands["x"] * 1e-3
    found = ops.layernorm_gelu_residual(**{**operands, "x": x}, eps=0.5)
    normal = torch.nn.functional.layer_norm(x, x.shape[-1:], operands["weight"], operands["bias"], 0.5)
    torch.testing.assert_close(found, torch.nn.functional.gelu(normal) + operands["residual"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.softmax(torch.tensor(1.0)),
        lambda: ops.softmax(torch.zeros(3, 4, dtype=torch.float64)),
        lambda: ops.softmax(torch.zeros(3, 4, dtype=torch.int32)),
        lambda: ops.softmax(torch.zeros(3, 4, device="meta")),
        lambda: ops.linear_gelu(torch.zeros(3, 4), torch.tensor(1.0), torch.zeros(5)),
        lambda: ops.linear_gelu(torch.zeros(3, 4), torch.zeros(5, 6), torch.zeros(5)),
        lambda: ops.linear_gelu(torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(4)),
        lambda: ops.linear_gelu(torch.zeros(3, 4), torch.zeros(5, 4), torch.zeros(5), gelu="fast"),
        lambda: ops.layernorm_gelu_residual(torch.zeros(3, 4), torch.zeros(4), torch.zeros(4), torch.zeros(4, 3)),
        lambda: ops.layernorm_gelu_residual(
            torch.zeros(3, 4), torch.zeros(4), torch.zeros(4).half(), torch.zeros(3, 4)
        ),
    ],
)
def test_tensors_that_do_not_go_together_are_refused(call: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(BadInput) as caught:
        call()
    assert "\n" not in str(caught.value)


@every_case
def test_the_published_config_is_the_one_that_runs(case: Case, tmp_path: Path) -> None:
    problem = case.problem()
    operands = case.tensors(problem)
    case.run(**operands)
    default = tunedex.default_client("cpu").answer(problem).config
    assert default is not None
    assert running() == [default]
    assert default != LIBRARY[case.kernel]
    publish(tmp_path / "mine.db", case, problem, LIBRARY[case.kernel])
    client = tunedex.connect(tmp_path / "mine.db", device="cpu")
    accept(case, problem, operands, case.run(**operands))
    assert running() == [LIBRARY[case.kernel]]
    publish(tmp_path / "mine.db", case, problem, default)
    client.refresh()
    case.run(**operands)
    assert running() == [default]


@pytest.mark.parametrize(
    "unusable",
    [
        Config("absent"),
        Config("triton", {"block": 64}),
        Config("library", {"call": "nonsense"}),
        Config("numba", {"rows_per_task": -1}),
    ],
    ids=str,
)
def test_a_config_that_cannot_run_gives_way_to_the_next_within_the_call(
    unusable: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES[2]
    problem = case.problem()
    operands = case.tensors(problem)
    publish(tmp_path / "mine.db", case, problem, unusable, LIBRARY[case.kernel])
    tunedex.connect(tmp_path / "mine.db", device="cpu")
    for _ in range(3):
        accept(case, problem, operands, case.run(**operands))
    assert running() == [LIBRARY[case.kernel]]
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert f"does not run with {unusable}" in warned[0]


class Broken:
    """Binds launches that fail, at once or from the second call on."""

    def __init__(self, bind: Callable[..., Launch], good_calls: int) -> None:
        self.bind, self.left = bind, good_calls

    def __call__(self, problem: Problem, config: Config, device: Device) -> Launch:
        launch = self.bind(problem, config, device)

        def failing(operands: Any, outputs: Any, **options: Any) -> None:
            if self.left <= 0:
                outputs["out"].fill_(float("nan"))
                raise RuntimeError("out of resource: shared memory\nand more")
            self.left -= 1
            launch(operands, outputs, **options)

        return failing


@every_case
@pytest.mark.parametrize("good_calls", [0, 2])
def test_a_launch_that_fails_gives_way_to_the_next_and_is_not_tried_again(
    case: Case, good_calls: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = case.problem()
    operands = case.tensors(problem)
    library = get_kernel(case.kernel).implementation("library")
    monkeypatch.setattr(library, "bind", Broken(library.bind, good_calls), raising=False)
    publish(tmp_path / "mine.db", case, problem, LIBRARY[case.kernel])
    tunedex.connect(tmp_path / "mine.db", device="cpu")
    for _ in range(5):
        accept(case, problem, operands, case.run(**operands))
    (config,) = running()
    assert config is not None
    assert config.implementation == "numba"
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert warned[0].endswith("RuntimeError: out of resource: shared memory")


@every_case
def test_where_no_config_runs_the_unfused_chain_does(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = get_kernel(case.kernel)
    for name in ("numba", "library"):
        implementation = kernel.implementation(name)
        monkeypatch.setattr(implementation, "bind", Broken(implementation.bind, 0), raising=False)
    problem = case.problem()
    operands = case.tensors(problem)
    for _ in range(2):
        accept(case, problem, operands, case.run(**operands))
    assert running() == [None]


@every_case
def test_while_a_graph_is_captured_nothing_is_bound(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = case.problem()
    operands = case.tensors(problem)
    with monkeypatch.context() as patch:
        patch.setattr(ops, "_capturing", lambda tensor: True)
        accept(case, problem, operands, case.run(**operands))
        assert running() == [None]
    accept(case, problem, operands, case.run(**operands))
    (bound,) = running()
    assert bound is not None
    monkeypatch.setattr(ops, "_capturing", lambda tensor: True)
    accept(case, problem, operands, case.run(**operands))
    assert running() == [bound]


def test_memory_that_runs_out_is_the_callers_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = get_kernel("softmax").implementation("numba")

    def bind(*_: object) -> Launch:
        def launch(operands: Any, outputs: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        return launch

    with monkeypatch.context() as patch:
        patch.setattr(numba, "bind", bind, raising=False)
        with pytest.raises(torch.OutOfMemoryError):
            ops.softmax(torch.zeros(3, 4))
    x = torch.zeros(3, 4)
    torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
    assert [config.implementation for config in running() if config] == ["numba"]


def test_threads_share_plans() -> None:
    x = torch.randn(64, 512)
    expected = torch.softmax(x, -1)
    results: list[torch.Tensor] = []
    start = threading.Barrier(6)

    def work() -> None:
        start.wait()
        results.extend(ops.softmax(x) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 120
    for result in results:
        torch.testing.assert_close(result, expected)


FORK = """
import os, torch
from tunedex import ops
x = torch.randn(6, 40)
ops.softmax(x)
assert [plan.config.implementation for plan in ops._plans.values()] == ["numba"]
child = os.fork()
if child == 0:
    good = torch.allclose(ops.softmax(x), torch.softmax(x, -1), atol=1e-6)
    os._exit(0 if good else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.allclose(ops.softmax(x), torch.softmax(x, -1), atol=1e-6)
"""


def test_a_child_of_a_process_that_ran_kernels_runs_them_too() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_MOST_PLANS", 3)
    for rows in range(1, 12):
        ops.softmax(torch.zeros(rows, 4))
    assert len(ops._plans) <= 3


@every_case
def test_inside_torch_compile_a_call_is_one_operator(case: Case) -> None:
    compiled = torch.compile(lambda operands: case.run(**operands) * 2, backend="aot_eager", fullgraph=True)
    for batch in (2, 3):
        problem = case.problem(batch=batch)
        operands = case.tensors(problem)
        accept(case, problem, operands, compiled(operands) / 2)
    assert len(ops._plans) == 2
    torch._dynamo.reset()


@every_case
def test_inside_torch_compile_gradients_and_out_still_work(case: Case) -> None:
    compiled = torch.compile(lambda operands, out: case.run(**operands, out=out), backend="aot_eager")
    operands = case.tensors(case.problem())
    out = torch.empty_like(case.run(**operands))
    assert compiled(operands, out) is out
    accept(case, case.problem(), operands, out)
    wanted = {name: t.clone().requires_grad_() for name, t in operands.items()}
    compiled(wanted, None).sum().backward()
    assert all(t.grad is not None for t in wanted.values())
    torch._dynamo.reset()
