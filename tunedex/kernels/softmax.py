"""softmax: out = exp(x - max x) / sum exp(x - max x) over the last dimension.

Arithmetic is float32 whatever the dtype; the result has the dtype of ``x`` and is rounded once. The exponentials
are powers of two, 2^((x - max x) log2 e).
"""

# Tuples grow while Triton unrolls a loop, which mypy takes for changing a type.
# mypy: disable-error-code="assignment, misc"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Resources
from tunedex.core.problem import ALIGNMENT_BYTES, Problem
from tunedex.core.signature import Operand, Signature
from tunedex.kernels.base import (
    Constraint,
    Cost,
    Implementation,
    InputSource,
    Kernel,
    Launch,
    OutputSpec,
    Reference,
    Tensors,
    Tunable,
)
from tunedex.kernels.jit import jit, tl
from tunedex.kernels.nvrtc import INT64, POINTER, current_stream
from tunedex.kernels.rows import (
    ROW_CODE,
    ROW_DIMENSIONS,
    ROW_DTYPES,
    cpu_default_rules,
    item_bytes,
    pitches,
    row_operand,
    row_parameters,
    shape,
)
from tunedex.kernels.rows_cuda import CudaRows, block_count, block_threads
from tunedex.kernels.rows_gpu import GpuRows
from tunedex.kernels.rows_triton import (
    TritonRows,
    blocks,
    compile_pitches,
    default_rules,
    lane_pitches,
    meta,
    tile_count,
)
from tunedex.kernels.softmax_numba import NumbaSoftmax
from tunedex.kernels.streams import fork_join, parts
from tunedex.kernels.version import version_of

if TYPE_CHECKING:
    import torch

#: What runs, in a fixed order: a change to any of them is a new version.
_CODE = tuple(
    Path(__file__).parent / name
    for name in (*ROW_CODE, "softmax.py", "softmax_numba.py", "streams.py", "cuda/softmax.cu")
)

STREAMS = (1, 2, 4, 8)


@jit
def _tile(
    X,
    OUT,
    tile,
    total,
    rows,
    x_batch,
    x_row,
    COLS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    EVICT: tl.constexpr,
):
    """One tile of ROWS rows. Rows beyond the last repeat it, and only stores are masked."""
    row = tile * tl.full((ROWS,), ROWS, tl.int64) + tl.arange(0, ROWS)
    safe = tl.minimum(row, total - 1)
    item = safe // rows
    line = safe - item * rows
    x_at = X + (item * x_batch + line * x_row)[:, None] * LANES
    lane = tl.arange(0, CHUNK)[None, :]
    raw = ()
    for i in tl.static_range(CHUNKS):
        c = lane + i * CHUNK
        raw = raw + (tl.load(x_at + c, mask=c < COLS, other=-float("inf"), eviction_policy=EVICT),)
    top = raw[0].to(tl.float32)
    for i in tl.static_range(1, CHUNKS):
        top = tl.maximum(top, raw[i].to(tl.float32))
    largest = tl.max(top, axis=1)[:, None]
    values = ()
    partial = tl.zeros((ROWS, CHUNK), tl.float32)
    for i in tl.static_range(CHUNKS):
        e = tl.exp2((raw[i].to(tl.float32) - largest) * 1.4426950408889634)
        values = values + (e,)
        partial += e
    scale = (1.0 / tl.sum(partial, axis=1))[:, None]
    out_at = OUT + (row * COLS)[:, None]
    inside = (row < total)[:, None]
    for i in tl.static_range(CHUNKS):
        c = lane + i * CHUNK
        y = (values[i] * scale).to(OUT.dtype.element_ty)
        tl.store(out_at + c, y, mask=inside & (c < COLS), eviction_policy=EVICT)


@jit
def _rows(
    X,
    OUT,
    tiles,
    total,
    rows,
    x_batch,
    x_row,
    COLS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    WALK: tl.constexpr,
    STAGES: tl.constexpr,
    EVICT: tl.constexpr,
):
    """softmax over ``total`` rows; pitches in vectors of LANES elements."""
    if WALK:
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
            _tile(X, OUT, tile, total, rows, x_batch, x_row, COLS, CHUNK, CHUNKS, ROWS, LANES, EVICT)
    else:
        _tile(X, OUT, tl.program_id(0), total, rows, x_batch, x_row, COLS, CHUNK, CHUNKS, ROWS, LANES, EVICT)


class StreamedRows(GpuRows):
    """Chooses how many streams the items of the batch are split over."""

    most_elements: ClassVar[int] = 144

    def choices(self, problem: Problem) -> Sequence[Tunable]:
        counts = tuple(count for count in STREAMS if count == 1 or count <= problem.batch)
        return (Tunable("streams", counts, "streams that the items of the batch are split over"),)

    def choice_constraints(self) -> Sequence[Constraint]:
        return (self.plain_with("several streams", lambda v: v["streams"] == 1),)


class TritonSoftmax(StreamedRows, TritonRows):
    def compile(self, problem: Problem, config: Config, device: Device) -> Resources:
        from tunedex.kernels.offline import MockTensor, compile_triton

        batch, rows, _ = shape(problem)
        items = len(parts(batch, config.streams)[0])
        tiles = tile_count(items * rows, config.values)
        x = MockTensor(problem.dtype, aligned=problem.alignment == ALIGNMENT_BYTES)
        out = MockTensor(problem.dtype)
        sizes = (tiles, items * rows, rows, *compile_pitches(problem))
        return compile_triton(device, _rows, x, out, *sizes, **meta(problem, config.values, tiles))

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        batch, rows, _ = shape(problem)

        def part(items: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
            tiles = tile_count(items * rows, config.values)
            kernel = _rows[blocks(config.values, device, tiles),]
            settings = meta(problem, config.values, tiles)

            def run(x: torch.Tensor, out: torch.Tensor) -> None:
                kernel(x, out, tiles, items * rows, rows, *lane_pitches(x, settings["LANES"]), **settings)

            return run

        return _over_streams(batch, config.streams, part)


class CudaSoftmax(StreamedRows, CudaRows):
    source: ClassVar[str] = "softmax"
    types: ClassVar[tuple[type, ...]] = (*[POINTER] * 2, *[INT64] * 4)

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        batch, rows, _ = shape(problem)
        kernel = self.kernel(problem, config, device)
        threads = block_threads(config.values)

        def part(items: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
            total = items * rows
            count = block_count(config.values, device, total)

            def run(x: torch.Tensor, out: torch.Tensor) -> None:
                sizes = (total, rows, *pitches(x))
                kernel.launch(count, threads, current_stream(x.device), (x.data_ptr(), out.data_ptr(), *sizes))

            return run

        return _over_streams(batch, config.streams, part)


class LibrarySoftmax(Implementation):
    """``torch.softmax``, writing into the output."""

    name: ClassVar[str] = "library"
    kinds: ClassVar[frozenset[str]] = frozenset({"cuda", "cpu"})

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return ()

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        def launch(operands: Tensors, outputs: Tensors) -> None:
            import torch

            x = operands["x"]
            torch.softmax(x, -1, out=outputs["out"].view(x.shape))

        return launch


def _over_streams(
    batch: int, streams: int, part: Callable[[int], Callable[[torch.Tensor, torch.Tensor], None]]
) -> Launch:
    """A launch that splits the batch over ``streams``; ``part`` binds the kernel for a count of items."""
    pieces = tuple((items.start, len(items), part(len(items))) for items in parts(batch, streams))

    def launch(operands: Tensors, outputs: Tensors) -> None:
        x, out = operands["x"], outputs["out"]
        if len(pieces) == 1:
            pieces[0][2](x, out)
            return
        fork_join(
            x.device,
            [partial(run, x.narrow(0, first, count), out.narrow(0, first, count)) for first, count, run in pieces],
        )

    return launch


class Softmax(Kernel):
    signature: ClassVar[Signature] = Signature(
        kernel="softmax",
        version=version_of(*_CODE),
        formula="out = exp(x - max(x)) / sum(exp(x - max(x)))",
        dimensions=ROW_DIMENSIONS,
        operands=(Operand("x", ROW_DTYPES),),
        defaults=(*default_rules(streams=1), *cpu_default_rules(exp_math="fitted", stores="cached")),
    )
    implementations: ClassVar[tuple[Implementation, ...]] = (
        TritonSoftmax(),
        CudaSoftmax(),
        NumbaSoftmax(),
        LibrarySoftmax(),
    )
    row_operands = frozenset({"x"})
    dimensions_notes: ClassVar[Mapping[str, str]] = {
        "batch": "rows of all items are alike, so a batch is more rows; it is what streams split",
        "streams": "triton and cuda; numba has threads instead, and the library call is taken as its users have it",
        "precision": "float32 within for every dtype: memory is the limit, and nothing is won by less",
        "dtypes": "one, as the model stores scores; 8-bit storage belongs to the product that reads the result",
    }

    def cost(self, problem: Problem) -> Cost:
        batch, rows, cols = shape(problem)
        elements = batch * rows * cols
        # Per element: compare, subtract, exponentiate, add, scale.
        return Cost(flops=5.0 * elements, bytes=float(2 * elements * item_bytes(problem)))

    def reduction_length(self, problem: Problem) -> int:
        return problem.dims["cols"]

    def operands(self, problem: Problem, source: InputSource) -> dict[str, torch.Tensor]:
        return {"x": row_operand(problem, source)}

    def outputs(self, problem: Problem) -> dict[str, OutputSpec]:
        return {"out": OutputSpec(shape(problem), problem.dtype)}

    def reference(self, problem: Problem, operands: Tensors, dtype: torch.dtype | None = None) -> dict[str, Reference]:
        """Softmax in ``dtype``. The scale of an element is its value times 1 + |x - max x|: one rounding of the
        exponent, relative to its size, changes the exponential by as much."""
        import torch

        x = operands["x"].to(dtype or torch.float64)
        value = torch.softmax(x, -1)
        distance = x.amax(-1, keepdim=True) - x
        return {"out": Reference(value, distance.add_(1.0).mul_(value))}

    def eager(self, problem: Problem, operands: Tensors) -> dict[str, torch.Tensor]:
        import torch

        return {"out": torch.softmax(operands["x"], -1)}

    def problem_of(self, operands: Tensors, attributes: Mapping[str, str]) -> Problem:
        return self.signature.problem({**row_parameters(self.name, {"x": operands["x"]}, {}), **attributes})

    def quick(self, device: Device) -> Sequence[Mapping[str, Any]]:
        if device.kind == "cpu":
            return ({"batch": 2, "rows": 1024, "cols": 4096, "dtype": "float32"},)
        return ({"batch": 8, "rows": 4224, "cols": 4224, "dtype": "bfloat16"},)


KERNEL = Softmax()
