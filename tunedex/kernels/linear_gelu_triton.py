"""linear_gelu in Triton: a tiled matrix product with the bias and the activation in its epilogue.

Three variants of one algorithm. ``pointer`` computes an address for each element and runs everywhere; ``descriptor``
moves whole tiles by the tensor memory accelerator (Hopper and later); ``persistent`` does so too and keeps one
program a multiprocessor, which walks over the tiles, so that the loads of a tile overlap the epilogue of the one
before. Tiles are visited in groups of ``group_m`` rows of tiles, so that what neighbours read stays in L2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.measurement import Resources
from tunedex.core.problem import ALIGNMENT_BYTES, Problem
from tunedex.kernels.base import Constraint, Implementation, Launch, Tensors, Tunable, too_old
from tunedex.kernels.gelu import gelu_exact
from tunedex.kernels.jit import jit, tl
from tunedex.kernels.offline import WARP_SIZE, MockTensor, compile_triton
from tunedex.kernels.rows import item_bytes, wide_pitch

if TYPE_CHECKING:
    import torch

    _Tensor = torch.Tensor | MockTensor

#: A thread that holds more float32 accumulators than this spills.
MAX_ACCUMULATORS = 128
MIN_ACCUMULATORS = 32
#: A product without tensor cores is unrolled whole: more multiply-adds a thread take minutes to compile.
MAX_UNROLLED = 4096
#: Rows up to which tiles shorter than 64 rows are worth trying.
FEW_ROWS = 64


class TritonLinear(Implementation):
    """float16 and bfloat16 on tensor cores; float32 on tensor cores as tf32, or exactly without them (ieee)."""

    name: ClassVar[str] = "triton"
    kinds: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def missing(self) -> str | None:
        return "triton is not installed" if tl is None else None

    def takes(self, problem: Problem, device: Device) -> str | None:
        return too_old(device)

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        wide = problem.dtype == "float32"
        few = problem.batch * problem.dims["m"] <= FEW_ROWS
        return (
            Tunable("variant", _variants(problem, device), "how tiles are moved and programs laid out"),
            Tunable("precision", ("ieee", "tf32") if wide else ("ieee",), "what a product of two elements keeps"),
            Tunable("block_m", (16, 32, 64) if few else (64, 128, 256), "rows of an output tile"),
            Tunable("block_n", (64, 128, 256), "columns of an output tile"),
            Tunable("block_k", (16, 32, 64) if wide else (32, 64, 128), "terms loaded at a time"),
            Tunable("group_m", (8,) if few else (8, 16), "rows of tiles visited together"),
            Tunable("num_warps", (4, 8), "warps a program"),
            Tunable("num_stages", (2, 3, 4, 5), "loads in flight"),
        )

    def constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        size = item_bytes(problem)
        wide = problem.dtype == "float32"

        def shared_memory_fits(v: Mapping[str, Value]) -> bool:
            # A rough count: the tile in the making lies in registers before Hopper. The compiled size decides.
            tiles = int(v["num_stages"]) - (device.target < 90)
            tile = (int(v["block_m"]) + int(v["block_n"])) * int(v["block_k"]) * size
            return tiles * tile <= device.shared_memory_bytes

        def accumulators(v: Mapping[str, Value]) -> int:
            return int(v["block_m"]) * int(v["block_n"]) // (int(v["num_warps"]) * WARP_SIZE)

        def exact(v: Mapping[str, Value]) -> bool:
            return wide and v["precision"] == "ieee"

        return (
            Constraint(
                f"an accumulator tile of up to {MAX_ACCUMULATORS} registers a thread",
                lambda v: accumulators(v) <= MAX_ACCUMULATORS,
            ),
            Constraint(
                "enough work for each warp",
                lambda v: accumulators(v) >= MIN_ACCUMULATORS or int(v["num_warps"]) == 4,
            ),
            Constraint("the stages fit into shared memory", shared_memory_fits),
            Constraint(
                "exact float32 by pointers, with a loop body that compiles in time; arithmetic hides its loads",
                lambda v: (
                    not exact(v)
                    or (
                        v["variant"] == "pointer"
                        and accumulators(v) * int(v["block_k"]) <= MAX_UNROLLED
                        and int(v["num_stages"]) <= 3
                        and v["group_m"] == 8
                    )
                ),
            ),
            Constraint(
                "a row of a loaded tile of 64 bytes or more, 128 on Hopper and later",
                lambda v: exact(v) or int(v["block_k"]) * size >= (128 if device.target >= 90 else 64),
            ),
        )

    def compile(self, problem: Problem, config: Config, device: Device) -> Resources:
        rows, n, k = problem.batch * problem.dims["m"], problem.dims["n"], problem.dims["k"]
        aligned = problem.alignment == ALIGNMENT_BYTES
        # A strided problem does not say its pitch; one of another divisibility by 16 compiles anew when launched.
        pitch = wide_pitch(problem, k) if problem.layout == "strided" else k
        x, weight = (MockTensor(problem.dtype, aligned=aligned, shape=(height, k), pitch=pitch) for height in (rows, n))
        bias = MockTensor(problem.dtype, aligned=aligned, shape=(n,))
        out = MockTensor(problem.dtype, shape=(rows, n))
        plan = _plan(problem, config, device)
        arguments = plan.arguments(x, weight, bias, out)
        return compile_triton(device, plan.function, *arguments, grid=plan.grid, **plan.meta)

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        plan = _plan(problem, config, device)
        function, meta = plan.function[plan.grid], plan.meta

        def launch(operands: Tensors, outputs: Tensors) -> None:
            x, out = operands["x"], outputs["out"]
            x, out = x.view(-1, x.shape[-1]), out.view(-1, out.shape[-1])
            function(*plan.arguments(x, operands["weight"], operands["bias"], out), **meta)

        return launch


def _variants(problem: Problem, device: Device) -> tuple[str, ...]:
    """The variants that ``problem`` can run with: descriptors need aligned rows, the output's too."""
    row_bytes = [problem.dims["n"] * item_bytes(problem)]
    if problem.layout == "contiguous":  # else the alignment class holds the pitches
        row_bytes.append(problem.dims["k"] * item_bytes(problem))
    tma = (
        device.target >= 90
        and all(size % ALIGNMENT_BYTES == 0 for size in (problem.alignment, *row_bytes))
        and max(problem.batch * problem.dims["m"], problem.dims["n"], problem.dims["k"]) < 2**31
    )
    return ("pointer", "descriptor", "persistent") if tma else ("pointer",)


@dataclass(frozen=True)
class _Plan:
    """A launch but for its tensors: the Triton function, its grid and its compile-time values. ``blocks`` are the
    shapes of the tiles of x, weight and out where those go by descriptors."""

    function: Any
    grid: tuple[int, ...]
    meta: Mapping[str, Any]
    sizes: tuple[int, int, int]
    blocks: tuple[list[int], list[int], list[int]] | None = None

    def arguments(self, x: _Tensor, weight: _Tensor, bias: _Tensor, out: _Tensor) -> tuple[Any, ...]:
        """The arguments for x and out of two dimensions."""
        if self.blocks is None:
            return (x, weight, bias, out, *self.sizes, x.stride(0), weight.stride(0))
        from triton.tools.tensor_descriptor import TensorDescriptor

        described = (
            TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)
            for tensor, block in zip((x, weight, out), self.blocks, strict=True)
        )
        return (*described, bias, *self.sizes)


def _plan(problem: Problem, config: Config, device: Device) -> _Plan:
    values = config.values
    sizes = rows, n, k = problem.batch * problem.dims["m"], problem.dims["n"], problem.dims["k"]
    block_m, block_n, block_k = (int(values[name]) for name in ("block_m", "block_n", "block_k"))
    tiles = -(-rows // block_m) * -(-n // block_n)
    meta: dict[str, Any] = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "GROUP_M": int(values["group_m"]),
        "FORM": problem.attributes["gelu"],
        "PRECISION": str(values["precision"]),
        "num_warps": int(values["num_warps"]),
        "num_stages": int(values["num_stages"]),
    }
    if values["variant"] == "pointer":
        return _Plan(_pointer, (tiles,), {**meta, "WHOLE_K": k % block_k == 0}, sizes)
    blocks = [block_m, block_k], [block_n, block_k], [block_m, block_n]
    if values["variant"] == "descriptor":
        return _Plan(_descriptor, (tiles,), meta, sizes, blocks)
    programs = min(tiles, device.multiprocessors)
    return _Plan(_persistent, (programs,), {**meta, "PROGRAMS": programs}, sizes, blocks)


@jit
def _tile(index, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of the tile that is visited as number ``index``: down a group of rows, then to the right."""
    per_group = GROUP_M * tiles_n
    first = (index // per_group) * GROUP_M
    height = min(tiles_m - first, GROUP_M)
    within = index % per_group
    return first + within % height, within // height


@jit
def _pointer(
    x,
    weight,
    bias,
    out,
    rows,
    n,
    k,
    x_pitch,
    weight_pitch,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    FORM: tl.constexpr,
    PRECISION: tl.constexpr,
    WHOLE_K: tl.constexpr,
):
    tile_m, tile_n = _tile(tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    row = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    term = tl.arange(0, BLOCK_K)
    # Rows and columns beyond the edge read those at the start, unmasked: what they give is not stored.
    x_at = x + tl.where(row < rows, row, 0)[:, None] * x_pitch + term[None, :]
    weight_at = weight + tl.where(column < n, column, 0)[None, :] * weight_pitch + term[:, None]
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for done in range(0, k, BLOCK_K):
        if WHOLE_K:
            a = tl.load(x_at)
            b = tl.load(weight_at)
        else:
            a = tl.load(x_at, mask=(term < k - done)[None, :], other=0.0)
            b = tl.load(weight_at, mask=(term < k - done)[:, None], other=0.0)
        accumulator = tl.dot(a, b, accumulator, input_precision=PRECISION)
        x_at += BLOCK_K
        weight_at += BLOCK_K
    z = accumulator + tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    result = gelu_exact(z, FORM).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * n + column[None, :], result, mask=(row < rows)[:, None] & (column < n)[None, :])


@jit
def _sums(
    x,
    weight,
    tile_m,
    tile_n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The sums of one tile, loaded by the descriptors ``x`` and ``weight``. Inlined before loops are flattened."""
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    # Descriptors read zeros beyond the edge and store nothing there.
    for done in range(0, k, BLOCK_K):
        a = x.load([tile_m * BLOCK_M, done])
        b = weight.load([tile_n * BLOCK_N, done])
        accumulator = tl.dot(a, b.T, accumulator, input_precision=PRECISION)
    return accumulator


@jit
def _finish(accumulator, out, bias, row, first_column, n, FORM: tl.constexpr):
    """Add the bias to the sums of a tile, activate, and store it by the descriptor ``out``."""
    column = first_column + tl.arange(0, accumulator.shape[1])
    z = accumulator + tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    out.store([row, first_column], gelu_exact(z, FORM).to(out.dtype))


@jit
def _descriptor(
    x,
    weight,
    out,
    bias,
    rows,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    FORM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile_m, tile_n = _tile(tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    accumulator = _sums(x, weight, tile_m, tile_n, k, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
    _finish(accumulator, out, bias, tile_m * BLOCK_M, tile_n * BLOCK_N, n, FORM)


@jit
def _persistent(
    x,
    weight,
    out,
    bias,
    rows,
    n,
    k,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    FORM: tl.constexpr,
    PRECISION: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    tiles_m = tl.cdiv(rows, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    first = tl.program_id(0)
    # The epilogue counts its tiles by itself: a value that crosses the inner loop would keep the two loops from
    # being flattened into one pipelined loop.
    finished = first - PROGRAMS
    for index in tl.range(first, tiles_m * tiles_n, PROGRAMS, flatten=True):
        tile_m, tile_n = _tile(index, tiles_m, tiles_n, GROUP_M)
        accumulator = _sums(x, weight, tile_m, tile_n, k, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
        finished += PROGRAMS
        tile_m, tile_n = _tile(finished, tiles_m, tiles_n, GROUP_M)
        _finish(accumulator, out, bias, tile_m * BLOCK_M, tile_n * BLOCK_N, n, FORM)
