"""The acceptance rule: what passes, what does not, and what is said of it."""

from __future__ import annotations

import math

import pytest
import torch

from tunedex.kernels.base import Reference
from tunedex.tuner.verify import bits_hash, judge, relative_error


def reference_of(value: torch.Tensor) -> Reference:
    return Reference(value, value.abs())


@pytest.fixture
def exact() -> torch.Tensor:
    return torch.randn(64, 100, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def judged(result: torch.Tensor, exact: torch.Tensor, dtype: str, eager_error: float, max_error: float | None = None):
    return judge(
        result, reference_of(exact), dtype=dtype, reduction_length=1, eager_error=eager_error, max_error=max_error
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_one_rounding_is_lossless(exact: torch.Tensor, dtype: str) -> None:
    result = exact.to(getattr(torch, dtype))
    verdict = judged(result, exact, dtype, relative_error(result, exact))
    assert verdict.accepted
    assert verdict.lossless
    assert verdict.error == pytest.approx(relative_error(result, exact))


def test_one_wrong_element_at_the_end_is_found_and_named(exact: torch.Tensor) -> None:
    result = exact.to(torch.bfloat16)
    result[-1, -1] *= 1.5
    verdict = judged(result, exact, "bfloat16", eager_error=1.0)
    assert not verdict.accepted
    assert verdict.detail.startswith("1 elements beyond tolerance, first at [63, 99]: ")


def test_a_whole_result_slightly_worse_than_eager_is_refused(exact: torch.Tensor) -> None:
    eager = exact.to(torch.float32)
    error = relative_error(eager, exact)
    worse = exact.to(torch.float32) * (1 + 3 * 2**-24)
    verdict = judged(worse, exact, "float32", error)
    # Three times eager's error is more than eager's and the accumulator's allowance, 2^-24 sqrt(L), together.
    assert verdict.error > 1.05 * error + 2**-24
    assert not verdict.accepted
    assert verdict.detail.startswith("relative L2 error")
    refused = judged(exact.to(torch.float32) * (1 + 4e-7), exact, "float32", error)
    assert not refused.accepted


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_written_or_not_finite_is_refused(exact: torch.Tensor, bad: float) -> None:
    result = exact.to(torch.float32)
    result[5, 7] = bad
    verdict = judged(result, exact, "float32", eager_error=1.0)
    assert not verdict.accepted
    assert "[5, 7]" in verdict.detail


def test_a_callers_error_accepts_more_but_not_as_lossless(exact: torch.Tensor) -> None:
    noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64).clamp(-3, 3)
    result = (exact * (1 + 3e-4 * noise)).float()
    assert not judged(result, exact, "float32", eager_error=1e-7).accepted
    verdict = judged(result, exact, "float32", eager_error=1e-7, max_error=1e-3)
    assert verdict.accepted
    assert not verdict.lossless
    assert not judged(result, exact, "float32", eager_error=1e-7, max_error=1e-4).accepted


def test_the_hash_is_of_the_bits() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    y = x.clone()
    assert bits_hash(x) == bits_hash(y)
    assert len(bits_hash(x)) == 32
    y[999] = torch.nextafter(y[999], torch.tensor(10.0))
    assert bits_hash(x) != bits_hash(y)
    assert bits_hash(x) != bits_hash(x.flip(0))
    assert bits_hash(torch.tensor([0.0])) != bits_hash(torch.tensor([-0.0]))


def test_the_hash_of_a_strided_view_is_that_of_its_values() -> None:
    wide = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
    assert bits_hash(wide[:, :20]) == bits_hash(wide[:, :20].contiguous())
