"""Tensors that are not just memory: fake, traced, transformed, negated, strided, or no tensors at all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops_cases import CASES, Case, every_case, running
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from tunedex import ops
from tunedex.core.errors import BadInput
from tunedex.kernels.registry import get_kernel

NORM, SOFTMAX, LINEAR = CASES


def prepared(case: Case, seed: int = 0) -> dict[str, torch.Tensor]:
    return case.tensors(case.problem(), seed=seed)


def eager(case: Case, operands: dict[str, torch.Tensor]) -> torch.Tensor:
    (result,) = get_kernel(case.kernel).eager(case.problem(), operands).values()
    return result


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@every_case
def test_fake_tensors_have_a_result_of_the_right_shape_and_no_memory_is_read(case: Case) -> None:
    operands = prepared(case)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(tensor) for name, tensor in operands.items()}
        result = case.run(**fake)
        out = torch.empty_like(result)
        assert case.run(**fake, out=out) is out
    assert type(result) is type(fake["x"])
    assert result.shape == eager(case, operands).shape
    assert running() == []


@every_case
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_records_one_operator(case: Case, mode: str) -> None:
    operands = prepared(case)
    graph = make_fx(lambda given: case.run(**given) * 2, tracing_mode=mode)(operands)
    called = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert f"tunedex.{case.kernel}.default" in called
    assert not any("empty" in target for target in called)
    others = prepared(case, seed=5)
    close(graph(others), eager(case, others) * 2)


@every_case
def test_export_holds_one_operator(case: Case) -> None:
    class Model(torch.nn.Module):
        def forward(self, operands: dict[str, torch.Tensor]) -> torch.Tensor:
            return case.run(**operands) * 2

    exported = torch.export.export(Model(), (prepared(case),))
    assert f"tunedex.{case.kernel}.default" in {str(node.target) for node in exported.graph.nodes}
    others = prepared(case, seed=5)
    close(exported.module()(others), eager(case, others) * 2)


@every_case
@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
def test_a_trace_is_right_for_other_values(case: Case) -> None:
    operands = prepared(case)
    names = list(operands)
    traced = torch.jit.trace(lambda *given: case.run(**dict(zip(names, given, strict=True))), tuple(operands.values()))
    others = prepared(case, seed=5)
    close(traced(*others.values()), eager(case, others))
    fewer = {name: t[:1] if name in ("x", "residual") else t for name, t in others.items()}
    close(traced(*fewer.values()), eager(case, fewer))


@every_case
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # which torch's jvp uses
def test_transforms_go_through(case: Case) -> None:
    operands = prepared(case)
    rest = {name: tensor for name, tensor in operands.items() if name != "x"}
    x, direction = operands["x"], torch.randn(operands["x"].shape, generator=torch.Generator().manual_seed(1))

    def mine(value: torch.Tensor) -> torch.Tensor:
        return case.run(x=value, **rest)

    def theirs(value: torch.Tensor) -> torch.Tensor:
        return eager(case, {"x": value, **rest})

    gradients = [torch.func.grad(lambda v, f=f: f(v).square().sum())(x) for f in (mine, theirs)]
    torch.testing.assert_close(*gradients)
    for found, expected in zip(*(torch.func.jvp(f, (x,), (direction,)) for f in (mine, theirs)), strict=True):
        torch.testing.assert_close(found, expected)
    with forward_ad.dual_level():
        tangents = [forward_ad.unpack_dual(f(forward_ad.make_dual(x, direction))).tangent for f in (mine, theirs)]
        assert tangents[0] is not None
        torch.testing.assert_close(*tangents)
        close(mine(x), theirs(x))  # a level is open, and nothing has a tangent

    names = list(operands)
    stacked = [torch.stack([tensor, tensor * 0.5]) for tensor in operands.values()]
    mapped = torch.vmap(lambda *given: case.run(**dict(zip(names, given, strict=True))))(*stacked)
    halves = {name: tensor[1] for name, tensor in zip(names, stacked, strict=True)}
    close(mapped[1], eager(case, halves))


@every_case
def test_functional_tensors_are_one_operator(case: Case) -> None:
    operands = prepared(case)
    functional = {name: torch._to_functional_tensor(tensor) for name, tensor in operands.items()}
    result = case.run(**functional)
    assert torch._is_functional_tensor(result)
    close(torch._from_functional_tensor(result), eager(case, operands))


@every_case
def test_negated_views_have_their_own_values(case: Case) -> None:
    operands = prepared(case)
    expected = case.run(**operands)
    for name, tensor in operands.items():
        negated = torch._neg_view(tensor.neg())
        assert negated.is_neg()
        close(case.run(**{**operands, name: negated}), expected)
    buffer = torch.full_like(expected, float("nan"))
    out = torch._neg_view(buffer)
    assert case.run(**operands, out=out) is out
    close(buffer.neg(), expected)


@every_case
def test_operands_of_any_strides_are_taken(case: Case) -> None:
    operands = prepared(case)
    for name, tensor in operands.items():
        wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] * 2), float("nan"))
        sliced = wide[..., ::2].copy_(tensor)
        close(case.run(**{**operands, name: sliced}), eager(case, operands))
        if name == "x" and case is NORM:
            continue  # a row of one value has no variance, and its normal form no digits
        repeated = tensor[..., :1].expand(tensor.shape)
        close(case.run(**{**operands, name: repeated}), eager(case, {**operands, name: repeated}))


@every_case
def test_a_backward_pass_sees_that_out_was_written(case: Case) -> None:
    operands = prepared(case)
    weight = torch.ones_like(case.run(**operands), requires_grad=True)
    saved = torch.ones_like(weight.detach())
    total = (weight * saved).sum()
    case.run(**operands, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()
    with torch.inference_mode():
        kept = torch.empty_like(saved)
        close(case.run(**operands, out=kept), saved)


@every_case
def test_an_out_that_requires_a_gradient_is_refused_while_gradients_are_on(case: Case) -> None:
    operands = prepared(case)
    expected = case.run(**operands)
    out = torch.zeros_like(expected, requires_grad=True)
    with pytest.raises(BadInput, match="an out that requires no gradient"):
        case.run(**operands, out=out)
    assert not out.detach().any()
    with torch.no_grad():
        case.run(**operands, out=out)
    close(out.detach(), expected)


@every_case
def test_what_is_no_dense_tensor_is_refused_in_one_line(case: Case) -> None:
    operands = prepared(case)
    plain = operands["x"]
    given: list[Any] = [None, [1.0, 2.0], 3.0, plain.numpy(), plain.to_sparse(), torch.tensor([1], dtype=torch.uint8)]
    for name in operands:
        for wrong in given:
            with pytest.raises(BadInput) as caught:
                case.run(**{**operands, name: wrong})
            assert "\n" not in str(caught.value)
    for wrong in given[1:]:
        with pytest.raises(BadInput):
            case.run(**operands, out=wrong)
    freed = torch.zeros_like(plain)
    freed.untyped_storage().resize_(0)
    with pytest.raises(BadInput, match="in memory"):
        case.run(**{**operands, "x": freed})


@pytest.mark.parametrize("eps", ["1", None, float("nan"), float("inf"), -1.0, [1e-5]])
def test_a_wrong_eps_is_the_callers_mistake_and_costs_no_config(eps: Any, caplog: pytest.LogCaptureFixture) -> None:
    operands = prepared(NORM)
    NORM.run(**operands)
    bound = running()
    with pytest.raises(BadInput, match="eps"):
        NORM.run(**operands, eps=eps)
    NORM.run(**operands)
    assert running() == bound
    assert bound != [None]
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("run", [NORM.run, LINEAR.run])
@pytest.mark.parametrize("gelu", [None, ["erf"], "ERF", 3])
def test_a_wrong_form_of_gelu_is_refused(run: Callable[..., torch.Tensor], gelu: Any) -> None:
    operands = prepared(NORM if run is NORM.run else LINEAR)
    with pytest.raises(BadInput, match="gelu"):
        run(**operands, gelu=gelu)


@every_case
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_autocast_changes_nothing(case: Case, wants_gradient: bool) -> None:
    operands = {name: t.requires_grad_(wants_gradient) for name, t in prepared(case).items()}
    expected = eager(case, operands)
    with torch.autocast("cpu", torch.bfloat16):
        result = case.run(**operands)
    assert result.dtype == torch.float32
    close(result, expected)


@every_case
def test_a_subclass_without_a_mind_of_its_own_is_a_tensor(case: Case) -> None:
    class Named(torch.Tensor):
        pass

    operands = prepared(case)
    found = case.run(**{name: tensor.as_subclass(Named) for name, tensor in operands.items()})
    close(found.as_subclass(torch.Tensor), eager(case, operands))
    assert ops._plans
