"""layernorm_gelu_residual: out = gelu(layernorm(x) * weight + bias) + residual over the last dimension.

    layernorm(x) = (x - mean(x)) / sqrt(variance(x) + eps)      Ba, Kiros and Hinton, arXiv:1607.06450, section 3.1

The variance is the mean of squares, not the unbiased one. Arithmetic is float32 whatever the dtype; the result has
the dtype of ``x`` and is rounded once. ``eps`` is no part of a problem, for it changes neither what may run nor its
speed: it is `EPS`, and a bound launch takes another as its keyword ``eps``.
"""

# Tuples grow while Triton unrolls a loop, which mypy takes for changing a type.
# mypy: disable-error-code="assignment, misc"

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.dtypes import DTYPES
from tunedex.core.measurement import Resources
from tunedex.core.problem import ALIGNMENT_BYTES, Problem
from tunedex.core.signature import Attribute, Operand, Signature
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
from tunedex.kernels.gelu import FORMS, fitted, gelu_exact, gelu_fitted
from tunedex.kernels.jit import jit, tl
from tunedex.kernels.layernorm_gelu_residual_numba import NumbaNorm
from tunedex.kernels.nvrtc import FLOAT, INT64, POINTER, current_stream
from tunedex.kernels.rows import (
    EPS,
    ROW_CODE,
    ROW_DIMENSIONS,
    ROW_DTYPES,
    cpu_default_rules,
    item_bytes,
    pitches,
    row_operand,
    row_parameters,
    shape,
    vector_operand,
)
from tunedex.kernels.rows_cuda import CudaRows, block_count, block_threads
from tunedex.kernels.rows_triton import (
    TritonRows,
    blocks,
    compile_pitches,
    default_rules,
    lane_pitches,
    meta,
    tile_count,
)
from tunedex.kernels.version import version_of

if TYPE_CHECKING:
    import torch

#: What runs, in a fixed order: a change to any of them is a new version.
_CODE = tuple(
    Path(__file__).parent / name
    for name in (
        *ROW_CODE,
        "layernorm_gelu_residual.py",
        "layernorm_gelu_residual_numba.py",
        "cuda/layernorm_gelu_residual.cu",
    )
)

_OPERANDS = ("x", "weight", "bias", "residual")
_GELU_MATH = ("exact", "fitted")


@jit
def _tile(
    X,
    RESIDUAL,
    OUT,
    w,
    b,
    tile,
    total,
    rows,
    x_batch,
    x_row,
    r_batch,
    r_row,
    eps,
    COLS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    EVICT: tl.constexpr,
    FORM: tl.constexpr,
    Q: tl.constexpr,
):
    """One tile of ROWS rows. Rows beyond the last repeat it, and only stores are masked."""
    row = tile * tl.full((ROWS,), ROWS, tl.int64) + tl.arange(0, ROWS)
    safe = tl.minimum(row, total - 1)
    item = safe // rows
    line = safe - item * rows
    x_at = X + (item * x_batch + line * x_row)[:, None] * LANES
    r_at = RESIDUAL + (item * r_batch + line * r_row)[:, None] * LANES
    lane = tl.arange(0, CHUNK)[None, :]
    # Both operands are asked for before the reductions, so that one wait serves them.
    raw = ()
    rest = ()
    for i in tl.static_range(CHUNKS):
        c = lane + i * CHUNK
        raw = raw + (tl.load(x_at + c, mask=c < COLS, other=0.0, eviction_policy=EVICT),)
        rest = rest + (tl.load(r_at + c, mask=c < COLS, other=0.0, eviction_policy=EVICT),)
    partial = raw[0].to(tl.float32)
    for i in tl.static_range(1, CHUNKS):
        partial += raw[i].to(tl.float32)
    mean = (tl.sum(partial, axis=1) * (1.0 / COLS))[:, None]
    partial = tl.zeros((ROWS, CHUNK), tl.float32)
    for i in tl.static_range(CHUNKS):
        d = raw[i].to(tl.float32) - mean
        if (i + 1) * CHUNK > COLS:
            d = tl.where(lane + i * CHUNK < COLS, d, 0.0)
        partial += d * d
    scale = tl.rsqrt(tl.sum(partial, axis=1) * (1.0 / COLS) + eps)[:, None]
    out_at = OUT + (row * COLS)[:, None]
    inside = (row < total)[:, None]
    for i in tl.static_range(CHUNKS):
        c = lane + i * CHUNK
        z = (raw[i].to(tl.float32) - mean) * scale * w[i].to(tl.float32) + b[i].to(tl.float32)
        y = gelu_fitted(z, Q) if FORM == "" else gelu_exact(z, FORM)
        y += rest[i].to(tl.float32)
        tl.store(out_at + c, y.to(OUT.dtype.element_ty), mask=inside & (c < COLS), eviction_policy=EVICT)


@jit
def _rows(
    X,
    WEIGHT,
    BIAS,
    RESIDUAL,
    OUT,
    tiles,
    total,
    rows,
    x_batch,
    x_row,
    r_batch,
    r_row,
    eps,
    COLS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    WALK: tl.constexpr,
    STAGES: tl.constexpr,
    EVICT: tl.constexpr,
    FORM: tl.constexpr,
    Q: tl.constexpr,
):
    """The fused kernel over ``total`` rows; pitches in vectors of LANES elements. FORM is "" for the fitted GELU."""
    lane = tl.arange(0, CHUNK)[None, :]
    w = ()
    b = ()
    for i in tl.static_range(CHUNKS):
        c = lane + i * CHUNK
        w = w + (tl.load(WEIGHT + c, mask=c < COLS, other=0.0),)
        b = b + (tl.load(BIAS + c, mask=c < COLS, other=0.0),)
    if WALK:
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
            _tile(
                X,
                RESIDUAL,
                OUT,
                w,
                b,
                tile,
                total,
                rows,
                x_batch,
                x_row,
                r_batch,
                r_row,
                eps,
                COLS,
                CHUNK,
                CHUNKS,
                ROWS,
                LANES,
                EVICT,
                FORM,
                Q,
            )
    else:
        _tile(
            X,
            RESIDUAL,
            OUT,
            w,
            b,
            tl.program_id(0),
            total,
            rows,
            x_batch,
            x_row,
            r_batch,
            r_row,
            eps,
            COLS,
            CHUNK,
            CHUNKS,
            ROWS,
            LANES,
            EVICT,
            FORM,
            Q,
        )


class TritonNorm(TritonRows):
    most_elements: ClassVar[int] = 64

    def choices(self, problem: Problem) -> Sequence[Tunable]:
        return (Tunable("gelu_math", _GELU_MATH, "GELU by the compiler's erf or exp, or as one fitted exponential"),)

    def choice_constraints(self) -> Sequence[Constraint]:
        return (self.plain_with("the exact GELU", lambda v: v["gelu_math"] == "fitted"),)

    def compile(self, problem: Problem, config: Config, device: Device) -> Resources:
        from tunedex.kernels.offline import MockTensor, compile_triton

        batch, rows, _ = shape(problem)
        tiles = tile_count(batch * rows, config.values)
        aligned = MockTensor(problem.dtype)
        given = MockTensor(problem.dtype, aligned=problem.alignment == ALIGNMENT_BYTES)
        pitch = compile_pitches(problem)
        return compile_triton(
            device,
            _rows,
            given,
            given,
            given,
            given,
            aligned,
            tiles,
            batch * rows,
            rows,
            *pitch,
            *pitch,
            EPS,
            **_meta(problem, config.values, tiles),
        )

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        batch, rows, _ = shape(problem)
        tiles = tile_count(batch * rows, config.values)
        grid = (blocks(config.values, device, tiles),)
        settings = _meta(problem, config.values, tiles)
        lanes = settings["LANES"]
        kernel = _rows[grid]

        def launch(operands: Tensors, outputs: Tensors, *, eps: float = EPS) -> None:
            x, residual = operands["x"], operands["residual"]
            kernel(
                x,
                operands["weight"],
                operands["bias"],
                residual,
                outputs["out"],
                tiles,
                batch * rows,
                rows,
                *lane_pitches(x, lanes),
                *lane_pitches(residual, lanes),
                eps,
                **settings,
            )

        return launch


def _meta(problem: Problem, values: Mapping[str, Value], tiles: int) -> dict[str, Any]:
    form = problem.attributes["gelu"]
    exact = values["gelu_math"] == "exact"
    return {
        **meta(problem, values, tiles),
        "FORM": form if exact else "",
        "Q": () if exact else fitted(form, problem.dtype),
    }


class CudaNorm(CudaRows):
    source: ClassVar[str] = "layernorm_gelu_residual"
    types: ClassVar[tuple[type, ...]] = (*[POINTER] * 5, *[INT64] * 6, FLOAT)
    most_elements: ClassVar[int] = 64

    def macros(self, problem: Problem, values: Mapping[str, Value]) -> dict[str, int | str]:
        q = fitted(problem.attributes["gelu"], problem.dtype)
        bits = ",".join(f"0x{struct.unpack('<I', struct.pack('<f', c))[0]:08x}u" for c in q)
        return {**super().macros(problem, values), "DEGREE": len(q) - 1, "Q_BITS": bits}

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        batch, rows, _ = shape(problem)
        total = batch * rows
        kernel = self.kernel(problem, config, device)
        count, threads = block_count(config.values, device, total), block_threads(config.values)

        def launch(operands: Tensors, outputs: Tensors, *, eps: float = EPS) -> None:
            x, residual = operands["x"], operands["residual"]
            places = (x, operands["weight"], operands["bias"], residual, outputs["out"])
            kernel.launch(
                count,
                threads,
                current_stream(x.device),
                (*(t.data_ptr() for t in places), total, rows, *pitches(x), *pitches(residual), eps),
            )

        return launch


class LibraryNorm(Implementation):
    """The unfused chain of torch operations, its last one writing into the output."""

    name: ClassVar[str] = "library"
    kinds: ClassVar[frozenset[str]] = frozenset({"cuda", "cpu"})

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return ()

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        form = problem.attributes["gelu"]

        def launch(operands: Tensors, outputs: Tensors, *, eps: float = EPS) -> None:
            import torch

            residual = operands["residual"]
            torch.add(_activated(operands, form, eps), residual, out=outputs["out"].view(residual.shape))

        return launch


def _activated(operands: Tensors, form: str, eps: float) -> torch.Tensor:
    """gelu(layernorm(x) * weight + bias) by torch's operations, in the operands' dtypes."""
    from torch.nn import functional

    x = operands["x"]
    z = functional.layer_norm(x, x.shape[-1:], operands["weight"], operands["bias"], eps)
    return functional.gelu(z, approximate="tanh" if form == "tanh" else "none")


class LayerNormGeluResidual(Kernel):
    signature: ClassVar[Signature] = Signature(
        kernel="layernorm_gelu_residual",
        version=version_of(*_CODE),
        formula="out = gelu(layernorm(x) * weight + bias) + residual",
        dimensions=ROW_DIMENSIONS,
        operands=tuple(Operand(name, ROW_DTYPES) for name in _OPERANDS),
        attributes=(Attribute("gelu", FORMS, "erf"),),
        defaults=(*default_rules(gelu_math="fitted"), *cpu_default_rules(gelu_math="fitted", prefetch=False)),
        same_dtype=_OPERANDS,
    )
    implementations: ClassVar[tuple[Implementation, ...]] = (TritonNorm(), CudaNorm(), NumbaNorm(), LibraryNorm())
    row_operands = frozenset({"x", "residual"})
    dimensions_notes: ClassVar[Mapping[str, str]] = {
        "batch": "rows of all items are alike, so a batch is more rows",
        "streams": "one launch fills the device; there is no second branch to run beside it",
        "precision": "float32 within for every dtype: memory is the limit, and nothing is won by less",
        "dtypes": "one for all operands, as the model stores activations; 8-bit storage belongs to the product that "
        "reads the result",
    }

    def cost(self, problem: Problem) -> Cost:
        batch, rows, cols = shape(problem)
        elements = batch * rows * cols
        # Per element: 2 for the mean, 3 for the variance, 4 to normalise and scale, 8 for GELU, 1 to add.
        return Cost(flops=18.0 * elements, bytes=float((3 * elements + 2 * cols) * item_bytes(problem)))

    def reduction_length(self, problem: Problem) -> int:
        return problem.dims["cols"]

    def operands(self, problem: Problem, source: InputSource) -> dict[str, torch.Tensor]:
        cols = problem.dims["cols"]
        return {
            "x": row_operand(problem, source),
            "weight": vector_operand(
                problem, source.normal((cols,), problem.dtype, scale=0.1, mean=1.0, outliers=False)
            ),
            "bias": vector_operand(problem, source.normal((cols,), problem.dtype, scale=0.1, outliers=False)),
            "residual": row_operand(problem, source, outliers=False),
        }

    def outputs(self, problem: Problem) -> dict[str, OutputSpec]:
        return {"out": OutputSpec(shape(problem), problem.dtype)}

    def reference(self, problem: Problem, operands: Tensors, dtype: torch.dtype | None = None) -> dict[str, Reference]:
        """The chain in ``dtype``. Its scale sums the sizes of what the unfused chain rounds: the scaled normal form,
        the bias beside it, GELU and the residual; and what taking the mean off loses, in float32 for every dtype."""
        import torch
        from torch.nn import functional

        names = ("x", "weight", "bias", "residual")
        x, weight, bias, residual = (operands[name].to(dtype or torch.float64) for name in names)
        scaled = functional.layer_norm(x, x.shape[-1:], weight, None, EPS)
        approximate = "tanh" if problem.attributes["gelu"] == "tanh" else "none"
        activated = functional.gelu(scaled + bias, approximate=approximate)
        scale = scaled.abs_().add_(bias.abs()).add_(activated.abs()).add_(residual.abs())
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        share = DTYPES["float32"].unit_roundoff / DTYPES[problem.dtype].unit_roundoff
        scale.addcmul_(mean.abs_().mul_(share) / variance.add_(EPS).sqrt_(), weight.abs())
        return {"out": Reference(activated.add_(residual), scale)}

    def eager(self, problem: Problem, operands: Tensors, *, eps: float = EPS) -> dict[str, torch.Tensor]:
        return {"out": _activated(operands, problem.attributes["gelu"], eps) + operands["residual"]}

    def problem_of(self, operands: Tensors, attributes: Mapping[str, str]) -> Problem:
        tensors = {name: operands[name] for name in ("x", "residual")}
        vectors = {name: operands[name] for name in ("weight", "bias")}
        return self.signature.problem({**row_parameters(self.name, tensors, vectors), **attributes})

    def quick(self, device: Device) -> Sequence[Mapping[str, Any]]:
        if device.kind == "cpu":
            return ({"rows": 1024, "cols": 3840, "dtype": "float32"},)
        return tuple({"rows": rows, "cols": 3840, "dtype": "bfloat16"} for rows in (4224, 16896))


KERNEL = LayerNormGeluResidual()
