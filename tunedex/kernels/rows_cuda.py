"""What the CUDA C++ implementations of row kernels share: the macros of ``cuda/rows.cuh`` and the space of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.measurement import Resources
from tunedex.core.problem import Problem
from tunedex.kernels.base import Constraint, Tunable
from tunedex.kernels.nvrtc import CudaKernel, compile_resources, missing_nvrtc
from tunedex.kernels.rows import MAX_GRID, WARP, input_lanes, item_bytes, output_lanes, shape
from tunedex.kernels.rows_gpu import GpuRows

#: Threads per row: a warp, and what divides common widths with little left over.
LANES = (32, 64, 96, 128, 160, 192, 256, 320, 384, 480, 512, 768, 1024)
ROWS = (1, 2, 4, 8)
VECTORS = (1, 2, 4, 8)
BLOCKS = (0, 1, 2, 4, 8)

MOST_THREADS = 1024
#: How many times as many accesses as a row needs its threads may make room for.
MOST_ROOM = 1.15
#: Warps on a multiprocessor while blocks walk: the fewest that keep its memory busy, and the most that it holds.
FEWEST_WARPS, MOST_WARPS = 8, 64


class CudaRows(GpuRows):
    """A row kernel in CUDA C++. Subclasses name the source, the parameters and what a thread may hold, and launch."""

    name: ClassVar[str] = "cuda"
    walking: ClassVar[str] = "blocks"
    hint: ClassVar[str] = "streaming"

    source: ClassVar[str]
    types: ClassVar[tuple[type, ...]]

    def missing(self) -> str | None:
        return missing_nvrtc()

    def cuts(self, problem: Problem) -> Sequence[Tunable]:
        return (
            Tunable("lanes", LANES, "threads of one row: a warp, or a block's share with a barrier for each reduction"),
            Tunable("rows", ROWS, "rows of one block"),
            Tunable("vector", VECTORS, "elements of one access"),
            Tunable("blocks", BLOCKS, "blocks per multiprocessor that walk over the rows; 0 for one each"),
            Tunable("streaming", (False, True), "mark what is read and written once as the first to leave the caches"),
        )

    def cut_constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        batch, rows, cols = shape(problem)
        widest = min(input_lanes(problem), output_lanes(problem), 16 // item_bytes(problem))

        def steps(v: Mapping[str, Any]) -> int:
            return -(-cols // (v["vector"] * v["lanes"]))

        def room(v: Mapping[str, Any]) -> float:
            return steps(v) * v["vector"] * v["lanes"] / cols

        least_room = min(
            (room({"vector": widest, "lanes": lanes}) for lanes in LANES if -(-cols // lanes) <= self.most_elements),
            default=1.0,
        )
        threads_lowest = min(64, WARP * batch * rows)
        return (
            Constraint(
                f"an access is {widest} elements, the most that addresses, pitches and width allow, or half of it",
                lambda v: v["vector"] in (widest, max(1, widest // 2)),
            ),
            Constraint(
                f"a thread holds at most {self.most_elements} elements",
                lambda v: steps(v) * v["vector"] <= self.most_elements,
            ),
            Constraint(
                f"threads have at most {MOST_ROOM} times the accesses that a row needs, or what is least",
                lambda v: room(v) <= max(MOST_ROOM, least_room),
            ),
            Constraint(
                f"a block has {threads_lowest} to {MOST_THREADS} threads, and several rows only of at most 256 threads",
                lambda v: (
                    threads_lowest <= v["lanes"] * v["rows"] <= (MOST_THREADS if v["rows"] == 1 else 256)
                    and v["rows"] <= batch * rows
                ),
            ),
            Constraint(
                f"walking blocks make {FEWEST_WARPS} to {MOST_WARPS} warps a multiprocessor and find two tiles each",
                lambda v: (
                    v["blocks"] == 0
                    or (
                        FEWEST_WARPS * WARP <= v["blocks"] * v["lanes"] * v["rows"] <= MOST_WARPS * WARP
                        and batch * rows >= 2 * v["blocks"] * v["rows"] * device.multiprocessors
                    )
                ),
            ),
        )

    def macros(self, problem: Problem, values: Mapping[str, Value]) -> dict[str, int | str]:
        """The macros of ``values``; subclasses add their own."""
        return {
            "ELEMENT_BYTES": item_bytes(problem),
            "BFLOAT16": int(problem.dtype == "bfloat16"),
            "COLS": problem.dims["cols"],
            "VEC": int(values["vector"]),
            "LANES": int(values["lanes"]),
            "ROWS": int(values["rows"]),
            "STREAMING": int(values["streaming"]),
        }

    def compile(self, problem: Problem, config: Config, device: Device) -> Resources:
        return compile_resources(self.source, self.macros(problem, config.values), device)

    def kernel(self, problem: Problem, config: Config, device: Device) -> CudaKernel:
        """The kernel of ``config``, loaded when first launched."""
        return CudaKernel(self.source, self.macros(problem, config.values), device.target, self.types)


def block_count(values: Mapping[str, Value], device: Device, total_rows: int) -> int:
    """How many blocks run on ``total_rows`` rows."""
    tiles = -(-total_rows // int(values["rows"]))
    return min(int(values["blocks"]) * device.multiprocessors or tiles, tiles, MAX_GRID)


def block_threads(values: Mapping[str, Value]) -> int:
    return int(values["lanes"]) * int(values["rows"])
