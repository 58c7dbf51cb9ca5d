"""A kernel with a dimension of each kind, a snapshot that answers for it on an H200, and a value that fails in use."""

from __future__ import annotations

from typing import Any

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Measurement, Policy
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.signature import BATCH, Attribute, DefaultRule, Dimension, Operand, Signature
from tunedex.core.snapshot import Snapshot

H200 = Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")

DEMO = Signature(
    kernel="demo",
    version="1" * 12,
    formula="x",
    dimensions=(BATCH, Dimension("rows"), Dimension("cols", "exact")),
    operands=(Operand("x", ("float32", "bfloat16")), Operand("w", ("float32", "bfloat16"))),
    attributes=(Attribute("gelu", ("erf", "tanh"), "erf"),),
    defaults=(
        DefaultRule("cuda", {"implementation": "triton", "block": 64}, {"rows": (1, 10)}),
        DefaultRule("cuda", {"implementation": "triton", "block": 128}, min_shared_memory_bytes=100_000),
        DefaultRule("cuda", {"implementation": "library"}),
    ),
)

TUNED = DEMO.problem({"rows": 4096, "cols": 512, "dtype": "bfloat16"})
BEST = Config("triton", {"block": 256})
SECOND = Config("cuda", {"vector": 8})


def row(rank: int, config: Config, time_us: float) -> Row:
    measurement = Measurement(
        time_us=time_us,
        p20_us=time_us,
        p80_us=time_us,
        samples=9,
        policy=Policy.EAGER_COLD,
        error=1e-3,
        lossless=True,
        output_hash="aa",
    )
    return Row(rank, config, measurement, DEMO.version, "e" * 32, default_us=30.0, library_us=40.0)


def snapshot(
    revision: int = 3,
    *,
    config: Config = BEST,
    device: Device = H200,
    problem: Problem = TUNED,
    channel: str = "stable",
) -> Snapshot:
    rows = (row(0, config, 10.0), row(1, SECOND, 12.0))
    return Snapshot(device, channel, revision, {"demo": DEMO}, {problem.key: problem}, {problem.key: rows})


class Hostile:
    """Fails in whatever way it is used."""

    def _fail(self, *_: object) -> Any:
        raise ZeroDivisionError("hostile")

    __hash__ = __eq__ = __str__ = __repr__ = __index__ = __float__ = __bool__ = __len__ = _fail  # type: ignore[assignment]
