"""row_sum: the sum of each row of a matrix, in float32; a kernel that Tunedex finds by its entry point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.errors import BadInput
from tunedex.core.measurement import Resources
from tunedex.core.problem import ALIGNMENT_BYTES, Problem
from tunedex.core.signature import BATCH, DefaultRule, Dimension, Operand, Signature
from tunedex.kernels.base import (
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
from tunedex.kernels.offline import MockTensor, compile_triton
from tunedex.kernels.version import version_of

if TYPE_CHECKING:
    import torch

SIGNATURE = Signature(
    kernel="row_sum",
    version=version_of(__file__),
    formula="sum(x, -1)",
    dimensions=(BATCH, Dimension("rows"), Dimension("cols", "exact")),
    operands=(Operand("x", ("float32",)),),
    layouts=("contiguous",),
    defaults=(
        DefaultRule("cuda", {"implementation": "triton", "block": 1024, "num_warps": 4}),
        DefaultRule("cpu", {"implementation": "library"}),
    ),
)


class TritonSum(Implementation):
    """One program a row, which walks along it ``block`` elements at a time."""

    name: ClassVar[str] = "triton"
    kinds: ClassVar[frozenset[str]] = frozenset({"cuda"})

    def missing(self) -> str | None:
        return "triton is not installed" if tl is None else None

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return (
            Tunable("block", (256, 512, 1024, 2048, 4096), "elements loaded at a time"),
            Tunable("num_warps", (1, 2, 4, 8), "warps a row"),
        )

    def compile(self, problem: Problem, config: Config, device: Device) -> Resources:
        x, out = MockTensor("float32", aligned=problem.alignment == ALIGNMENT_BYTES), MockTensor("float32")
        return compile_triton(device, row_sum, x, out, problem.dims["cols"], **_meta(config))

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        function, meta = row_sum[(problem.batch * problem.dims["rows"],)], _meta(config)

        def launch(operands: Tensors, outputs: Tensors) -> None:
            function(operands["x"], outputs["out"], problem.dims["cols"], **meta)

        return launch


def _meta(config: Config) -> dict[str, int]:
    return {"block": int(config.values["block"]), "num_warps": int(config.values["num_warps"])}


@jit
def row_sum(x, out, cols, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((block,), dtype=tl.float32)
    for start in range(0, cols, block):
        column = start + tl.arange(0, block)
        total += tl.load(x + row * cols + column, mask=column < cols, other=0.0)
    tl.store(out + row, tl.sum(total))


class LibrarySum(Implementation):
    """``torch.sum``."""

    name: ClassVar[str] = "library"
    kinds: ClassVar[frozenset[str]] = frozenset({"cuda", "cpu"})

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return ()

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        import torch

        def launch(operands: Tensors, outputs: Tensors) -> None:
            torch.sum(operands["x"], -1, out=outputs["out"])

        return launch


class RowSum(Kernel):
    """See the module."""

    signature: ClassVar[Signature] = SIGNATURE
    implementations: ClassVar[tuple[Implementation, ...]] = (TritonSum(), LibrarySum())
    dimensions_notes: ClassVar[Mapping[str, str]] = {
        "batch": "adds rows",
        "streams": "none: one launch fills the device",
        "precision": "float32 alone",
    }

    def cost(self, problem: Problem) -> Cost:
        rows, cols = problem.batch * problem.dims["rows"], problem.dims["cols"]
        return Cost(float(rows * cols), 4.0 * rows * (cols + 1))

    def reduction_length(self, problem: Problem) -> int:
        return problem.dims["cols"]

    def operands(self, problem: Problem, source: InputSource) -> dict[str, torch.Tensor]:
        return {"x": source.normal((problem.batch, problem.dims["rows"], problem.dims["cols"]), "float32")}

    def outputs(self, problem: Problem) -> dict[str, OutputSpec]:
        return {"out": OutputSpec((problem.batch, problem.dims["rows"]), "float32")}

    def reference(self, problem: Problem, operands: Tensors, dtype: torch.dtype | None = None) -> dict[str, Reference]:
        import torch

        x = operands["x"].to(dtype or torch.float64)
        # Adding up n terms of either sign loses about as much as one rounding of the row's length.
        return {"out": Reference(x.sum(-1), x.norm(dim=-1))}

    def eager(self, problem: Problem, operands: Tensors) -> dict[str, torch.Tensor]:
        return {"out": operands["x"].sum(-1)}

    def problem_of(self, operands: Tensors, attributes: Mapping[str, str]) -> Problem:
        x = operands["x"]
        if x.dim() != 3 or not x.is_contiguous():
            raise BadInput(f"row_sum takes x contiguous, as [batch, rows, cols], not {list(x.shape)}", field="x")
        dims = dict(zip(("batch", "rows", "cols"), x.shape, strict=True))
        alignment = math.gcd(ALIGNMENT_BYTES, x.data_ptr())
        return self.signature.problem({**dims, **attributes, "dtype": x.dtype, "alignment": alignment})

    def quick(self, device: Device) -> Sequence[Mapping[str, Any]]:
        return ({"rows": 1024, "cols": 4096, "dtype": "float32"},)


KERNEL = RowSum()
