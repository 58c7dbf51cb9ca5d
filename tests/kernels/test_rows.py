"""What the row kernels share: reading tensors as problems, operands of a layout, defaults and spaces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tunedex.core.device import Device
from tunedex.core.errors import BadInput
from tunedex.core.host import cpu
from tunedex.kernels import get_kernel, rows, rows_cuda, rows_triton
from tunedex.kernels.base import InputSource
from tunedex.tuner.sets import copied
from tunedex.tuner.space import Space

NAMES = ("layernorm_gelu_residual", "softmax")
TURING = Device.from_key("nvidia-sm75-40sm-l2_4m-smem_64k-mem_15g")
KEYS = (
    TURING.key,
    "nvidia-sm80-108sm-l2_40m-smem_163k-mem_80g",
    "nvidia-sm86-84sm-l2_6m-smem_99k-mem_24g",
    "nvidia-sm89-128sm-l2_72m-smem_99k-mem_24g",
    "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g",
)
H200 = Device.from_key(KEYS[-1])


def call(name: str, x: torch.Tensor, **others: torch.Tensor) -> dict[str, torch.Tensor]:
    """The operands of a call on ``x``."""
    if name == "softmax":
        return {"x": x}
    cols = x.shape[-1]
    weight = torch.ones(cols, dtype=x.dtype)
    return {"x": x, "weight": weight, "bias": weight.clone(), "residual": x.clone(), **others}


@pytest.mark.parametrize("name", NAMES)
def test_tensors_name_their_problem(name: str) -> None:
    kernel = get_kernel(name)
    whole = kernel.problem_of(call(name, torch.zeros(3, 4, 64, dtype=torch.bfloat16)), {})
    assert whole == kernel.signature.problem({"batch": 3, "rows": 4, "cols": 64, "dtype": "bf16"})
    flat = kernel.problem_of(call(name, torch.zeros(4, 64)), {})
    assert flat == kernel.signature.problem({"rows": 4, "cols": 64, "dtype": "float32"})


@pytest.mark.parametrize("name", NAMES)
def test_contiguous_rows_of_odd_width_are_the_problem_that_a_user_names(name: str) -> None:
    kernel = get_kernel(name)
    problem = kernel.problem_of(call(name, torch.zeros(4, 301, dtype=torch.float16)), {})
    assert problem == kernel.signature.problem({"rows": 4, "cols": 301, "dtype": "float16"})
    assert rows.input_lanes(problem) == rows.output_lanes(problem) == 1


@pytest.mark.parametrize(
    ("pitch", "offset", "alignment"), [(80, 0, 16), (72, 0, 16), (68, 0, 8), (66, 0, 4), (65, 0, 2), (80, 2, 4)]
)
def test_alignment_of_strided_rows(pitch: int, offset: int, alignment: int) -> None:
    buffer = torch.zeros(4 * pitch + 64, dtype=torch.float16)
    x = buffer.as_strided((4, 64), (pitch, 1), offset)
    problem = get_kernel("softmax").problem_of({"x": x}, {})
    assert (problem.layout, problem.alignment) == ("strided", alignment)
    assert rows.input_lanes(problem) == alignment // 2
    assert rows.output_lanes(problem) == 8


def test_a_single_strided_row_has_no_pitch() -> None:
    x = torch.zeros(8, 64)[:1]
    assert get_kernel("softmax").problem_of({"x": x}, {}).layout == "contiguous"


@pytest.mark.parametrize(
    ("operands", "complaint"),
    [
        ({"x": torch.zeros(4)}, r"\[rows, cols\] or \[batch, rows, cols\], not \[4\]"),
        ({"x": torch.zeros(4, 8).t()}, "unit stride along cols, not 8"),
        ({"x": torch.zeros(4, 8, dtype=torch.int32)}, "int32"),
        (call("norm", torch.zeros(4, 8), weight=torch.zeros(4)), r"weight of shape \[8\]"),
        (call("norm", torch.zeros(4, 8), residual=torch.zeros(3, 8)), r"residual of shape \[4, 8\]"),
        (call("norm", torch.zeros(4, 8), bias=torch.zeros(8).half()), "bias in torch.float32, as x, not torch.float16"),
        (call("norm", torch.zeros(4, 8), bias=torch.zeros(8, device="meta")), "bias on cpu, as x, not meta"),
    ],
)
def test_tensors_that_do_not_go_together(operands: dict[str, torch.Tensor], complaint: str) -> None:
    name = "softmax" if len(operands) == 1 else "layernorm_gelu_residual"
    with pytest.raises(BadInput, match=complaint):
        get_kernel(name).problem_of(operands, {})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize(("dtype", "alignment"), [("float32", 16), ("float32", 4), ("float16", 16), ("bfloat16", 2)])
def test_operands_are_the_problem_they_are_made_for(name: str, layout: str, dtype: str, alignment: int) -> None:
    kernel = get_kernel(name)
    problem = kernel.signature.problem(
        {"batch": 2, "rows": 3, "cols": 48, "dtype": dtype, "layout": layout, "alignment": alignment}
    )
    operands = kernel.operands(problem, InputSource(3, "cpu", strided=layout == "strided"))
    assert kernel.problem_of(operands, problem.attributes) == problem


@pytest.fixture
def uninitialised_is_nan() -> Iterator[None]:
    """torch fills memory that nobody wrote with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("uninitialised_is_nan")
@pytest.mark.parametrize("dtype", rows.ROW_DTYPES)
@pytest.mark.parametrize("alignment", [4, 16])
@pytest.mark.parametrize("name", [*NAMES, "linear_gelu"])
def test_zeros_lie_between_strided_rows(name: str, alignment: int, dtype: str) -> None:
    """Some operations of torch read beside a row, where a NaN would show in their result."""
    assert torch.empty(3).isnan().all()
    kernel = get_kernel(name)
    sizes = {"m": 5, "n": 7, "k": 9} if name == "linear_gelu" else {"rows": 5, "cols": 9}
    problem = kernel.signature.problem(
        {"batch": 2, **sizes, "dtype": dtype, "layout": "strided", "alignment": alignment}
    )
    operands = kernel.operands(problem, InputSource(3, "cpu", strided=True))
    for tensor in (*operands.values(), *map(copied, operands.values())):
        whole = tensor.new_empty(0).set_(tensor.untyped_storage())
        assert bool(whole.isfinite().all())


@pytest.mark.usefixtures("uninitialised_is_nan")
def test_zeros_lie_between_the_rows_of_an_input_source() -> None:
    row = InputSource(3, "cpu", strided=True).normal((4, 9), "float32")
    assert row.stride() == (25, 1)
    assert bool(row.new_empty(0).set_(row.untyped_storage()).isfinite().all())


@pytest.mark.parametrize("name", NAMES)
def test_outliers_are_in_x_alone(name: str) -> None:
    kernel = get_kernel(name)
    problem = kernel.signature.problem({"rows": 50, "cols": 2000, "dtype": "float32"})
    operands = kernel.operands(problem, InputSource(3, "cpu", outliers=True))
    assert operands["x"].std(dim=(0, 1)).topk(3).values.tolist()[:2] > [20.0, 20.0]
    assert all(tensor.abs().max() < 10 for other, tensor in operands.items() if other != "x")


@pytest.mark.parametrize("name", NAMES)
@given(
    batch=st.integers(1, 5),
    height=st.integers(1, 2**31),
    cols=st.integers(1, 200_000),
    dtype=st.sampled_from(rows.ROW_DTYPES),
    layout=st.sampled_from(("contiguous", "strided")),
    alignment=st.sampled_from((4, 16)),
    device=st.sampled_from([*map(Device.from_key, KEYS), cpu()]),
)
def test_there_is_a_default_for_every_problem(name: str, device: Device, height: int, **parameters: Any) -> None:
    kernel = get_kernel(name)
    problem = kernel.signature.problem({"rows": height, **parameters})
    default = kernel.signature.default(problem, device)
    assert default is not None
    implementation = kernel.implementation(default.implementation)
    assert device.kind in implementation.kinds
    assert implementation.takes(problem, device) is None
    assert set(default.values) == {tunable.name for tunable in implementation.tunables(problem, device)}


@pytest.mark.parametrize("name", NAMES)
def test_spaces_of_the_quick_problems(name: str) -> None:
    kernel = get_kernel(name)
    for parameters in kernel.quick(H200):
        space = Space.of(kernel, kernel.signature.problem(parameters), H200)
        assert {branch.implementation for branch in space.branches} == {"triton", "cuda", "library"}
        assert 100 <= len(space) <= 600
        assert space.default in space
    for parameters in kernel.quick(cpu()):
        space = Space.of(kernel, kernel.signature.problem(parameters), cpu())
        assert {branch.implementation for branch in space.branches} == {"numba", "library"}
        assert space.default in space


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cols", [1, 7, 64, 301, 4224, 32768])
@pytest.mark.parametrize("height", [1, 5000])
def test_every_implementation_has_a_config_for_every_width(name: str, cols: int, height: int) -> None:
    kernel = get_kernel(name)
    for dtype in rows.ROW_DTYPES:
        space = Space.of(kernel, kernel.signature.problem({"rows": height, "cols": cols, "dtype": dtype}), H200)
        assert {branch.implementation for branch in space.branches} == {"triton", "cuda", "library"}, space.refused


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_no_block_holds_are_left_to_the_library(name: str) -> None:
    kernel = get_kernel(name)
    problem = kernel.signature.problem({"rows": 4, "cols": rows.LONGEST_ROW + 1, "dtype": "float16"})
    space = Space.of(kernel, problem, H200)
    assert [config.implementation for config in space] == ["library"]
    assert "rows of at most 32768" in space.refused["triton"]
    assert space.default == space.library[0]


@pytest.mark.parametrize("name", NAMES)
def test_turing_is_left_to_the_library(name: str) -> None:
    kernel = get_kernel(name)
    problem = kernel.signature.problem({"rows": 1000, "cols": 3840, "dtype": "float16"})
    space = Space.of(kernel, problem, TURING)
    assert [config.implementation for config in space] == ["library"]
    assert space.refused["triton"] == space.refused["cuda"] == "needs compute capability 8.0, this is 7.5"
    assert space.default == space.library[0]
    ampere = Device.from_key(KEYS[1])
    assert {config.implementation for config in Space.of(kernel, problem, ampere)} == {"triton", "cuda", "library"}


def test_accesses_are_as_wide_as_the_tensors_allow() -> None:
    kernel = get_kernel("softmax")
    for cols, alignment, widest in ((3840, 16, 8), (3840, 4, 2), (300, 16, 4), (301, 16, 1)):
        parameters = {"rows": 5000, "cols": cols, "dtype": "float16", "alignment": alignment}
        space = Space.of(kernel, kernel.signature.problem(parameters), H200)
        vectors = {int(config.values["vector"]) for config in space if config.implementation == "cuda"}
        assert max(vectors) == widest
        assert all(cols % vector == 0 for vector in vectors)


def test_tiles_cover_the_rows() -> None:
    for total, height, programs in itertools.product((1, 7, 1000), (1, 4), (0, 2)):
        values = {"rows": height, "programs": programs, "blocks": programs}
        tiles = rows_triton.tile_count(total, values)
        assert (tiles - 1) * height < total <= tiles * height
        assert 1 <= rows_triton.blocks(values, H200, tiles) <= tiles
        assert rows_cuda.block_count(values, H200, total) == rows_triton.blocks(values, H200, tiles)


@pytest.mark.parametrize("name", NAMES)
def test_cost(name: str) -> None:
    kernel = get_kernel(name)
    cost = kernel.cost(kernel.signature.problem({"batch": 2, "rows": 3, "cols": 5, "dtype": "bfloat16"}))
    assert cost.bytes == (2 * (3 * 30 + 2 * 5) if name != "softmax" else 2 * 2 * 30)
    assert cost.peak == ""
