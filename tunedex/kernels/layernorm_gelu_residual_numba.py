"""layernorm_gelu_residual on a CPU, compiled by numba.

A task is a run of rows. A row is read from memory once and passed over three times in the first-level cache: mean,
variance, result. The row of the residual, which only the last pass reads, can be asked for before the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import ClassVar

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.kernels.base import Launch, Tensors, Tunable
from tunedex.kernels.gelu import LARGEST, fitted
from tunedex.kernels.numba_cpu import FAST_MATH, NumbaRows, primitives, run_parallel
from tunedex.kernels.rows import EPS, pitches, shape


class NumbaNorm(NumbaRows):
    math: ClassVar[Tunable] = Tunable(
        "gelu_math", ("exact", "fitted"), "GELU by the C library's erf or exp, or as one fitted exponential"
    )
    memory: ClassVar[Tunable] = Tunable(
        "prefetch", (False, True), "ask for the residual, which the last pass reads, before the first pass begins"
    )

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        values = config.values
        kernel = _norm(
            problem.attributes["gelu"],
            values["gelu_math"] == "fitted",
            bool(values["prefetch"]),
            int(values["vector_bits"]),
        )
        batch, rows, cols = shape(problem)
        threads, rows_per_task = int(values["threads"]), int(values["rows_per_task"])

        def launch(operands: Tensors, outputs: Tensors, *, eps: float = EPS) -> None:
            x, residual, out = operands["x"], operands["residual"], outputs["out"]
            x_batch, x_row = pitches(x)
            r_batch, r_row = pitches(residual)
            run_parallel(
                kernel,
                threads,
                (
                    x.data_ptr(),
                    operands["weight"].data_ptr(),
                    operands["bias"].data_ptr(),
                    residual.data_ptr(),
                    out.data_ptr(),
                    batch * rows,
                    rows,
                    cols,
                    4 * x_batch,
                    4 * x_row,
                    4 * r_batch,
                    4 * r_row,
                    eps,
                    rows_per_task,
                ),
            )

        return launch


@cache
def _norm(form: str, by_fit: bool, prefetching: bool, vector_bits: int) -> Callable[..., None]:
    """The parallel function for one set of choices; pitches are in bytes."""
    import numba
    import numpy as np

    use = primitives()
    floats, exp2, prefetch = use.floats, use.exp2, use.prefetch
    prefer_vectors = use.vectors(vector_bits)
    f32 = np.float32
    zero, half, one = f32(0.0), f32(0.5), f32(1.0)

    if by_fit:
        terms, largest = tuple(f32(c) for c in reversed(fitted(form, "float32"))), f32(LARGEST)

        @numba.njit(fastmath=FAST_MATH, inline="always")
        def gelu(z):
            a = abs(z)
            a = largest if a > largest else a  # a NaN stays one
            q = terms[0]
            for i in range(1, len(terms)):
                q = q * a + terms[i]
            return (zero if z < zero else z) - a * exp2(q)
    elif form == "erf":
        root_half = f32(math.sqrt(0.5))

        @numba.njit(fastmath=FAST_MATH, inline="always")
        def gelu(z):
            return half * z * (one + f32(math.erf(z * root_half)))
    else:
        inner, cubic = f32(-2.0 * math.sqrt(2.0 / math.pi)), f32(0.044715)

        @numba.njit(fastmath=FAST_MATH, inline="always")
        def gelu(z):
            return z / (one + f32(math.exp(inner * z * (one + cubic * z * z))))

    @numba.njit(fastmath=FAST_MATH)
    def row(x, weight, bias, residual, out, cols, eps):
        prefer_vectors()
        total = zero
        for i in range(cols):
            total += x[i]
        mean = total / f32(cols)
        squares = zero
        for i in range(cols):
            d = x[i] - mean
            squares += d * d
        scale = one / f32(math.sqrt(squares / f32(cols) + f32(eps)))
        for i in range(cols):
            out[i] = gelu((x[i] - mean) * scale * weight[i] + bias[i]) + residual[i]

    @numba.njit(parallel=True, fastmath=FAST_MATH)
    def norm(x, weight, bias, residual, out, total, rows, cols, x_batch, x_row, r_batch, r_row, eps, rows_per_task):
        w, b = floats(weight, cols), floats(bias, cols)
        for task in numba.prange((total + rows_per_task - 1) // rows_per_task):
            for index in range(task * rows_per_task, min(total, (task + 1) * rows_per_task)):
                item, line = index // rows, index % rows
                source = floats(x + item * x_batch + line * x_row, cols)
                added = floats(residual + item * r_batch + line * r_row, cols)
                if prefetching:
                    prefetch(residual + item * r_batch + line * r_row, cols)
                row(source, w, b, added, floats(out + index * cols * 4, cols), cols, eps)

    return norm
