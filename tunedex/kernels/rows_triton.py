"""What the Triton implementations of row kernels share: how rows are cut into tiles, and the space of the cuts.

A program holds ``rows`` rows in registers, each as chunks of ``chunk`` elements, a power of two: one chunk that
covers the row, or several that cover it with less waste. It does one tile, or walks over many with its loads
pipelined ``num_stages`` deep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

from tunedex.core.config import Value
from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.core.signature import DefaultRule
from tunedex.kernels.base import LEAST_TARGET, Constraint, Tunable
from tunedex.kernels.rows import LONGEST_ROW, MAX_GRID, WARP, input_lanes, item_bytes, narrow_rule, pitches, shape
from tunedex.kernels.rows_gpu import GpuRows

ROWS = (1, 2, 4, 8, 16, 32, 64)
WARPS = (1, 2, 4, 8, 16, 32)
PROGRAMS = (0, 2, 4, 8, 16)
STAGES = (1, 2)

SMALLEST_CHUNK = 16
CHUNKS = (256, 512, 1024, 2048)
MOST_CHUNKS = 20
#: How much wider than the row its chunks may be together, unless one chunk covers it.
WIDEST_COVER = 1.25
#: Warps on a multiprocessor: the fewest that keep its memory busy, and the most that it holds.
FEWEST_WARPS, MOST_WARPS = 8, 64


def covering(cols: int) -> int:
    """The chunk that covers a row by itself."""
    return max(SMALLEST_CHUNK, 1 << (cols - 1).bit_length())


def chunks(cols: int, chunk: int) -> int:
    return -(-cols // chunk)


class TritonRows(GpuRows):
    """A row kernel in Triton. Subclasses say how many elements a thread may hold, and launch."""

    name: ClassVar[str] = "triton"
    walking: ClassVar[str] = "programs"
    hint: ClassVar[str] = "evict_first"

    def missing(self) -> str | None:
        return None if find_spec("triton") else "triton is not installed"

    def cuts(self, problem: Problem) -> Sequence[Tunable]:
        _, _, cols = shape(problem)
        cover = covering(cols)
        widths = tuple(chunk for chunk in CHUNKS if chunk < cover)
        return (
            Tunable("chunk", (*widths, cover), "elements of a row that are handled at a time"),
            Tunable("rows", ROWS, "rows of one tile"),
            Tunable("num_warps", WARPS, "warps of one program"),
            Tunable("programs", PROGRAMS, "programs per multiprocessor that walk over the tiles; 0 for one a tile"),
            Tunable("num_stages", STAGES, "depth of the pipeline of loads while walking"),
            Tunable(
                "evict_first", (False, True), "mark what is read and written once as the first to leave the caches"
            ),
        )

    def cut_constraints(self, problem: Problem, device: Device) -> Sequence[Constraint]:
        batch, rows, cols = shape(problem)
        cover = covering(cols)
        lanes = 16 // item_bytes(problem)

        def tiles(v: Mapping[str, Any]) -> int:
            return -(-batch * rows // v["rows"])

        def width(v: Mapping[str, Any]) -> int:
            return chunks(cols, v["chunk"]) * v["chunk"]

        def held(v: Mapping[str, Any]) -> float:
            return width(v) * v["rows"] / (WARP * v["num_warps"])

        return (
            Constraint(
                f"one chunk covers the row, or at most {MOST_CHUNKS} do and are at most {WIDEST_COVER} times as wide",
                lambda v: (
                    v["chunk"] == cover or (chunks(cols, v["chunk"]) <= MOST_CHUNKS and width(v) <= WIDEST_COVER * cols)
                ),
            ),
            Constraint(
                "every thread has a whole vector of a chunk",
                lambda v: v["num_warps"] == 1 or v["chunk"] * v["rows"] >= WARP * v["num_warps"] * lanes,
            ),
            Constraint(
                f"a thread holds at most {self.most_elements} elements, and at most 16 where a tile has several rows "
                "that are not a warp each",
                lambda v: (
                    held(v) <= (self.most_elements if v["rows"] in (1, v["num_warps"]) else 16)
                    and (v["rows"] == 1 or v["rows"] <= max(1, batch * rows))
                ),
            ),
            Constraint("only walking programs pipeline", lambda v: v["programs"] > 0 or v["num_stages"] == 1),
            Constraint(
                f"walking programs make {FEWEST_WARPS} to {MOST_WARPS} warps a multiprocessor and find two tiles each",
                lambda v: (
                    v["programs"] == 0
                    or (
                        FEWEST_WARPS <= v["programs"] * v["num_warps"] <= MOST_WARPS
                        and tiles(v) >= 2 * v["programs"] * device.multiprocessors
                    )
                ),
            ),
        )


def meta(problem: Problem, values: Mapping[str, Value], tiles: int) -> dict[str, Any]:
    """The compile-time arguments of ``values`` for a launch of ``tiles`` tiles."""
    cols, chunk = problem.dims["cols"], int(values["chunk"])
    return {
        "COLS": cols,
        "CHUNK": chunk,
        "CHUNKS": chunks(cols, chunk),
        "ROWS": int(values["rows"]),
        "LANES": input_lanes(problem),
        "WALK": bool(values["programs"]) or tiles > MAX_GRID,
        "STAGES": int(values["num_stages"]),
        "EVICT": "evict_first" if values["evict_first"] else "",
        "num_warps": int(values["num_warps"]),
    }


def blocks(values: Mapping[str, Value], device: Device, tiles: int) -> int:
    """How many programs run."""
    return min(int(values["programs"]) * device.multiprocessors or tiles, tiles, MAX_GRID)


def tile_count(total_rows: int, values: Mapping[str, Value]) -> int:
    return -(-total_rows // int(values["rows"]))


def lane_pitches(tensor: Any, lanes: int) -> tuple[int, int]:
    """The pitches of `rows.pitches` in vectors of ``lanes`` elements, so that a kernel knows what divides them."""
    batch_pitch, row_pitch = pitches(tensor)
    return batch_pitch // lanes, row_pitch // lanes


def compile_pitches(problem: Problem) -> tuple[int, int]:
    """Pitches in vectors, as a launch on tensors of ``problem`` has them, for compiling without tensors."""
    _, rows, cols = shape(problem)
    lanes = input_lanes(problem)
    row_pitch = cols // lanes if problem.layout == "contiguous" else cols // lanes + 2
    return rows * row_pitch, row_pitch


def default_rules(**more: Value) -> tuple[DefaultRule, ...]:
    """One rule for every power of two that a row is padded to: a simple cut that is sound for all row counts, dtypes
    and devices that Triton is for; else, and for narrow rows, the library. ``more`` are the kernel's own tunables."""
    rules = [narrow_rule("cuda")]
    width = SMALLEST_CHUNK
    while width <= LONGEST_ROW:
        rows = max(1, 1024 // width)
        config: Mapping[str, Value] = {
            "implementation": "triton",
            "chunk": width,
            "rows": rows,
            "num_warps": min(32, max(4, width // 512)),
            "programs": 0,
            "num_stages": 1,
            "evict_first": False,
            **more,
        }
        low = 0 if width == SMALLEST_CHUNK else width // 2 + 1
        rules.append(DefaultRule("cuda", config, {"cols": (low, width)}, min_target=LEAST_TARGET))
        width *= 2
    rules.append(DefaultRule("cuda", {"implementation": "library"}))
    return tuple(rules)
