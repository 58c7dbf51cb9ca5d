"""A call's tensors: what they are, and in what form kernels read and write their memory.

A kernel reads addresses. A tensor may have none of its own (a fake or functional one, or one inside a transform of
`torch.func`), may hide values beside its memory (a pending negation, a tangent), or may be looked at by whoever
records operations (a dispatch mode, a trace); such tensors are for torch's dispatcher. Unlike the other modules of
this room, this one imports torch, which its callers have already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch.autograd import forward_ad

from tunedex.core.errors import BadInput

#: A kernel writes vectors of as many bytes less one at a time.
ALIGNMENT_MASK = 15

#: Whose values are their memory. Another subclass of Tensor is looked at closely.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})

_Key = torch._C.DispatchKey  # type: ignore[attr-defined]
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


def plain(tensors: Iterable[object]) -> bool:
    """Whether each of ``tensors`` surely has memory that holds its values, by a look that takes no time; None is."""
    return all(
        tensor is None
        or (
            type(tensor) in _PLAIN
            and tensor.layout is torch.strided  # type: ignore[attr-defined]
            and not tensor.is_neg()  # type: ignore[attr-defined]
            and tensor.data_ptr() != 0  # type: ignore[attr-defined]
        )
        for tensor in tensors
    )


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


def _has(tensor: torch.Tensor, keys: Iterable[object]) -> bool:
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


def rows(kernel: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as ``[rows, cols]`` or ``[batch, rows, cols]`` with unit inner stride, copied only if it must be.

    Raises:
        BadInput: it is a scalar.
    """
    if tensor.dim() == 0:
        raise BadInput(f"{kernel} needs {name} of a dimension at least, not a scalar", field=name)
    if tensor.dim() == 1:
        tensor = tensor.view(1, -1) if tensor.numel() else tensor.view(1, 0)
    elif tensor.dim() > 3:
        tensor = tensor.reshape(math.prod(tensor.shape[:-2]), *tensor.shape[-2:])
    return dense(tensor)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with unit inner stride, copied only if it must be."""
    if tensor.dim() == 0 or tensor.shape[-1] <= 1 or tensor.stride(-1) == 1:
        return tensor
    return tensor.contiguous()


def check_out(
    kernel: str, out: torch.Tensor, shape: tuple[int, ...], like: torch.Tensor, operands: Mapping[str, torch.Tensor]
) -> None:
    """Refuse an output that a kernel cannot write whole, in ``shape`` and as ``like``, or whose memory it would read
    while writing.

    Raises:
        BadInput: which of these it is.
    """
    if tuple(out.shape) != tuple(shape):
        raise BadInput(f"{kernel} needs out of shape {list(shape)}, not {list(out.shape)}", field="out")
    if out.dtype != like.dtype or out.device != like.device:
        raise BadInput(
            f"{kernel} needs out in {like.dtype} on {like.device}, not {out.dtype} on {out.device}", field="out"
        )
    if not out.is_contiguous():
        raise BadInput(f"{kernel} needs a contiguous out, not one of strides {list(out.stride())}", field="out")
    begin, end = _extent(out)
    for name, tensor in operands.items():
        first, last = _extent(tensor)
        if begin < last and first < end:
            raise BadInput(f"{kernel} needs out apart from {name} in memory", field="out")


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first byte to after its last; nothing for an empty one."""
    if not tensor.numel():
        return 0, 0
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()
