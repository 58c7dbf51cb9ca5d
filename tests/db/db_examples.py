"""Values to put into databases."""

from __future__ import annotations

from tunedex.core.config import Config
from tunedex.core.device import Device, Environment
from tunedex.core.measurement import Failure, Measurement, Policy
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.signature import BATCH, Attribute, DefaultRule, Dimension, Operand, Signature
from tunedex.db import Store
from tunedex.db.records import Stage, Trial

DEVICE = Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")
OTHER = Device.from_key("cpu-some_model-8c-avx2")
ENVIRONMENT = Environment(driver="580.1", cuda="13.0", torch="2.13.0", triton="3.7.1", python="3.11")
VERSION = "0123456789ab"


def signature(kernel: str = "softmax", version: str = VERSION) -> Signature:
    return Signature(
        kernel=kernel,
        version=version,
        formula="exp(x - max(x)) / sum(exp(x - max(x)))",
        dimensions=(BATCH, Dimension("rows"), Dimension("cols", "exact")),
        operands=(Operand("x", ("float32", "bfloat16")),),
        attributes=(Attribute("scale", ("none", "sqrt"), "none"),),
        defaults=(DefaultRule("cuda", {"implementation": "triton", "block": 128}, {"cols": (1, 4096)}),),
    )


def problem(rows: int = 1024, kernel: str = "softmax") -> Problem:
    return signature(kernel).problem({"rows": rows, "cols": 4096, "dtype": "float32"})


def config(block: int = 64, implementation: str = "triton") -> Config:
    return Config(implementation, {"block": block, "warps": 4})


def measurement(
    time_us: float = 10.0,
    *,
    error: float = 1e-7,
    lossless: bool = True,
    memory: int | None = 0,
    policy: Policy = Policy.EAGER_COLD,
    bits: str = "ab12",
) -> Measurement:
    return Measurement(
        time_us=time_us,
        p20_us=time_us * 0.99,
        p80_us=time_us * 1.01,
        samples=100,
        policy=policy,
        error=error,
        lossless=lossless,
        output_hash=bits,
        peak_memory_bytes=memory,
    )


def trial(
    block: int = 64,
    outcome: Measurement | Failure | None = None,
    *,
    of: Problem | None = None,
    stage: Stage = Stage.SEARCH,
    sweep: int | None = None,
) -> Trial:
    return Trial(
        problem=of or problem(),
        device=DEVICE.key,
        environment=ENVIRONMENT.key,
        kernel_version=VERSION,
        config=config(block),
        outcome=outcome or measurement(),
        stage=stage,
        sweep=sweep,
    )


def row(block: int = 64, time_us: float = 10.0, rank: int = 0, source: str = "local") -> Row:
    return Row(
        rank=rank,
        config=config(block),
        measurement=measurement(time_us),
        kernel_version=VERSION,
        environment=ENVIRONMENT.key,
        default_us=20.0,
        library_us=None,
        roofline_share=0.5,
        source=source,
        measured_at="2026-01-31T12:00:00.500000Z",
    )


def fill(store: Store) -> None:
    """Register what trials and rows refer to."""
    store.register_device(DEVICE)
    store.register_device(OTHER)
    store.register_environment(ENVIRONMENT)
    store.register_signatures([signature()])
