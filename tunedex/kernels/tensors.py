"""A call's tensors: what they are, and in what form kernels read and write their memory.

A kernel reads addresses. A tensor may have none of its own (a fake or functional one, or one inside a transform of
`torch.func`), may hide values beside its memory (a pending negation, a tangent), or may be looked at by whoever
records operations (a dispatch mode, a trace); such tensors are for torch's dispatcher. Unlike the other modules of
this room, this one imports torch, which its callers have already.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from tunedex.core.errors import BadInput
from tunedex.core.problem import Problem
from tunedex.kernels.base import Kernel, Tensors

#: A kernel writes vectors of as many bytes less one at a time.
ALIGNMENT_MASK = 15

#: The operands that are rows; the others have no leading dimensions.
_OF_ROWS = frozenset({"x", "residual"})

#: The kernels that see a batch as more rows, and take one distance between any two.
_OF_EVEN_ROWS = frozenset({"linear_gelu"})

#: Whose values are their memory. Another subclass of Tensor is looked at closely.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})

_Key = torch._C.DispatchKey
_INTERCEPTED = (_Key.Python, _Key.Functionalize)
_TRANSFORMED = (_Key.FuncTorchBatched, _Key.FuncTorchGradWrapper, _Key.ZeroTensor)


def recorded() -> bool:
    """Whether this thread's operations go to somebody who records or transforms them, instead of just running."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._is_tracing()
        or forward_ad._current_level >= 0
    )


def plain(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether each of ``tensors`` surely has memory that holds its values, by a look that takes no time."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_neg() or not tensor.data_ptr():
            return False
    return True


def check_tensors(kernel: str, tensors: Mapping[str, object]) -> None:
    """Refuse what is no dense tensor.

    Raises:
        BadInput: which of ``tensors`` is not, and what it is.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise BadInput(f"{kernel} needs {name} as a tensor, not a {type(tensor).__name__}", field=name)
        if tensor.layout is not torch.strided or tensor.is_nested:
            found = "a nested one" if tensor.is_nested else f"one of {tensor.layout}"
            raise BadInput(f"{kernel} needs {name} as a dense tensor, not {found}", field=name)


def transformed(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a call is traced, or a transform of `torch.func` or a tangent goes through it: only torch's own
    operations carry those on."""
    if torch._C._is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return any(_has(tensor, _TRANSFORMED) or forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def intercepted(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether operations on ``tensors`` go to a dispatch mode or to a subclass, which know an operator as a whole."""
    return torch._C._len_torch_dispatch_stack() > 0 or any(_has(tensor, _INTERCEPTED) for tensor in tensors)


def _has(tensor: torch.Tensor, keys: Iterable[torch._C.DispatchKey]) -> bool:
    found = torch._C._dispatch_keys(tensor)
    return any(found.has(key) for key in keys)


def readable(kernel: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with its values in its memory.

    Raises:
        BadInput: it has no memory.
    """
    if tensor.device.type != "meta" and tensor.numel() and not tensor.data_ptr():
        raise BadInput(f"{kernel} needs {name} in memory, and it has none", field=name)
    return tensor.resolve_neg()


def arranged(kernel: str, operands: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The operands as ``kernel`` takes them: of two dimensions, or three with a batch, with unit inner stride, and
    x's rows evenly spaced over the whole batch where it needs that; copied only where they must be.

    Raises:
        BadInput: x or residual is a scalar.
    """
    found = {name: _rows(kernel, name, t) if name in _OF_ROWS else _dense(t) for name, t in operands.items()}
    x = found["x"]
    if kernel in _OF_EVEN_ROWS and x.dim() == 3 and x.stride(0) != x.shape[1] * x.stride(1):
        found["x"] = x.contiguous()
    return found


def _rows(kernel: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 0:
        raise BadInput(f"{kernel} needs {name} of a dimension at least, not a scalar", field=name)
    if tensor.dim() == 1:
        tensor = tensor.view(1, -1) if tensor.numel() else tensor.view(1, 0)
    elif tensor.dim() > 3:
        tensor = tensor.reshape(math.prod(tensor.shape[:-2]), *tensor.shape[-2:])
    return _dense(tensor)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 0 or tensor.stride(-1) == 1 or tensor.shape[-1] <= 1:
        return tensor
    if not tensor.numel():  # contiguous whatever its strides are, so `contiguous` would leave them
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous()


def unfused(kernel: Kernel, problem: Problem, operands: Tensors, options: Mapping[str, Any]) -> torch.Tensor:
    """The chain of torch operations in the operands' dtypes."""
    with no_autocast(operands["x"].device):
        (result,) = kernel.eager(problem, operands, **options).values()
    return result


def no_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Within, operations keep their operands' dtypes."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if enabled else contextlib.nullcontext()


def wants_gradient(operands: Mapping[str, torch.Tensor]) -> bool:
    """Whether a call on ``operands`` is to be differentiable."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in operands.values())


def written(
    kernel: str, result: torch.Tensor, out: torch.Tensor | None, operands: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """``result``, by torch's own copy in ``out`` where there is one.

    Raises:
        BadInput: see `check_gradients`, and ``out`` is not as ``result``.
    """
    if out is None:
        return result
    check_gradients(kernel, out, operands)
    _check_form(kernel, out, tuple(result.shape), result)
    return out.copy_(result)


def check_gradients(kernel: str, out: torch.Tensor, operands: Mapping[str, torch.Tensor]) -> None:
    """Refuse an output through which a gradient would have to go.

    Raises:
        BadInput: an operand needs a gradient, or ``out`` does.
    """
    if wants_gradient(operands):
        raise BadInput(
            f"{kernel} has no gradient through out=; leave it out, or call under torch.no_grad()", field="out"
        )
    if wants_gradient({"out": out}):
        raise BadInput(f"{kernel} needs an out that requires no gradient, or a call under torch.no_grad()", field="out")


def check_out(
    kernel: str, out: torch.Tensor, shape: tuple[int, ...], like: torch.Tensor, operands: Mapping[str, torch.Tensor]
) -> None:
    """Refuse an output that a kernel cannot write whole, in ``shape`` and as ``like``, or whose memory it would read
    while writing.

    Raises:
        BadInput: which of these it is, or see `check_gradients`.
    """
    _check_form(kernel, out, shape, like)
    check_gradients(kernel, out, operands)
    begin, end = _extent(out)
    for name, tensor in operands.items():
        first, last = _extent(tensor)
        if begin < last and first < end:
            raise BadInput(f"{kernel} needs out apart from {name} in memory", field="out")


def _check_form(kernel: str, out: torch.Tensor, shape: tuple[int, ...], like: torch.Tensor) -> None:
    if tuple(out.shape) != tuple(shape):
        raise BadInput(f"{kernel} needs out of shape {list(shape)}, not {list(out.shape)}", field="out")
    if out.dtype != like.dtype or out.device != like.device:
        raise BadInput(
            f"{kernel} needs out in {like.dtype} on {like.device}, not {out.dtype} on {out.device}", field="out"
        )
    if not out.is_contiguous():
        raise BadInput(f"{kernel} needs a contiguous out, not one of strides {list(out.stride())}", field="out")


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first byte to after its last; nothing for an empty one."""
    if not tensor.numel():
        return 0, 0
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()
