"""The kernels as functions: numerics, layouts, out=, gradients, and nothing to compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import pytest
import torch
from ops_cases import CASES, Case, accept, every_case

from tunedex import ops
from tunedex.core.errors import BadInput


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


@every_case
@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (0, 3, 8), (2, 3, 0, 8)], ids=str)
@pytest.mark.parametrize("gradient", [False, True], ids=["plain", "gradient"])
def test_nothing_to_compute_whatever_the_strides(case: Case, shape: tuple[int, ...], gradient: bool) -> None:
    x = torch.empty(shape, requires_grad=gradient)[..., ::2]
    assert x.stride(-1) == 2
    vector = torch.zeros(4)
    operands = {
        "softmax": {},
        "linear_gelu": {"weight": torch.zeros(3, 4), "bias": torch.zeros(3)},
        "layernorm_gelu_residual": {"weight": vector, "bias": vector, "residual": torch.empty(shape)[..., ::2]},
    }[case.kernel]
    result = case.run(x=x, **operands)
    expected = _unfused(case, {"x": x, **operands})
    assert (result.shape, result.dtype, result.requires_grad) == (expected.shape, expected.dtype, gradient)


def test_no_rows_of_a_weight_that_has_strides() -> None:
    result = ops.linear_gelu(torch.zeros(2, 4), torch.empty(0, 8)[:, ::2], torch.empty(0))
    assert result.shape == (2, 0)


@pytest.mark.parametrize("eps", [10**400, Fraction(10**400), -1, float("nan"), float("inf"), "1", None, 1j])
def test_an_eps_that_is_no_number_of_at_least_0_is_refused(eps: Any) -> None:
    x, vector = torch.zeros(3, 4), torch.zeros(4)
    with pytest.raises(BadInput, match="needs eps as a finite number of at least 0, not ") as caught:
        ops.layernorm_gelu_residual(x, vector, vector, x, eps=eps)
    assert len(str(caught.value)) < 200


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
