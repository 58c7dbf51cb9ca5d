"""The fused kernels as functions on tensors, each run with the best config that is known for the call.

A call is keyed by the shapes, strides, dtypes, alignment and device of its tensors and bound once: the answer of the
device's client, and where that config cannot run here, the next best one, the kernel's default, and at last the
unfused chain of torch operations. Calls that need a gradient take the unfused chain, which is differentiable.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

import tunedex
from tunedex.client import Client
from tunedex.core import host
from tunedex.core.config import Config
from tunedex.core.cuda import from_properties
from tunedex.core.device import Device
from tunedex.core.errors import BadInput
from tunedex.core.problem import Problem
from tunedex.core.snapshot import Snapshot
from tunedex.kernels.base import Kernel, Launch, Tensors
from tunedex.kernels.registry import get_kernel
from tunedex.kernels.rows import EPS

log = logging.getLogger("tunedex.ops")

#: Bound calls are dropped all together when there are this many: a process has far fewer shapes at a time.
_MOST_PLANS = 4096

_ALIGNMENT_MASK = 15


def layernorm_gelu_residual(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    *,
    gelu: str = "erf",
    eps: float = EPS,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``gelu(layernorm(x) * weight + bias) + residual``, normalised over the last dimension.

    Args:
        x: ``[..., cols]`` in float32, float16 or bfloat16.
        weight: ``[cols]``, in x's dtype, as everything else.
        bias: ``[cols]``.
        residual: of x's shape.
        gelu: ``erf`` or ``tanh``.
        eps: added to the variance.
        out: where to write the result: contiguous, of x's shape and dtype, apart from the operands.

    Raises:
        BadInput: shapes, dtypes, devices or an argument do not fit.
    """
    if torch.compiler.is_compiling():
        return _compiled(_norm_op, layernorm_gelu_residual, (x, weight, bias, residual), out, gelu=gelu, eps=eps)
    operands = {"x": _rows("x", x), "weight": weight, "bias": bias, "residual": _rows("residual", residual)}
    return _call("layernorm_gelu_residual", operands, {"gelu": gelu}, x.shape, out, {} if eps == EPS else {"eps": eps})


def softmax(x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """``exp(x - max(x)) / sum(exp(x - max(x)))`` over the last dimension.

    Args:
        x: ``[..., cols]`` in float32, float16 or bfloat16.
        out: where to write the result: contiguous, of x's shape and dtype, apart from x.

    Raises:
        BadInput: a dtype or an argument does not fit.
    """
    if torch.compiler.is_compiling():
        return _compiled(_softmax_op, softmax, (x,), out)
    return _call("softmax", {"x": _rows("x", x)}, {}, x.shape, out, {})


def linear_gelu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    gelu: str = "tanh",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``gelu(x @ weight^T + bias)``.

    Args:
        x: ``[..., k]`` in float32, float16 or bfloat16.
        weight: ``[n, k]``, in x's dtype, as everything else.
        bias: ``[n]``.
        gelu: ``tanh`` or ``erf``.
        out: where to write the result: contiguous, ``[..., n]`` in x's dtype, apart from the operands.

    Raises:
        BadInput: shapes, dtypes, devices or an argument do not fit.
    """
    if torch.compiler.is_compiling():
        return _compiled(_linear_op, linear_gelu, (x, weight, bias), out, gelu=gelu)
    rows = _rows("x", x)
    if rows.dim() == 3 and rows.stride(0) != rows.shape[1] * rows.stride(1):
        rows = rows.contiguous()  # the product takes evenly spaced rows
    operands = {"x": rows, "weight": _dense(weight) if weight.dim() == 2 else weight, "bias": bias}
    return _call("linear_gelu", operands, {"gelu": gelu}, (*x.shape[:-1], *weight.shape[:1]), out, {})


class _Plan:
    """One kind of call, bound: what to launch, and what is left to try where that fails."""

    def __init__(self, kernel: Kernel, problem: Problem, device: Device, client: Client) -> None:
        self.snapshot: Snapshot = client.snapshot
        self.kernel, self.problem, self.device = kernel, problem, device
        self.empty = problem.empty
        (self.output,) = kernel.outputs(problem).values()
        # What to try, the best first, each once; the one that is bound, or would be next, stands first.
        answered = client.answer(problem).config
        self._configs = list(dict.fromkeys([*([answered] if answered else []), *client.alternatives(problem)]))
        self._launch: Launch | None = None
        self._warned = False
        self._lock = threading.Lock()

    @property
    def config(self) -> Config | None:
        """The config that runs; None before the first call, and where only the unfused chain does."""
        return self._configs[0] if self._launch else None

    def run(self, operands: Tensors, out: torch.Tensor, options: Mapping[str, Any]) -> None:
        """Write the result to ``out``, of the problem's output shape."""
        launch = self._launch
        if launch is not None:
            failure = _run(launch, operands, out, options)
            if failure is None:
                return
            with self._lock:
                if self._launch is launch:  # else another thread has refused it already
                    self._refuse(failure)
        if self._configs:
            # Binding may compile, which nobody may do while a CUDA graph is captured.
            if _capturing(out):
                self._warn_of_capture()
            else:
                with self._lock:
                    if self._bind(operands, out, options):
                        return
        out.copy_(_unfused(self.kernel, self.problem, operands, options).view(out.shape))

    def _bind(self, operands: Tensors, out: torch.Tensor, options: Mapping[str, Any]) -> bool:
        """Run the first config that can, which is the bound one from now on; False where none can."""
        while self._configs:
            try:
                launch = self._launch or self._bound(self._configs[0])
            except Exception as error:  # noqa: BLE001 - whatever binding raises is this config's failure
                self._refuse(error)
                continue
            failure = _run(launch, operands, out, options)
            if failure is None:
                self._launch = launch
                return True
            self._refuse(failure)
        return False

    def _bound(self, config: Config) -> Launch:
        implementation = self.kernel.implementation(config.implementation)
        if self.device.kind not in implementation.kinds:
            raise BadInput(f"{config.implementation} does not run on {self.device.kind}")
        refusal = implementation.missing() or implementation.takes(self.problem, self.device)
        if refusal is None and config.implementation == "numba" and _openmp_forked:
            refusal = "this process is the fork of one that used numba's OpenMP threads, which do not survive that"
        if refusal:
            raise BadInput(refusal)
        return implementation.bind(self.problem, config, self.device)

    def _warn_of_capture(self) -> None:
        """Say once that a graph keeps the slow way for good."""
        consequence = "with no config bound, so the graph replays the unfused chain"
        if not self._warned:
            log.warning("%s is captured in a CUDA graph %s; call it once before the capture", self.problem, consequence)
        self._warned = True

    def _refuse(self, error: Exception) -> None:
        config, self._launch = self._configs.pop(0), None
        reason = str(error).strip().partition("\n")[0]
        log.warning("%s does not run with %s: %s: %s", self.problem, config, type(error).__name__, reason)


def _capturing(tensor: torch.Tensor) -> bool:
    """Whether a CUDA graph is being captured on the current stream of the tensor's device."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _run(launch: Launch, operands: Tensors, out: torch.Tensor, options: Mapping[str, Any]) -> Exception | None:
    """What ``launch`` raises, which is its config's failure; None where it runs."""
    try:
        launch(operands, {"out": out}, **options)
    except torch.OutOfMemoryError:
        raise  # the caller's to free memory: every other config needs the same operands
    except Exception as error:  # noqa: BLE001 - a kernel may fail in any way
        return error
    return None


_plans: dict[Any, _Plan] = {}
_openmp_forked = False


def _after_fork() -> None:
    """In a child. Another thread of the parent may have held a plan's lock. And OpenMP's threads do not survive a
    fork: numba ends a child that wants them, and torch waits for them for ever unless told to use none, as its own
    data loaders do."""
    global _openmp_forked
    _plans.clear()
    with contextlib.suppress(KeyError, AttributeError, ValueError):  # no numba, or none that has started its threads
        if sys.modules["numba"].threading_layer() == "omp":
            _openmp_forked = True
            torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _call(
    name: str,
    operands: dict[str, torch.Tensor],
    attributes: Mapping[str, str],
    shape: tuple[int, ...],
    out: torch.Tensor | None,
    options: Mapping[str, Any],
) -> torch.Tensor:
    """Run the kernel ``name``, whose result has ``shape``."""
    x = operands["x"]
    plan = _plan(name, operands, attributes)
    if out is not None:
        _check_out(name, out, shape, operands)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands.values()):
        if out is not None:
            raise BadInput(f"{name} has no gradient through out=; leave it out, or call under torch.no_grad()")
        return _unfused(plan.kernel, plan.problem, operands, options).view(shape)
    result = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    if plan.empty:
        if result.numel():  # a sum of nothing, whose value eager knows
            result.copy_(_unfused(plan.kernel, plan.problem, operands, options).view(shape))
        return result
    # Kernels write whole vectors, so an output that does not begin aligned is written by way of one that does.
    target = result if result.data_ptr() & _ALIGNMENT_MASK == 0 else torch.empty_like(result)
    view = target if target.shape == plan.output.shape else target.view(plan.output.shape)
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        with torch.cuda.device(x.device):
            plan.run(operands, view, options)
    else:
        plan.run(operands, view, options)
    return result if target is result else result.copy_(target)


def _plan(name: str, operands: Tensors, attributes: Mapping[str, str]) -> _Plan:
    """The plan of this kind of call, made anew where the device's client has another snapshot."""
    key = (
        name,
        *attributes.values(),
        *((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & _ALIGNMENT_MASK) for t in operands.values()),
    )
    plan = _plans.get(key)
    device, device_key = _device(operands["x"].device)
    client = tunedex.default_client(device_key)
    if plan is None or plan.snapshot is not client.snapshot:
        kernel = get_kernel(name)
        plan = _Plan(kernel, kernel.problem_of(operands, attributes), device, client)
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


def _unfused(kernel: Kernel, problem: Problem, operands: Tensors, options: Mapping[str, Any]) -> torch.Tensor:
    (result,) = kernel.eager(problem, operands, **options).values()
    return result


@cache
def _device(device: torch.device) -> tuple[Device, str]:
    """The device that tensors on ``device`` are on, and its key.

    Raises:
        BadInput: the kernels do not run there.
    """
    if device.type == "cpu":
        found = host.cpu()
    elif device.type == "cuda" and torch.version.hip is None:
        found = from_properties(torch.cuda.get_device_properties(device))
    else:
        raise BadInput(f"tensors are on {device}; the kernels run on CUDA devices and on the CPU", field="device")
    return found, found.key


def _rows(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as ``[rows, cols]`` or ``[batch, rows, cols]`` with unit inner stride, copied only if it must be."""
    if tensor.dim() == 0:
        raise BadInput(f"{name} is a scalar; it needs a dimension at least", field=name)
    if tensor.dim() == 1:
        tensor = tensor.view(1, -1) if tensor.numel() else tensor.view(1, 0)
    elif tensor.dim() > 3:
        tensor = tensor.reshape(math.prod(tensor.shape[:-2]), *tensor.shape[-2:])
    return _dense(tensor)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.shape[-1] <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _check_out(name: str, out: torch.Tensor, shape: tuple[int, ...], operands: Tensors) -> None:
    """Refuse an output that the kernel cannot write whole, or that it would read while writing.

    Raises:
        BadInput: which of these it is.
    """
    x = operands["x"]
    if tuple(out.shape) != tuple(shape):
        raise BadInput(f"{name} needs out of shape {list(shape)}, not {list(out.shape)}", field="out")
    if out.dtype != x.dtype or out.device != x.device:
        raise BadInput(f"{name} needs out in {x.dtype} on {x.device}, not {out.dtype} on {out.device}", field="out")
    if not out.is_contiguous():
        raise BadInput(f"{name} needs a contiguous out, not one of strides {list(out.stride())}", field="out")
    begin, end = _extent(out)
    for operand, tensor in operands.items():
        first, last = _extent(tensor)
        if begin < last and first < end:
            raise BadInput(f"{name} needs out apart from {operand} in memory", field="out")


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first byte to after its last; nothing for an empty one."""
    if not tensor.numel():
        return 0, 0
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()


# Inside torch.compile a call is one opaque operator, so that the config is chosen anew for the shapes of each run.

Function = Callable[..., torch.Tensor]


def _compiled(
    operator: Function, function: Function, operands: tuple[torch.Tensor, ...], out: torch.Tensor | None, **options: Any
) -> torch.Tensor:
    """Hold the call whole in the graph; one that writes to ``out`` or wants a gradient breaks it instead."""
    if out is None and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands)):
        return operator(*operands, **options)
    return _uncompiled(function, *operands, out=out, **options)


def _apart(function: Function, *arguments: Any, **options: Any) -> torch.Tensor:
    return function(*arguments, **options)


_uncompiled: Function = torch.compiler.disable(_apart)


@torch.library.custom_op(
    "tunedex::layernorm_gelu_residual",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor bias, Tensor residual, str gelu, float eps) -> Tensor",
)
def _norm_op(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, gelu: str, eps: float
) -> torch.Tensor:
    return layernorm_gelu_residual(x, weight, bias, residual, gelu=gelu, eps=eps)


@torch.library.custom_op("tunedex::softmax", mutates_args=(), schema="(Tensor x) -> Tensor")
def _softmax_op(x: torch.Tensor) -> torch.Tensor:
    return softmax(x)


@torch.library.custom_op(
    "tunedex::linear_gelu", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor bias, str gelu) -> Tensor"
)
def _linear_op(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, gelu: str) -> torch.Tensor:
    return linear_gelu(x, weight, bias, gelu=gelu)


@_norm_op.register_fake
@_softmax_op.register_fake
def _like_x(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


@_linear_op.register_fake
def _like_product(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))
