"""The fused kernels as functions on tensors, each run with the best config that is known for the call.

A call is keyed by the shapes, strides, dtypes, alignment and device of its tensors and bound once: the answer of the
device's client, and where that config cannot run here, the next best one, the kernel's default, and at last the
unfused chain of torch operations. Calls that need a gradient take the unfused chain, which is differentiable, and so
do those inside a transform of `torch.func`, with a tangent, or in a trace of `torch.jit`; where a dispatch mode or a
subclass of Tensor stands between, as for fake tensors and ``make_fx``, a call is one operator.

Operands may have any strides; those whose last dimension has no unit stride are copied.
"""

from __future__ import annotations

import contextlib
import logging
import numbers
import os
import reprlib
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "tunedex.ops needs torch, which is not installed; pip install 'tunedex[tuner]'", name="torch"
    ) from None

import tunedex
from tunedex.client import Client
from tunedex.core import host
from tunedex.core.config import Config
from tunedex.core.cuda import from_properties
from tunedex.core.device import Device
from tunedex.core.errors import BadInput
from tunedex.core.problem import Problem
from tunedex.core.snapshot import Snapshot
from tunedex.kernels import tensors
from tunedex.kernels.base import Kernel, Launch, Tensors
from tunedex.kernels.forward import runnable, to_try
from tunedex.kernels.registry import get_kernel
from tunedex.kernels.rows import EPS

log = logging.getLogger("tunedex.ops")

#: Bound calls are dropped all together when there are this many: a process has far fewer shapes at a time.
_MOST_PLANS = 4096


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
        eps: added to the variance, a finite number of at least 0.
        out: where to write the result: contiguous, of x's shape and dtype, apart from the operands.

    Raises:
        BadInput: shapes, dtypes, devices or an argument do not fit.
    """
    if torch.compiler.is_compiling():
        return _compiled(_norm_op, layernorm_gelu_residual, (x, weight, bias, residual), out, gelu=gelu, eps=eps)
    if not (isinstance(eps, numbers.Real) and 0 <= eps <= sys.float_info.max):
        shown = reprlib.repr(eps)
        raise BadInput(f"layernorm_gelu_residual needs eps as a finite number of at least 0, not {shown}", field="eps")
    operands = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    return _call("layernorm_gelu_residual", operands, {"gelu": str(gelu)}, {"eps": float(eps)}, out)


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
    return _call("softmax", {"x": x}, {}, {}, out)


def linear_gelu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    gelu: str = "tanh",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``gelu(x @ weight^T + bias)``, in the operands' dtype, inside `torch.autocast` as well.

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
    return _call("linear_gelu", {"x": x, "weight": weight, "bias": bias}, {"gelu": str(gelu)}, {}, out)


class _Plan:
    """One kind of call, bound: what to launch, and what is left to try where that fails."""

    def __init__(self, kernel: Kernel, problem: Problem, device: Device, client: Client) -> None:
        self.snapshot: Snapshot = client.snapshot
        self.kernel, self.problem, self.device = kernel, problem, device
        self.empty = problem.empty
        (self.output,) = kernel.outputs(problem).values()
        self._client = client
        # What to try, the best first, each once; the one that is bound, or would be next, stands first. Asked for by
        # the first call that binds: one that needs a gradient runs none of them, and is no miss.
        self._configs: list[Config] = []
        self._asked = False
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
        if self._configs or not self._asked:
            # Binding may compile, which nobody may do while a CUDA graph is captured.
            if _capturing(out):
                self._warn_of_capture()
            else:
                with self._lock:
                    if self._bind(operands, out, options):
                        return
        out.copy_(tensors.unfused(self.kernel, self.problem, operands, options).view(out.shape))

    def _bind(self, operands: Tensors, out: torch.Tensor, options: Mapping[str, Any]) -> bool:
        """Run the first config that can, which is the bound one from now on; False where none can."""
        if not self._asked:
            self._configs = to_try(self.kernel, self.problem, self.device, self._client.candidates(self.problem))
            self._asked = True
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
        implementation, config = runnable(self.kernel, self.problem, self.device, config)
        if config.implementation == "numba" and _openmp_forked:
            raise BadInput("this process is the fork of one that used numba's OpenMP threads, which do not survive it")
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
    options: Mapping[str, Any],
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Run the kernel ``name`` on a caller's tensors, which torch's dispatcher must see where memory is not all."""
    if not tensors.recorded() and tensors.plain(operands.values()) and (out is None or tensors.plain((out,))):
        return _launched(name, operands, attributes, options, out)
    given = operands if out is None else {**operands, "out": out}
    tensors.check_tensors(name, given)
    intercepted = tensors.intercepted(given.values())
    if tensors.transformed(given.values()) or (intercepted and tensors.wants_gradient(operands)):
        result = _chain(name, operands, attributes, options)
    elif intercepted:
        result = getattr(torch.ops.tunedex, name)(*operands.values(), *attributes.values(), *options.values())
    else:
        operands = {operand: tensors.readable(name, operand, tensor) for operand, tensor in operands.items()}
        if out is None or not out.is_neg():
            return _launched(name, operands, attributes, options, out)
        result = _launched(name, operands, attributes, options, None)
    return tensors.written(name, result, out, operands)


def _launched(
    name: str,
    operands: dict[str, torch.Tensor],
    attributes: Mapping[str, str],
    options: Mapping[str, Any],
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Run the kernel ``name`` on tensors whose values are in their memory."""
    x = operands["x"]
    operands = tensors.arranged(name, operands)
    plan = _plan(name, operands, attributes)
    shape = (*x.shape[:-1], plan.output.shape[-1])
    if out is not None:
        tensors.check_out(name, out, shape, x, operands)
    if tensors.wants_gradient(operands):
        return tensors.unfused(plan.kernel, plan.problem, operands, options).view(shape)
    result = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
    if plan.empty:
        if result.numel():  # a sum of nothing, whose value eager knows
            result.copy_(tensors.unfused(plan.kernel, plan.problem, operands, options).view(shape))
        return result
    # Kernels write whole vectors, so an output that does not begin aligned is written by way of one that does.
    target = result if result.data_ptr() & tensors.ALIGNMENT_MASK == 0 else torch.empty_like(result)
    view = target if target.shape == plan.output.shape else target.view(plan.output.shape)
    if target is out:  # torch does not see a kernel write, and it may hold what is overwritten for a backward pass
        torch.autograd.graph.increment_version(out)
    elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
    if elsewhere or torch.is_autocast_enabled(x.device.type):
        with torch.cuda.device(x.device) if elsewhere else contextlib.nullcontext(), tensors.no_autocast(x.device):
            plan.run(operands, view, options)
    else:
        plan.run(operands, view, options)
    return result if target is result else result.copy_(target)


def _chain(name: str, operands: Tensors, attributes: Mapping[str, str], options: Mapping[str, Any]) -> torch.Tensor:
    """The unfused chain, on tensors that may have no memory, and sizes that are no numbers: it looks at neither."""
    signature = get_kernel(name).signature
    sizes = {dimension.name: 1 for dimension in signature.dimensions}
    problem = signature.problem({**sizes, "dtype": operands["x"].dtype, **attributes})
    return tensors.unfused(get_kernel(name), problem, operands, options)


def _plan(name: str, operands: Tensors, attributes: Mapping[str, str]) -> _Plan:
    """The plan of this kind of call, made anew where the device's client has another snapshot."""
    key = (
        name,
        *attributes.values(),
        *((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() & tensors.ALIGNMENT_MASK) for t in operands.values()),
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


# Inside torch.compile a call is one opaque operator, so that the config is chosen anew for the shapes of each run.

Function = Callable[..., torch.Tensor]


def _compiled(
    operator: Function, function: Function, operands: tuple[torch.Tensor, ...], out: torch.Tensor | None, **options: Any
) -> torch.Tensor:
    """Hold the call whole in the graph; one that writes to ``out`` or wants a gradient breaks it instead."""
    if out is None and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands)):
        return operator(*operands, **options)
    return _uncompiled(function, *operands, out=out, **options)


@torch.compiler.disable
def _uncompiled(function: Function, *arguments: Any, **options: Any) -> torch.Tensor:
    return function(*arguments, **options)


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
