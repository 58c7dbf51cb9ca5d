"""What a program runs, recognised: on which problems, how often, and what is no problem of any kernel."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from profiles import problems, profile_in, profiled, recorder_in
from torch.nn import functional

from tunedex.core.host import cpu
from tunedex.kernels.base import Kernel
from tunedex.kernels.patterns import Call, Pattern
from tunedex.kernels.registry import builtin_kernels
from tunedex.kernels.tensors import arranged
from tunedex.tuner.profiling.remembered import Remembered

X = torch.randn(2, 8, 16)
WEIGHT, BIAS = torch.randn(24, 16), torch.randn(24)
SCALE, SHIFT = torch.randn(16), torch.randn(16)


def looked_up(kernel: str, operands: Mapping[str, torch.Tensor], **attributes: str) -> str:
    """The problem that `tunedex.ops` asks for with these very tensors."""
    return str(builtin_kernels()[kernel].problem_of(arranged(kernel, operands), attributes))


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, form: str = "none") -> torch.Tensor:
    return functional.gelu(functional.linear(x, weight, bias), approximate=form)


def norm(x: torch.Tensor, residual: torch.Tensor, form: str = "none") -> torch.Tensor:
    weight, bias = SCALE.to(x.dtype), SHIFT.to(x.dtype)
    return functional.gelu(functional.layer_norm(x, x.shape[-1:], weight, bias), approximate=form) + residual


def shifted(shape: Sequence[int]) -> torch.Tensor:
    """A tensor that begins 4 bytes after an aligned address."""
    count = torch.Size(shape).numel()
    return torch.randn(count + 1)[1:].view(*shape)


@pytest.mark.parametrize(
    "x",
    [
        X,
        X[0],
        X[0, :1],
        torch.randn(2, 3, 4, 16),
        torch.randn(2, 8, 32)[..., :16],
        torch.randn(4, 8, 16)[::2],
        X.bfloat16(),
        shifted((2, 8, 16)),
    ],
    ids=["batch", "rows", "row", "four dimensions", "strided", "every other item", "bfloat16", "unaligned"],
)
def test_a_problem_is_the_one_that_a_call_would_look_up(x: torch.Tensor, tmp_path: Path) -> None:
    weight, bias = torch.nn.Parameter(WEIGHT.to(x.dtype)), BIAS.to(x.dtype)
    scale, shift = SCALE.to(x.dtype), SHIFT.to(x.dtype)

    @torch.no_grad()
    def program() -> None:
        linear(x, weight, bias, "tanh")
        functional.gelu(functional.layer_norm(x, x.shape[-1:], scale, shift)) + x
        torch.softmax(x, -1)

    assert problems(profiled(tmp_path, program)) == {
        looked_up("linear_gelu", {"x": x, "weight": weight, "bias": bias}, gelu="tanh"): 1,
        looked_up("layernorm_gelu_residual", {"x": x, "weight": scale, "bias": shift, "residual": x}, gelu="erf"): 1,
        looked_up("softmax", {"x": x}): 1,
    }


def _inplace() -> None:
    functional.gelu(functional.layer_norm(X, (16,), SCALE, SHIFT)).add_(X)


def _onto_the_residual() -> None:
    residual = torch.randn(2, 8, 16)
    residual += functional.gelu(functional.layer_norm(X, (16,), SCALE, SHIFT))


def _other_work_between() -> None:
    h = functional.layer_norm(X, (16,), SCALE, SHIFT)
    other = X.cos()
    functional.gelu(h) + other


def _inference() -> None:
    with torch.inference_mode():
        norm(X, X)


def _alive_no_more() -> None:
    norm(torch.randn(2, 8, 16), torch.randn(2, 8, 16))


@pytest.mark.parametrize("program", [_inplace, _onto_the_residual, _other_work_between, _inference, _alive_no_more])
def test_a_norm_is_found_however_it_is_written(program: Callable[[], None], tmp_path: Path) -> None:
    assert problems(profiled(tmp_path, program)) == {
        "layernorm_gelu_residual:batch=2,rows=8,cols=16,gelu=erf,dtype=float32": 1
    }


def test_a_linear_layer_is_found_in_every_mode(tmp_path: Path) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.GELU())

    def program() -> None:
        layer(X)
        layer(X).sum().backward()
        with torch.no_grad():
            layer(X)
        with torch.inference_mode():
            layer(X)
            linear(X, WEIGHT, BIAS)
        with torch.no_grad():
            layer(X.transpose(0, 1))  # no view of it is flat, so it is a copy, a product and a sum
            with torch.autocast("cpu"):
                layer(X)

    profile = profiled(tmp_path, program)
    assert problems(profile) == {
        "linear_gelu:batch=2,m=8,n=24,k=16,gelu=erf,dtype=float32": 5,
        "linear_gelu:batch=8,m=2,n=24,k=16,gelu=erf,dtype=float32": 1,
        "linear_gelu:batch=2,m=8,n=24,k=16,gelu=erf,dtype=bfloat16": 1,
    }
    assert sum(hot.gradient_calls for hot in profile.problems) == 2
    assert "calls that want a gradient, which tunedex.ops leaves to torch: 2" in profile.notes


def _read_twice() -> None:
    h = functional.linear(X, WEIGHT, BIAS)
    functional.gelu(h) + h


def _read_before() -> None:
    h = functional.linear(X, WEIGHT, BIAS)
    h.sum()
    functional.gelu(h)


def _read_by_two_of_a_kind() -> None:
    h = functional.linear(X, WEIGHT, BIAS)
    functional.gelu(h), functional.gelu(h)


def _changed_between() -> None:
    h = functional.linear(X, WEIGHT, BIAS)
    h[0, 0, 0] = 1.0
    functional.gelu(h)


def _a_part() -> None:
    functional.gelu(functional.linear(X, WEIGHT, BIAS)[:1])


def _another_order() -> None:
    functional.gelu(functional.linear(X[0, :].repeat(3, 1), WEIGHT, BIAS).t())


def _not_by_data_flow() -> None:
    functional.linear(X, WEIGHT, BIAS)
    functional.gelu(torch.randn(2, 8, 24))


@pytest.mark.parametrize(
    "program",
    [
        _read_twice,
        _read_before,
        _read_by_two_of_a_kind,
        _changed_between,
        _a_part,
        _another_order,
        _not_by_data_flow,
        lambda: functional.gelu(functional.linear(X, WEIGHT)),
        lambda: functional.relu(functional.linear(X, WEIGHT, BIAS)),
        lambda: functional.gelu(torch.addmm(BIAS, X[0], WEIGHT.t(), alpha=2)),
        lambda: functional.gelu(torch.addmm(torch.randn(8, 24), X[0], WEIGHT.t())),
        lambda: norm(X, X[0]),
        lambda: norm(X[:1], X),
        lambda: norm(X, SCALE),
        lambda: torch.add(functional.gelu(functional.layer_norm(X, (16,), SCALE, SHIFT)), X, alpha=2),
        lambda: functional.gelu(functional.layer_norm(X, (16,))) + X,
        lambda: functional.gelu(functional.layer_norm(X, (8, 16), torch.randn(8, 16), torch.randn(8, 16))) + X,
        lambda: torch.softmax(X, 1),
        lambda: torch.softmax(X.double(), -1),
        lambda: torch.log_softmax(X, -1),
        lambda: torch.softmax(X[:, :0], -1),
    ],
)
def test_what_a_kernel_would_not_compute_is_no_problem(program: Callable[[], object], tmp_path: Path) -> None:
    with torch.no_grad():
        profile = profiled(tmp_path, program)
    assert profile.problems == ()
    assert profile.operators


def test_attention_without_a_fused_kernel_has_its_softmax_seen(tmp_path: Path) -> None:
    q = torch.randn(2, 4, 8, 16)
    profile = profiled(tmp_path, lambda: torch.softmax(q @ q.transpose(-1, -2), -1) @ q)
    assert problems(profile) == {looked_up("softmax", {"x": q @ q.transpose(-1, -2)}): 1}


def test_shares_are_of_the_time_and_what_is_covered_is_not_listed(tmp_path: Path) -> None:
    def program() -> None:
        for _ in range(3):
            torch.softmax(X, -1)
            X.cos()

    profile = profiled(tmp_path, program)
    (hot,) = profile.problems
    assert hot.calls == 3
    assert [(each.operator, each.calls) for each in profile.operators] == [("aten::cos", 3)]
    parts = hot.total_ms + profile.operators[0].total_ms
    assert parts == pytest.approx(profile.torch_s * 1e3)
    assert profile.share(parts) == pytest.approx(1)
    assert profile.device == cpu()


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    def program() -> None:
        for rows in range(1, 40):
            functional.layer_norm(torch.randn(rows, 16), (16,), SCALE, SHIFT)

    profile = profiled(tmp_path, program, kinds=9, values=2)
    assert sum(each.calls for each in profile.operators) == 78
    assert len(profile.operators) == 10


def test_a_kernel_of_another_package_brings_its_pattern(
    planted: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = Call("aten::mul.Tensor", operands={"x": "self"}, where={"other": 2})
    monkeypatch.setattr(type(planted), "patterns", (Pattern(((double,),)),))
    profile = profiled(tmp_path, lambda: (X * 2, X * 3, 2 * X, torch.softmax(X, -1)))
    assert problems(profile) == {
        "planted:batch=2,rows=8,cols=16,dtype=float32": 2,
        "softmax:batch=2,rows=8,cols=16,dtype=float32": 1,
    }


def test_of_two_kernels_the_longer_chain_has_the_operators(
    planted: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Pattern(((Call("aten::gelu", operands={"x": "self"}),),))
    monkeypatch.setattr(type(planted), "patterns", (alone,))
    profile = profiled(tmp_path, lambda: (linear(X, WEIGHT, BIAS), functional.gelu(X), norm(X, X)))
    assert problems(profile) == {
        "linear_gelu:batch=2,m=8,n=24,k=16,gelu=erf,dtype=float32": 1,
        "layernorm_gelu_residual:batch=2,rows=8,cols=16,gelu=erf,dtype=float32": 1,
        "planted:batch=2,rows=8,cols=16,dtype=float32": 1,
    }


def test_a_kernel_that_fails_on_what_was_seen_is_named(
    planted: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(planted), "patterns", (Pattern(((Call("aten::cos", operands={"x": "self"}),),)),))
    profile = profiled(tmp_path, lambda: (X[0].cos(), torch.softmax(X, -1)))  # it unpacks three dimensions
    assert any(note.startswith("planted fails on what was seen: ValueError") for note in profile.notes)
    assert len(profile.problems) == 1


def test_a_pattern_that_cannot_match_is_refused() -> None:
    with pytest.raises(ValueError, match="at least a step"):
        Pattern(())
    with pytest.raises(ValueError, match="aten::cos takes a value in step 0"):
        Pattern(((Call("aten::cos", value=("self",)),),))
    with pytest.raises(ValueError, match="aten::sin takes no value in step 1"):
        Pattern(((Call("aten::cos"),), (Call("aten::sin"),)))
    with pytest.raises(ValueError, match="has a rest"):
        Pattern(((Call("aten::cos"),), (Call("aten::sin", value=("self",), rest="x"),)))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[1:],
        lambda t: t[..., 3:],
        lambda t: t.view(-1, 16)[2],
        lambda t: t.transpose(0, 1),
        lambda t: t.reshape(16, 16),
    ],
)
def test_a_view_of_a_remembered_tensor_lies_where_the_tensor_s_does(
    view: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    real = shifted((2, 8, 16))
    remembered = Remembered(real.shape, real.stride(), real.dtype, "cpu", real.data_ptr())
    wanted, found = view(real), view(remembered)
    assert (found.shape, found.stride(), found.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
    assert found.data_ptr() == wanted.data_ptr()
    assert found.is_contiguous() == wanted.is_contiguous()


def test_a_copy_of_a_remembered_tensor_is_new_memory() -> None:
    remembered = Remembered((4, 6), (1, 4), torch.float32, "cpu", 4)
    assert (remembered.contiguous().stride(), remembered.contiguous().data_ptr()) == ((6, 1), 0)


class FakeEvent:
    """An event of a CUDA device on which the time between any two is 2 ms, and which has reached none yet."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        return 2.0


def test_on_cuda_the_device_tells_the_time_of_the_first_calls_and_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    recorder = recorder_in(tmp_path, timed_calls=3)
    on = torch.device("cpu")  # whose description is to be had here
    for _ in range(5):
        if begun := recorder.before(("aten::cos", (), on), on, capturing=False):
            recorder.after(begun, on)
    recorder.write()
    assert recorder.document()["operators"][0]["timed"] == 0
    recorder.finish()
    (operator,) = profile_in(recorder).operators
    assert (operator.calls, operator.total_ms) == (5, 10.0)


def test_a_profile_does_not_tell_one_board_from_another(tmp_path: Path) -> None:
    profile = profiled(tmp_path, lambda: torch.softmax(X, -1))
    assert profile.device
    board = replace(profile, device=replace(profile.device, attributes={"uuid": "GPU-1234"}))
    document = board.to_dict()
    assert "GPU-1234" not in json.dumps(document)
    assert document["device"]["key"] == profile.device.key
