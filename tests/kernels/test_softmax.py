"""softmax: extreme values, and the batch split over streams."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.host import cpu
from tunedex.kernels import get_kernel
from tunedex.kernels.streams import parts
from tunedex.tuner.space import Space

KERNEL = get_kernel("softmax")
H200 = Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g")


def run(x: torch.Tensor, **values: Any) -> torch.Tensor:
    """The numba default of wide rows, with ``values`` in place of its own, on ``x`` of ``[rows, cols]``."""
    pytest.importorskip("numba")
    problem = KERNEL.problem_of({"x": x}, {})
    default = KERNEL.signature.default(KERNEL.signature.problem({"rows": 1, "cols": 999, "dtype": "float32"}), cpu())
    assert default is not None
    out = torch.full((1, *x.shape), math.nan)
    launch = KERNEL.implementation("numba").bind(problem, Config("numba", {**default.values, **values}), cpu())
    launch({"x": x}, {"out": out})
    return out[0]


FORMS = (
    {"exp_math": "exact"},
    {"exp_math": "fitted"},
    {"exp_math": "fitted", "vector_bits": 512},
    {"exp_math": "fitted", "vector_bits": 512, "stores": "streaming"},
)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_extreme_values(form: dict[str, Any]) -> None:
    inf = math.inf
    x = torch.tensor([[0.0, -inf, 1.0, -inf], [3e38, 1.0, -3e38, 3e38], [-200.0, -201.0, -300.0, -1e30]])
    found, expected = run(x, **form), torch.softmax(x, -1)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-38)
    assert found[0, 1] == 0.0


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_without_a_result(form: dict[str, Any]) -> None:
    """As torch: NaN where a row holds one, holds +inf, or is -inf throughout; no other row is touched."""
    x = torch.zeros(4, 37)
    x[0, 5], x[1, 6], x[2] = math.nan, math.inf, -math.inf
    found, expected = run(x, **form), torch.softmax(x, -1)
    assert torch.equal(found.isnan()[[0, 2, 3]], expected.isnan()[[0, 2, 3]])
    assert bool(found[1].isnan().any())
    assert torch.allclose(found[3], expected[3])


def test_reference_scale_grows_with_the_distance() -> None:
    problem = KERNEL.signature.problem({"rows": 1, "cols": 3, "dtype": "float32"})
    found = KERNEL.reference(problem, {"x": torch.tensor([[[1.0, 0.0, -3.0]]])})["out"]
    assert torch.allclose(found.value.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert torch.allclose(found.scale / found.value, torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))


@given(count=st.integers(1, 50), streams=st.sampled_from((1, 2, 4, 8)))
def test_parts_cover_the_batch_evenly(count: int, streams: int) -> None:
    cut = parts(count, streams)
    assert [item for part in cut for item in part] == list(range(count))
    assert len(cut) == min(streams, count)
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


@pytest.mark.parametrize(("batch", "streams"), [(1, {1}), (2, {1, 2}), (6, {1, 2, 4}), (8, {1, 2, 4, 8})])
def test_streams_are_a_choice_up_to_the_batch(batch: int, streams: set[int]) -> None:
    problem = KERNEL.signature.problem({"batch": batch, "rows": 4224, "cols": 4224, "dtype": "bfloat16"})
    space = Space.of(KERNEL, problem, H200)
    for name in ("triton", "cuda"):
        assert {config.streams for config in space if config.implementation == name} == streams
    assert "numba" in KERNEL.dimensions_notes["streams"]
