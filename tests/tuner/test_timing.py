"""Tensor sets keep what decides which code runs; floors are what they say."""

from __future__ import annotations

import pytest
import torch

from tunedex.core.config import Config
from tunedex.core.measurement import Policy
from tunedex.db.records import Ceilings
from tunedex.kernels.registry import get_kernel
from tunedex.tuner import ceilings
from tunedex.tuner.ceilings import roofline_share, shortest_us
from tunedex.tuner.sets import TensorSet
from tunedex.tuner.timing import CpuTimer


@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("pitch", [0, 5])
def test_a_cloned_set_has_the_same_values_strides_and_alignment(offset: int, pitch: int) -> None:
    memory = torch.randn(4 * (16 + pitch) + offset, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    x = memory[offset:].view(4, 16 + pitch)[:, :16]
    tensors = TensorSet({"x": x}, {"out": torch.zeros(4, 16, dtype=torch.bfloat16)})
    copy = tensors.clone()
    assert torch.equal(copy.operands["x"], x)
    assert copy.operands["x"].stride() == x.stride()
    assert copy.operands["x"].data_ptr() % 16 == x.data_ptr() % 16
    assert copy.operands["x"].data_ptr() != x.data_ptr()
    assert copy.bytes == tensors.bytes == 2 * 4 * 16 * 2


def test_a_cpu_is_timed_one_call_at_a_time() -> None:
    calls: list[int] = []
    timer = CpuTimer()
    tensors = TensorSet({"x": torch.zeros(1)}, {"out": torch.zeros(1)})
    assert timer.policy(1.0) is Policy.EAGER_WARM
    watch = timer.stopwatch(lambda operands, outputs: calls.append(1), [tensors], Policy.EAGER_WARM)
    assert len(calls) == 1
    assert watch() > 0
    assert len(calls) == 2


def test_the_floor_is_the_longer_of_bytes_and_products() -> None:
    known = Ceilings(copy_bytes_s=1e12, flops_s={"float32": 1e12, "tf32": 8e12})
    assert known.floor_us(1e6, "float32", 3e6) == pytest.approx(3.0)
    assert known.floor_us(9e6, "float32", 3e6) == pytest.approx(9.0)
    assert known.floor_us(9e6, "unknown", 3e6) == pytest.approx(3.0)


def test_what_torch_has_no_product_of_has_no_ceiling() -> None:
    found = ceilings.measure(torch.device("cpu"), ["float32", "bits8", "int3"])
    assert set(found.flops_s) == {"float32"}
    assert found.floor_us(1e6, "int3", 0.0) == 0.0


def test_no_ceiling_is_above_the_data_sheet() -> None:
    bad = Ceilings(9e12, {"float32": 9e15, "tf32": 1e14}, 2e13)
    assert bad.at_most(5e12, {"float32": 7e13}) == Ceilings(5e12, {"float32": 7e13, "tf32": 1e14}, 2e13)
    assert bad.at_most(None, {}) == bad


def test_a_share_is_against_the_rate_of_the_precision_that_runs() -> None:
    kernel = get_kernel("linear_gelu")
    problem = kernel.signature.problem({"m": 1000, "n": 1000, "k": 1000, "dtype": "float32"})
    known = Ceilings(copy_bytes_s=1e15, flops_s={"float32": 1e12, "tf32": 8e12})
    assert shortest_us(kernel, problem, known) == pytest.approx(2e9 / 8e12 * 1e6)
    ieee, tf32 = (Config("triton", {"precision": precision}) for precision in ("ieee", "tf32"))
    assert roofline_share(kernel, problem, ieee, 4000.0, known) == pytest.approx(0.5)
    assert roofline_share(kernel, problem, tf32, 4000.0, known) == pytest.approx(0.0625)
