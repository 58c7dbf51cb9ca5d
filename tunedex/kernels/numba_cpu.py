"""What numba kernels for the CPU share: rows by address, vector arithmetic that numba's own lacks, launching.

Importable without numba; everything that needs it is made inside cached functions. Tensors come in as addresses
and pitches, so that one specialisation serves contiguous and strided rows and the compiler knows the inner stride.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, ClassVar

from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.kernels.base import Constraint, Implementation, Tunable
from tunedex.kernels.rows import shape

#: What LLVM may change: order and fuse sums, but still honour infinities and NaN. It is no choice: sums in order use
#: no vector lanes, and lose so much in long rows that softmax with outliers is refused.
FAST_MATH = {"reassoc", "contract", "arcp", "nsz"}

#: Numba's thread pool takes one parallel region at a time.
_POOL = threading.Lock()


def _renew_pool_lock() -> None:
    """In a forked child nobody is left to release the lock that another thread of the parent held."""
    global _POOL
    _POOL = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_pool_lock)

#: The polynomial of 2^f over -1/2 <= f <= 1/2 whose largest relative error is least, constant first; it errs by 2e-9,
#: and by 7e-8 evaluated in float32.
_EXP2 = (
    1.0,
    0.6931471824645996,
    0.24022646248340607,
    0.05550328642129898,
    0.009618489071726799,
    0.0013399930903688073,
    0.0001534581242594868,
)

ROWS_PER_TASK = (1, 4, 16, 64, 256)

_LINE_BYTES = 64
_STREAM_LANES = _LINE_BYTES // 4


class NumbaImplementation(Implementation):
    """A kernel of float32 on the CPU's cores."""

    name: ClassVar[str] = "numba"
    kinds: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def missing(self) -> str | None:
        return None if find_spec("numba") else "numba is not installed"

    def takes(self, problem: Problem, device: Device) -> str | None:
        return None if problem.dtype == "float32" else f"computes float32, not {problem.dtype}"


class NumbaRows(NumbaImplementation):
    """A row kernel. Tasks and threads are arguments, everything else compiles anew."""

    #: The tunable that chooses between the C library's function (``exact``) and a ``fitted`` one.
    math: ClassVar[Tunable]
    #: How the kernel moves rows that no cache holds; its first value is the plain way.
    memory: ClassVar[Tunable]

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        batch, rows, _ = shape(problem)
        tasks = tuple(count for count in ROWS_PER_TASK if count == 1 or count <= batch * rows)
        cores = device.multiprocessors
        threads = (0, 1) if cores < 4 else (0, 1, cores // 2)
        # Compilers halve AVX-512's vectors on many CPUs, for the clock that some of those lose by whole ones.
        widths = (0, 512) if device.vector == "avx512" else (0,)
        return (
            self.math,
            Tunable("vector_bits", widths, "width of the vectors that loops become; 0 for the compiler's choice"),
            self.memory,
            Tunable("rows_per_task", tasks, "rows of one task"),
            Tunable("threads", threads, "threads that share the tasks; 0 for one a core"),
        )

    def constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        """What keeps the specialisations few: width and memory matter only once the arithmetic is vectorised."""
        math, memory = self.math.name, self.memory
        return (
            Constraint(
                f"vector_bits and {memory.name} go with {math}=fitted",
                lambda v: v[math] == "fitted" or (v["vector_bits"] == 0 and v[memory.name] == memory.values[0]),
            ),
        )


def run_parallel(kernel: Callable[..., None], threads: int, arguments: Sequence[Any]) -> None:
    """Call the parallel numba function ``kernel`` on ``threads`` threads of numba's pool, 0 for all of them."""
    import numba

    with _POOL:
        before = numba.get_num_threads()
        most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        numba.set_num_threads(min(threads or most, most))
        try:
            kernel(*arguments)
        finally:
            numba.set_num_threads(before)


@cache
def primitives() -> SimpleNamespace:
    """Numba functions, made once:

    ``floats(address, count)``   the float32 array at an address
    ``exp2(y)``  2^y of a float32 up to 127 in plain arithmetic, so that loops over it vectorise; 0 below -126.5
    ``maximum(a, b)``  the larger float32, a NaN if either is; the only one whose reduction over a loop vectorises
    ``stream(target, source, count)``  copy an array to an address past the caches; ``flush()`` makes it visible
    ``prefetch(address, count)`` ask for that many floats to be brought into the first-level cache
    ``vectors(bits)``  not of numba: makes ``prefer_vectors()``, whose caller's loops become vectors of that many bits;
    0 leaves them to the compiler
    """
    import numba
    import numpy as np
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils
    from numba.extending import intrinsic

    float32, int32 = np.float32, np.int32

    @intrinsic
    def pointer(typing_context, address):
        def build(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return types.voidptr(types.intp), build

    @intrinsic
    def bits(typing_context, value):
        def build(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], ir.FloatType())

        return types.float32(types.int32), build

    @intrinsic
    def stream_vector(typing_context, target, source):
        """Copy 64 bytes from ``source`` to ``target``, which is aligned to 64, with a non-temporal store."""

        def build(context, builder, signature, arguments):
            vector = ir.VectorType(ir.FloatType(), _STREAM_LANES).as_pointer()
            value = builder.load(builder.inttoptr(arguments[1], vector), align=4)
            store = builder.store(value, builder.inttoptr(arguments[0], vector), align=64)
            one = ir.Constant(ir.IntType(32), 1)
            store.set_metadata("nontemporal", builder.module.add_metadata([one]))
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), build

    @intrinsic
    def prefetch_line(typing_context, address):
        def build(context, builder, signature, arguments):
            i32 = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
            function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
            read, every_level, data = ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)
            builder.call(function, [builder.inttoptr(arguments[0], cgutils.voidptr_t), read, every_level, data])
            return context.get_dummy_value()

        return types.void(types.intp), build

    @intrinsic
    def maximum(typing_context, first, second):
        def build(context, builder, signature, arguments):
            kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 2)
            function = builder.module.declare_intrinsic("llvm.maximum", [ir.FloatType()], kind)
            return builder.call(function, arguments)

        return types.float32(types.float32, types.float32), build

    def vectors(width):
        @intrinsic
        def prefer_vectors(typing_context):
            def build(context, builder, signature, arguments):
                if width:
                    attributes = builder.function.attributes
                    attributes.add("noinline")  # inlined, it would have its caller's width
                    set.add(attributes, f'"prefer-vector-width"="{width}"')  # llvmlite's own add knows no such pair
                return context.get_dummy_value()

            return types.void(), build

        return prefer_vectors

    @intrinsic
    def nearest(typing_context, value):
        def build(context, builder, signature, arguments):
            function = builder.module.declare_intrinsic("llvm.rint", [ir.FloatType()])
            return builder.call(function, arguments)

        return types.float32(types.float32), build

    @intrinsic
    def flush(typing_context):
        def build(context, builder, signature, arguments):
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.void(), build

    @numba.njit(inline="always")
    def floats(address, count):
        return numba.carray(pointer(address), (count,), dtype=float32)

    c0, c1, c2, c3, c4, c5, c6 = (float32(c) for c in _EXP2)

    @numba.njit(inline="always")
    def exp2(y):
        clamped = float32(-127.0) if y < float32(-127.0) else y  # a NaN stays one
        whole = nearest(clamped)
        f = clamped - whole
        p = c0 + f * (c1 + f * (c2 + f * (c3 + f * (c4 + f * (c5 + f * c6)))))
        return p * bits((int32(whole) + int32(127)) << int32(23))

    @numba.njit
    def stream(target, source, count):
        head = min(count, ((64 - target % 64) % 64) // 4)
        out = floats(target, count)
        for i in range(head):
            out[i] = source[i]
        body = (count - head) // _STREAM_LANES
        begin = source.ctypes.data
        for v in range(body):
            offset = 4 * (head + v * _STREAM_LANES)
            stream_vector(target + offset, begin + offset)
        for i in range(head + body * _STREAM_LANES, count):
            out[i] = source[i]

    @numba.njit
    def prefetch(address, count):
        for offset in range(0, 4 * count, _LINE_BYTES):
            prefetch_line(address + offset)

    return SimpleNamespace(
        floats=floats,
        exp2=exp2,
        maximum=maximum,
        stream=stream,
        flush=flush,
        prefetch=prefetch,
        vectors=vectors,
    )
