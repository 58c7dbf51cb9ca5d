"""A signature, devices and rows that the tests of core share."""

from __future__ import annotations

from typing import Any

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Measurement, Policy, Resources
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.signature import BATCH, Attribute, DefaultRule, Dimension, Operand, Signature
from tunedex.core.snapshot import Snapshot

H200 = Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")
RTX = Device.from_key("nvidia-sm89-128sm-l2_72m-smem_99k-mem_24g")
CPU = Device.from_key("cpu-plain-2c-avx2")

SIGNATURE = Signature(
    kernel="norm",
    version="0123456789ab",
    formula="x / |x| * weight",
    dimensions=(BATCH, Dimension("rows"), Dimension("cols", "exact")),
    operands=(Operand("x", ("float32", "bfloat16")), Operand("weight", ("float32", "bfloat16"))),
    attributes=(Attribute("form", ("plain", "centred"), "plain"),),
    defaults=(
        DefaultRule("cuda", {"implementation": "cuda", "block": 4}, {"rows": (1, 64)}, 100 * 1024, ("bfloat16",)),
        DefaultRule("cuda", {"implementation": "triton", "block": 2}, min_shared_memory_bytes=100 * 1024),
        DefaultRule("cuda", {"implementation": "triton", "block": 1}),
        DefaultRule("cpu", {"implementation": "library"}),
    ),
)


def problem(**parameters: Any) -> Problem:
    return SIGNATURE.problem({"rows": 8, "cols": 16, "dtype": "float32", **parameters})


def measurement(time_us: float = 10.0, **more: Any) -> Measurement:
    given: dict[str, Any] = {
        "p20_us": time_us * 0.9,
        "p80_us": time_us * 1.1,
        "samples": 20,
        "policy": Policy.EAGER_COLD,
        "error": 1e-7,
        "lossless": True,
        "output_hash": "00ff",
        "peak_memory_bytes": 0,
        **more,
    }
    return Measurement(time_us, **given)


def row(rank: int, time_us: float = 10.0, *, config: Config | None = None, **more: Any) -> Row:
    names = ("default_us", "library_us", "roofline_share", "warm_us", "source", "measured_at", "kernel_version")
    own = {name: more.pop(name) for name in names if name in more}
    return Row(
        rank=rank,
        config=config or Config("triton", {"block": 2**rank}),
        measurement=measurement(time_us, **more),
        environment="e" * 32,
        **{"kernel_version": SIGNATURE.version, **own},
    )


def snapshot(*rows: Row, device: Device = H200) -> Snapshot:
    """A snapshot that holds ``rows`` for `problem`; none for any problem where there are none."""
    tuned = problem()
    held = {tuned.key: rows} if rows else {}
    return Snapshot(device, "stable", 7, {SIGNATURE.kernel: SIGNATURE}, {tuned.key: tuned} if rows else {}, held)


FULL_ROW = Row(
    rank=1,
    config=Config("cuda", {"block": 4, "vector": 8, "fast": True, "share": 0.5, "streams": 2}),
    measurement=measurement(
        3.25,
        policy=Policy.GRAPH_COLD,
        error=1e-3,
        lossless=False,
        peak_memory_bytes=None,
        resources=Resources(49152, 255, 8),
        energy_j=0.25,
    ),
    kernel_version="ba9876543210",
    environment="f" * 32,
    default_us=6.5,
    library_us=4.0,
    roofline_share=0.875,
    warm_us=3.0,
    source="imported",
    measured_at="2026-11-29T12:00:00+00:00",
)
