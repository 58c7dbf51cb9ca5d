"""softmax on a CPU, compiled by numba.

A task is a run of rows. A row is read from memory once and passed over three times in the first-level cache: largest
value, exponentials and their sum, scaling. The exponentials lie in the output's row, or with streaming stores in a
row buffer that is copied past the caches.
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
from tunedex.kernels.gelu import LOG2_E
from tunedex.kernels.numba_cpu import FAST_MATH, NumbaRows, primitives, run_parallel
from tunedex.kernels.rows import pitches, shape


class NumbaSoftmax(NumbaRows):
    math: ClassVar[Tunable] = Tunable("exp_math", ("exact", "fitted"), "the C library's exp, or a fitted polynomial")
    memory: ClassVar[Tunable] = Tunable(
        "stores", ("cached", "streaming"), "write through the caches, or past them from a row buffer"
    )

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        values = config.values
        kernel = _softmax(
            values["exp_math"] == "fitted",
            values["stores"] == "streaming",
            int(values["vector_bits"]),
        )
        batch, rows, cols = shape(problem)
        threads, rows_per_task = int(values["threads"]), int(values["rows_per_task"])

        def launch(operands: Tensors, outputs: Tensors) -> None:
            x, out = operands["x"], outputs["out"]
            x_batch, x_row = pitches(x)
            sizes = (batch * rows, rows, cols, 4 * x_batch, 4 * x_row, rows_per_task)
            run_parallel(kernel, threads, (x.data_ptr(), out.data_ptr(), *sizes))

        return launch


@cache
def _softmax(by_fit: bool, streaming: bool, vector_bits: int) -> Callable[..., None]:
    """The parallel function for one set of choices; pitches are in bytes."""
    import numba
    import numpy as np

    use = primitives()
    floats, exp2, maximum, stream, flush = use.floats, use.exp2, use.maximum, use.stream, use.flush
    prefer_vectors = use.vectors(vector_bits)
    f32 = np.float32
    log2_e, lowest = f32(LOG2_E), f32(-math.inf)

    if by_fit:

        @numba.njit(fastmath=FAST_MATH, inline="always")
        def exp(d):
            return exp2(d * log2_e)
    else:

        @numba.njit(fastmath=FAST_MATH, inline="always")
        def exp(d):
            return f32(math.exp(d))

    @numba.njit(fastmath=FAST_MATH)
    def row(x, out, cols):
        prefer_vectors()
        top = lowest
        for i in range(cols):
            top = maximum(top, x[i])
        total = f32(0.0)
        for i in range(cols):
            e = exp(x[i] - top)
            out[i] = e
            total += e
        scale = f32(1.0) / total
        for i in range(cols):
            out[i] *= scale

    @numba.njit(parallel=True, fastmath=FAST_MATH)
    def softmax(x, out, total, rows, cols, x_batch, x_row, rows_per_task):
        for task in numba.prange((total + rows_per_task - 1) // rows_per_task):
            buffer = np.empty(cols if streaming else 0, dtype=np.float32)
            for index in range(task * rows_per_task, min(total, (task + 1) * rows_per_task)):
                source = x + (index // rows) * x_batch + (index % rows) * x_row
                target = out + index * cols * 4
                if streaming:
                    row(floats(source, cols), buffer, cols)
                    stream(target, buffer, cols)
                else:
                    row(floats(source, cols), floats(target, cols), cols)
            if streaming:
                flush()

    return softmax
