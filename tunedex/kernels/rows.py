"""What kernels that work row by row share: reading tensors as rows, and the alignment that decides vector widths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunedex.core.config import Value
from tunedex.core.dtypes import DTYPES
from tunedex.core.errors import BadInput
from tunedex.core.problem import ALIGNMENT_BYTES, Problem
from tunedex.core.signature import BATCH, DefaultRule, Dimension

if TYPE_CHECKING:
    import torch

    from tunedex.kernels.base import InputSource

#: Compilers specialise a row kernel for the width of its rows, so only the count of rows may differ from a tuned one.
ROW_DIMENSIONS = (BATCH, Dimension("rows"), Dimension("cols", "exact"))
ROW_DTYPES = ("float32", "float16", "bfloat16")

#: The longest row that one block keeps in its registers.
LONGEST_ROW = 32768

#: What a layer norm adds to the variance, where the caller says nothing.
EPS = 1e-5

#: Float32 rows of fewer columns than this are left to the library.
NARROW = 16

#: The most blocks that a launch has.
MAX_GRID = 2**31 - 1

WARP = 32

#: The files that every row kernel runs besides its own, in a fixed order: a change to one is a new version of each.
ROW_CODE = (
    "gelu.py",
    "numba_cpu.py",
    "rows.py",
    "rows_gpu.py",
    "rows_triton.py",
    "rows_cuda.py",
    "nvrtc.py",
    "cuda/rows.cuh",
)


def shape(problem: Problem) -> tuple[int, int, int]:
    """``(batch, rows, cols)``."""
    return problem.dims["batch"], problem.dims["rows"], problem.dims["cols"]


def item_bytes(problem: Problem) -> int:
    return DTYPES[problem.dtype].bytes


def input_lanes(problem: Problem) -> int:
    """How many elements of an input row may be read at once: all rows start at a multiple of as many."""
    width = problem.alignment
    if problem.layout == "contiguous":
        width = math.gcd(width, problem.dims["cols"] * item_bytes(problem))
    return max(1, width // item_bytes(problem))


def output_lanes(problem: Problem) -> int:
    """How many elements of an output row may be written at once: outputs are contiguous and begin aligned."""
    return max(1, math.gcd(ALIGNMENT_BYTES, problem.dims["cols"] * item_bytes(problem)) // item_bytes(problem))


def pitches(tensor: torch.Tensor) -> tuple[int, int]:
    """The distance in elements from one batch item to the next, and from one row to the next."""
    strides = tensor.stride()
    return (strides[0], strides[1]) if len(strides) == 3 else (0, strides[0])


def row_parameters(
    kernel: str, tensors: Mapping[str, torch.Tensor], vectors: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """The parameters of a problem on ``tensors`` of ``[rows, cols]`` or ``[batch, rows, cols]``, all of one shape, and
    ``vectors`` of ``[cols]``; one dtype and one device for all, and a unit inner stride. A dimension of size 1 has
    no stride to speak of.

    Contiguous rows follow from the width, so there only the addresses decide the alignment; else the pitches too.

    Raises:
        BadInput: a shape, dtype, device or stride is not as said.
    """
    name, first = next(iter(tensors.items()))
    if first.dim() not in (2, 3):
        raise BadInput(
            f"{kernel} takes {name} as [rows, cols] or [batch, rows, cols], not {list(first.shape)}", field=name
        )
    cols = first.shape[-1]
    for other, tensor in (*tensors.items(), *vectors.items()):
        expected = (cols,) if other in vectors else tuple(first.shape)
        if tuple(tensor.shape) != expected:
            raise BadInput(
                f"{kernel} needs {other} of shape {list(expected)} beside {name} of {list(first.shape)}, "
                f"not {list(tensor.shape)}",
                field=other,
            )
        if tensor.dtype != first.dtype:
            raise BadInput(f"{kernel} needs {other} in {first.dtype}, as {name}, not {tensor.dtype}", field=other)
        if tensor.device != first.device:
            raise BadInput(f"{kernel} needs {other} on {first.device}, as {name}, not {tensor.device}", field=other)
        if cols > 1 and tensor.stride(-1) != 1:
            raise BadInput(f"{kernel} needs {other} with unit stride along cols, not {tensor.stride(-1)}", field=other)
    strided = not all(tensor.is_contiguous() for tensor in tensors.values())
    places = [tensor.data_ptr() for tensor in (*tensors.values(), *vectors.values())]
    if strided:
        places += [pitch * first.element_size() for tensor in tensors.values() for pitch in _used_pitches(tensor)]
    return {
        "batch": first.shape[0] if first.dim() == 3 else 1,
        "rows": first.shape[-2],
        "cols": cols,
        "dtype": first.dtype,
        "layout": "strided" if strided else "contiguous",
        "alignment": math.gcd(ALIGNMENT_BYTES, *places),
    }


def row_operand(problem: Problem, source: InputSource, *, outliers: bool = True) -> torch.Tensor:
    """Standard normal values of ``[batch, rows, cols]`` in the problem's layout and exactly its alignment class;
    ``source`` and ``outliers`` decide about outliers."""
    cols = problem.dims["cols"]
    values = source.normal(shape(problem), problem.dtype, outliers=outliers)
    strided = problem.layout == "strided" or source.strided
    return placed(values, wide_pitch(problem, cols) if strided else cols, offset(problem))


def vector_operand(problem: Problem, values: torch.Tensor) -> torch.Tensor:
    """``values`` of ``[cols]`` at an address of exactly the problem's alignment class."""
    return placed(values[None, None], values.numel(), offset(problem))[0, 0]


def wide_pitch(problem: Problem, cols: int) -> int:
    """A row pitch in elements for rows of ``cols`` in a strided problem: wider, and of the problem's alignment."""
    step = _step(problem)
    return (cols // step + 2) * step


def offset(problem: Problem) -> int:
    """The element of an aligned buffer whose address has exactly the problem's alignment class."""
    return _step(problem) if problem.alignment < ALIGNMENT_BYTES else 0


def placed(values: torch.Tensor, pitch: int, offset: int) -> torch.Tensor:
    """``values`` copied to a buffer where rows begin ``pitch`` elements apart, the first at element ``offset``."""
    import torch

    if not offset and values.stride() == (values.shape[1] * pitch, pitch, 1):
        return values
    batch, rows, cols = values.shape
    # Zeros between the rows, as in `InputSource.normal`.
    buffer = torch.zeros(offset + batch * rows * pitch, dtype=values.dtype, device=values.device)
    view = buffer.as_strided((batch, rows, cols), (rows * pitch, pitch, 1), offset)
    return view.copy_(values)


def narrow_rule(kind: str) -> DefaultRule:
    """The library for float32 rows of a few columns. There a sum errs by as much as chance has it, and the unfused
    chain perhaps by nothing; held against it, only the chain itself is sure to be accepted."""
    return DefaultRule(kind, {"implementation": "library"}, {"cols": (0, NARROW - 1)}, dtypes=("float32",))


def cpu_default_rules(**more: Value) -> tuple[DefaultRule, ...]:
    """numba for float32, the library for narrow rows and for the rest; ``more`` are the kernel's own tunables."""
    config: Mapping[str, Value] = {
        "implementation": "numba",
        "vector_bits": 0,
        "rows_per_task": 1,
        "threads": 0,
        **more,
    }
    return (
        narrow_rule("cpu"),
        DefaultRule("cpu", config, dtypes=("float32",)),
        DefaultRule("cpu", {"implementation": "library"}),
    )


def _step(problem: Problem) -> int:
    """The problem's alignment in elements."""
    return max(1, problem.alignment // item_bytes(problem))


def _used_pitches(tensor: torch.Tensor) -> list[int]:
    """The strides of the dimensions before the last that have more than one entry."""
    return [stride for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if size > 1]
