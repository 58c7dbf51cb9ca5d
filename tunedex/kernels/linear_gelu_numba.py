"""linear_gelu on a CPU: a tiled float32 matrix product with a fused epilogue, compiled by numba.

A task owns a tile of the output, ``rows_per_task`` x ``block_n``. For each block of ``block_k`` terms it packs the
weights of its columns transposed, so that the innermost loop runs along a row of the output and vectorises; the
micro-kernel adds ``terms`` terms to each of ``rows`` rows at a time, which keeps what it loads in registers. The
tile of the output is its own accumulator; the last block of terms is followed by the activation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.kernels.base import Launch, Tensors, Tunable
from tunedex.kernels.gelu import LARGEST, fitted
from tunedex.kernels.numba_cpu import NumbaImplementation, primitives, run_parallel

if TYPE_CHECKING:
    import torch

#: Rows x terms of the micro-kernels; each is compiled by itself.
MICRO_KERNELS = ("1x8", "2x8", "4x4")


class NumbaLinear(NumbaImplementation):
    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        rows = problem.batch * problem.dims["m"]
        return (
            Tunable("micro", MICRO_KERNELS, "rows x terms that the innermost loop adds at a time"),
            Tunable("rows_per_task", _upto((64, 128, 256, 512), rows), "rows of an output tile"),
            Tunable("block_n", _upto((64, 128, 256, 512), problem.dims["n"]), "columns of an output tile"),
            Tunable("block_k", _upto((128, 256, 512), problem.dims["k"]), "terms that are packed at a time"),
            Tunable("threads", _threads(device.multiprocessors), "threads that share the tiles; 0 is one a core"),
        )

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        import numba
        import numpy as np

        values = config.values
        product = _product(str(values["micro"]), problem.attributes["gelu"])
        rows_per_task = int(values["rows_per_task"])
        most = min(device.multiprocessors, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
        threads = min(int(values["threads"]) or most, most)
        packed = np.empty((threads, int(values["block_k"]), int(values["block_n"])), dtype=np.float32)

        def launch(operands: Tensors, outputs: Tensors) -> None:
            weight, bias = operands["weight"].detach().numpy(), operands["bias"].detach().numpy()
            arguments = (_matrix(operands["x"]), weight, bias, _matrix(outputs["out"]), packed, rows_per_task)
            run_parallel(product, threads, arguments)

        return launch


def _matrix(tensor: torch.Tensor) -> Any:
    """The numpy view of ``tensor`` with all but its last dimension as one."""
    return tensor.detach().view(-1, tensor.shape[-1]).numpy()


def _upto(values: tuple[int, ...], size: int) -> tuple[int, ...]:
    """``values`` up to the first that holds ``size`` whole."""
    enough = next((index for index, value in enumerate(values) if value >= size), len(values))
    return values[: enough + 1]


def _threads(cores: int) -> tuple[int, ...]:
    """0 for all cores, then half and a quarter of them."""
    return tuple(dict.fromkeys((0, *(max(1, cores // share) for share in (2, 4) if cores > 1))))


@cache
def _product(micro: str, form: str) -> Callable[..., None]:
    """The compiled product with the micro-kernel ``micro`` and GELU's ``form``."""
    import numba
    import numpy as np

    rows, terms, micro_kernel = {
        "1x8": (1, 8, _one_by_eight),
        "2x8": (2, 8, _two_by_eight),
        "4x4": (4, 4, _four_by_four),
    }[micro]
    # Contraction to fused multiply-adds only: no sum is reordered, so the bits do not depend on the tile of a row.
    jit = numba.njit(fastmath={"contract"}, error_model="numpy", nogil=True)
    add = jit(micro_kernel)
    single = jit(_one_by_one)
    # GELU by the fitted exponential of `tunedex.kernels.gelu`: unlike the compiler's erf and exp, it vectorises.
    leading, *terms_of_q = map(np.float32, reversed(fitted(form, "float32")))
    coefficients, zero, largest = tuple(terms_of_q), np.float32(0), np.float32(LARGEST)
    exp2 = primitives().exp2

    @jit
    def activate(z):
        a = abs(z)
        a = largest if a > largest else a  # a NaN stays one
        q = leading
        for coefficient in coefficients:
            q = q * a + coefficient
        return (zero if z < zero else z) - a * exp2(q)

    prange = numba.prange
    thread = numba.get_thread_id

    def product(x, weight, bias, out, packed, rows_per_task):
        m, k = x.shape
        n = weight.shape[0]
        block_k, block_n = packed.shape[1:]
        panels = (n + block_n - 1) // block_n
        tasks = panels * ((m + rows_per_task - 1) // rows_per_task)
        for task in prange(tasks):
            first_column = (task % panels) * block_n
            columns = min(n - first_column, block_n)
            first_row = (task // panels) * rows_per_task
            last_row = min(m, first_row + rows_per_task)
            panel = packed[thread()]
            for k0 in range(0, k, block_k):
                depth = min(k - k0, block_k)
                for column in range(columns):
                    for term in range(depth):
                        panel[term, column] = weight[first_column + column, k0 + term]
                if k0 == 0:
                    for row in range(first_row, last_row):
                        for column in range(columns):
                            out[row, first_column + column] = bias[first_column + column]
                whole = depth - depth % terms
                row = first_row
                while row + rows <= last_row:
                    for term in range(0, whole, terms):
                        add(x, panel, out, row, k0, term, first_column, columns)
                    for rest in range(rows):
                        for term in range(whole, depth):
                            single(x, panel, out, row + rest, k0, term, first_column, columns)
                    row += rows
                while row < last_row:
                    for term in range(depth):
                        single(x, panel, out, row, k0, term, first_column, columns)
                    row += 1
            for row in range(first_row, last_row):
                for column in range(first_column, first_column + columns):
                    out[row, column] = activate(out[row, column])

    compiled: Callable[..., None] = numba.njit(parallel=True, fastmath={"contract"}, error_model="numpy", nogil=True)(
        product
    )
    return compiled


def _one_by_one(x, panel, out, row, k0, term, first_column, columns):
    a = x[row, k0 + term]
    o = out[row, first_column : first_column + columns]
    b = panel[term, :columns]
    for j in range(columns):
        o[j] += a * b[j]


def _one_by_eight(x, panel, out, row, k0, term, first_column, columns):
    k = k0 + term
    a0, a1, a2, a3 = x[row, k], x[row, k + 1], x[row, k + 2], x[row, k + 3]
    a4, a5, a6, a7 = x[row, k + 4], x[row, k + 5], x[row, k + 6], x[row, k + 7]
    p0, p1, p2, p3 = (
        panel[term, :columns],
        panel[term + 1, :columns],
        panel[term + 2, :columns],
        panel[term + 3, :columns],
    )
    p4, p5, p6, p7 = (
        panel[term + 4, :columns],
        panel[term + 5, :columns],
        panel[term + 6, :columns],
        panel[term + 7, :columns],
    )
    o = out[row, first_column : first_column + columns]
    for j in range(columns):
        o[j] += a0 * p0[j] + a1 * p1[j] + a2 * p2[j] + a3 * p3[j] + a4 * p4[j] + a5 * p5[j] + a6 * p6[j] + a7 * p7[j]


def _two_by_eight(x, panel, out, row, k0, term, first_column, columns):
    k = k0 + term
    a0, a1, a2, a3 = x[row, k], x[row, k + 1], x[row, k + 2], x[row, k + 3]
    a4, a5, a6, a7 = x[row, k + 4], x[row, k + 5], x[row, k + 6], x[row, k + 7]
    c0, c1, c2, c3 = x[row + 1, k], x[row + 1, k + 1], x[row + 1, k + 2], x[row + 1, k + 3]
    c4, c5, c6, c7 = x[row + 1, k + 4], x[row + 1, k + 5], x[row + 1, k + 6], x[row + 1, k + 7]
    p0, p1, p2, p3 = (
        panel[term, :columns],
        panel[term + 1, :columns],
        panel[term + 2, :columns],
        panel[term + 3, :columns],
    )
    p4, p5, p6, p7 = (
        panel[term + 4, :columns],
        panel[term + 5, :columns],
        panel[term + 6, :columns],
        panel[term + 7, :columns],
    )
    o = out[row, first_column : first_column + columns]
    q = out[row + 1, first_column : first_column + columns]
    for j in range(columns):
        b0, b1, b2, b3, b4, b5, b6, b7 = p0[j], p1[j], p2[j], p3[j], p4[j], p5[j], p6[j], p7[j]
        o[j] += a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3 + a4 * b4 + a5 * b5 + a6 * b6 + a7 * b7
        q[j] += c0 * b0 + c1 * b1 + c2 * b2 + c3 * b3 + c4 * b4 + c5 * b5 + c6 * b6 + c7 * b7


def _four_by_four(x, panel, out, row, k0, term, first_column, columns):
    k = k0 + term
    a0, a1, a2, a3 = x[row, k], x[row, k + 1], x[row, k + 2], x[row, k + 3]
    c0, c1, c2, c3 = x[row + 1, k], x[row + 1, k + 1], x[row + 1, k + 2], x[row + 1, k + 3]
    d0, d1, d2, d3 = x[row + 2, k], x[row + 2, k + 1], x[row + 2, k + 2], x[row + 2, k + 3]
    e0, e1, e2, e3 = x[row + 3, k], x[row + 3, k + 1], x[row + 3, k + 2], x[row + 3, k + 3]
    p0, p1, p2, p3 = (
        panel[term, :columns],
        panel[term + 1, :columns],
        panel[term + 2, :columns],
        panel[term + 3, :columns],
    )
    o = out[row, first_column : first_column + columns]
    q = out[row + 1, first_column : first_column + columns]
    r = out[row + 2, first_column : first_column + columns]
    s = out[row + 3, first_column : first_column + columns]
    for j in range(columns):
        b0, b1, b2, b3 = p0[j], p1[j], p2[j], p3[j]
        o[j] += a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3
        q[j] += c0 * b0 + c1 * b1 + c2 * b2 + c3 * b3
        r[j] += d0 * b0 + d1 * b1 + d2 * b2 + d3 * b3
        s[j] += e0 * b0 + e1 * b1 + e2 * b2 + e3 * b3
