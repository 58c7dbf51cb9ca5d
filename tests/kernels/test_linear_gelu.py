"""linear_gelu: its problems, spaces and defaults, and the results of what runs on a CPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tunedex.core import host
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.errors import BadInput
from tunedex.core.problem import ALIGNMENT_BYTES, Problem
from tunedex.kernels.base import InputSource, OverLimit
from tunedex.kernels.linear_gelu import KERNEL
from tunedex.tuner.space import Space
from tunedex.tuner.verify import judge, relative_error

FLUX = {"m": 4608, "n": 12288, "k": 3072}
RAGGED = {"m": 67, "n": 133, "k": 83}

GPUS = {
    75: Device.from_key("nvidia-sm75-40sm-l2_4m-smem_64k-mem_15g"),
    80: Device.from_key("nvidia-sm80-108sm-l2_40m-smem_163k-mem_80g"),
    86: Device.from_key("nvidia-sm86-84sm-l2_6m-smem_99k-mem_24g"),
    89: Device.from_key("nvidia-sm89-128sm-l2_72m-smem_99k-mem_24g"),
    90: Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"),
}
CPU = host.cpu()

#: 128 KiB of tiles in flight: more than a block has on sm_86 and sm_89, less than on sm_80 and sm_90.
LARGE = {
    "variant": "pointer",
    "precision": "ieee",
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "group_m": 8,
    "num_warps": 4,
    "num_stages": 5,
}


def problem(sizes: Mapping[str, int] = RAGGED, dtype: str = "float32", **more: Any) -> Problem:
    return KERNEL.signature.problem({**sizes, "dtype": dtype, **more})


def check(asked: Problem, config: Config, device: Device, *, where: str = "cpu", **source: bool) -> None:
    """Run ``config`` into a poisoned output and hold the result against the acceptance rule."""
    operands = KERNEL.operands(asked, InputSource(3, where, **source))
    spec = KERNEL.outputs(asked)["out"]
    out = torch.full(spec.shape, float("nan"), dtype=getattr(torch, spec.dtype), device=where)
    KERNEL.implementation(config.implementation).bind(asked, config, device)(operands, {"out": out})
    reference = KERNEL.reference(asked, operands)["out"]
    eager_error = relative_error(KERNEL.eager(asked, operands)["out"], reference.value)
    verdict = judge(
        out, reference, dtype=spec.dtype, reduction_length=KERNEL.reduction_length(asked), eager_error=eager_error
    )
    assert verdict.accepted, verdict.detail


def test_the_reference_is_the_formula() -> None:
    asked = problem({"m": 2, "n": 3, "k": 4}, gelu="erf")
    operands = KERNEL.operands(asked, InputSource(0, "cpu"))
    x, weight, bias = (operands[name].double() for name in ("x", "weight", "bias"))
    z = (x[0, :, None, :] * weight[None]).sum(-1) + bias
    expected = z / 2 * (1 + torch.erf(z / 2**0.5))
    torch.testing.assert_close(KERNEL.reference(asked, operands)["out"].value[0], expected)


def test_the_cost_counts_each_operand_once() -> None:
    cost = KERNEL.cost(problem({"batch": 2, "m": 3, "n": 5, "k": 7}, "bfloat16"))
    assert cost.flops == 2 * 6 * 5 * 7
    assert cost.bytes == 2 * (6 * 7 + 5 * 7 + 5 + 6 * 5)
    assert cost.peak == "bfloat16"


@pytest.mark.parametrize(("micro", "form"), [("1x8", "erf"), ("2x8", "tanh"), ("4x4", "erf")])
def test_numba_on_ragged_tiles(micro: str, form: str) -> None:
    tile = {"micro": micro, "rows_per_task": 64, "block_n": 64, "block_k": 128, "threads": 0}
    check(problem({"m": 67, "n": 133, "k": 301}, gelu=form), Config("numba", tile), CPU)


@pytest.mark.parametrize("rows_per_task", [64, 128])
@pytest.mark.parametrize("block_k", [128, 256])
def test_numba_takes_batches_strides_and_outliers(rows_per_task: int, block_k: int) -> None:
    tile = {"micro": "2x8", "rows_per_task": rows_per_task, "block_n": 64, "block_k": block_k, "threads": 1}
    config = Config("numba", tile)
    check(problem({"batch": 3, **RAGGED}), config, CPU, outliers=True)
    check(problem(layout="strided"), config, CPU, strided=True)
    check(problem(alignment=4), config, CPU)
    check(problem({"m": 1, "n": 5, "k": 16}), config, CPU)


def test_numba_gives_the_same_bits_for_any_tile() -> None:
    asked = problem({"m": 130, "n": 70, "k": 256})
    operands = KERNEL.operands(asked, InputSource(3, "cpu"))
    results = []
    for rows_per_task, block_n, threads in ((64, 64, 1), (128, 128, 0)):
        tile = {"rows_per_task": rows_per_task, "block_n": block_n, "threads": threads, "micro": "2x8", "block_k": 128}
        out = torch.empty(1, 130, 70)
        KERNEL.implementation("numba").bind(asked, Config("numba", tile), CPU)(operands, {"out": out})
        results.append(out)
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_library(dtype: str, form: str) -> None:
    asked = problem({"batch": 2, **RAGGED}, dtype, gelu=form)
    library = [config for config in Space.of(KERNEL, asked, CPU) if config.implementation == "library"]
    assert len(library) == (2 if form == "erf" else 1)
    for config in library:
        check(asked, config, CPU, outliers=True)
        # An even k: with an odd one, torch's bfloat16 product on a CPU reads one element beyond each row.
        check(problem({**RAGGED, "k": 84}, dtype, gelu=form, layout="strided"), config, CPU, strided=True)


def test_a_wrong_result_is_refused() -> None:
    # On a CPU the fused call computes the erf form.
    with pytest.raises(AssertionError, match="beyond tolerance"):
        check(problem(gelu="tanh"), Config("library", {"call": "addmm_activation", "precision": "ieee"}), CPU)


@pytest.mark.parametrize("target", [80, 86, 89, 90])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_space_is_large_enough_to_search_and_small_enough_to_finish(target: int, dtype: str) -> None:
    space = Space.of(KERNEL, problem(FLUX, dtype), GPUS[target])
    assert 100 <= len(space) <= 600
    assert {config.values["precision"] for config in space} == ({"ieee", "tf32"} if dtype == "float32" else {"ieee"})


def test_the_space_on_a_cpu() -> None:
    space = Space.of(KERNEL, problem({"m": 512, "n": 3072, "k": 768}), CPU)
    assert 100 <= len(space) <= 600
    assert len({config.values["micro"] for config in space if config.implementation == "numba"}) <= 12


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sizes", [FLUX, {"m": 1, "n": 3072, "k": 768}, {"batch": 3, **RAGGED}], ids=str)
@pytest.mark.parametrize("device", [*GPUS.values(), CPU], ids=lambda device: device.key)
def test_the_default_can_run_everywhere(dtype: str, sizes: dict[str, int], device: Device) -> None:
    asked = problem(sizes, dtype)
    config = KERNEL.signature.default(asked, device)
    assert config is not None
    implementation = KERNEL.implementation(config.implementation)
    assert device.kind in implementation.kinds
    assert implementation.takes(asked, device) is None
    assert set(config.values) == {tunable.name for tunable in implementation.tunables(asked, device)}
    assert all(c.holds(config.values) for c in implementation.constraints(asked, device) if "shared" in c.words)


@pytest.mark.parametrize("target", [80, 86, 89, 90])
def test_shared_memory_prunes_where_a_block_has_too_little(
    target: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    asked, config, device = problem(FLUX, "bfloat16"), Config("triton", LARGE), GPUS[target]
    if target in (86, 89):
        assert config not in Space.of(KERNEL, asked, device)
        with pytest.raises(OverLimit, match="of shared memory, the device has 101376"):
            KERNEL.implementation("triton").compile(asked, config, device)
    else:
        assert config in Space.of(KERNEL, asked, device)
        resources = KERNEL.implementation("triton").compile(asked, config, device)
        assert resources.shared_memory_bytes is not None
        assert 101376 < resources.shared_memory_bytes <= device.shared_memory_bytes
        assert resources.registers is not None
        assert 0 < resources.registers <= 255


@pytest.mark.parametrize("target", [80, 86, 89, 90])
@pytest.mark.parametrize(
    ("dtype", "precision", "form"),
    [("float32", "ieee", "erf"), ("float32", "tf32", "tanh"), ("float16", "ieee", "tanh")],
)
def test_compiles_for(
    target: int, dtype: str, precision: str, form: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    asked, device = problem({"m": 300, "n": 200, "k": 136}, dtype, gelu=form), GPUS[target]
    chosen = {"block_m": 64, "block_n": 64, "block_k": 32, "num_warps": 4, "num_stages": 2, "precision": precision}
    configs = {
        config.values["variant"]: config
        for config in Space.of(KERNEL, asked, device)
        if config.implementation == "triton"
        and all(config.values[name] == value for name, value in chosen.items() if name != "block_k")
        and (precision == "tf32" or dtype == "float16" or config.values["block_k"] == 32)
    }
    assert set(configs) == (
        {"pointer", "descriptor", "persistent"} if target == 90 and precision + dtype != "ieeefloat32" else {"pointer"}
    )
    for config in configs.values():
        resources = KERNEL.implementation("triton").compile(asked, config, device)
        assert resources.shared_memory_bytes
        assert resources.registers


@pytest.mark.parametrize(
    "more",
    [{"alignment": 8}, {"n": 133}, {"k": 83}],
    ids=str,
)
def test_descriptors_need_rows_of_16_bytes(more: dict[str, int]) -> None:
    asked = problem({**FLUX, **{n: v for n, v in more.items() if n != "alignment"}}, "bfloat16", **more)
    variants = {c.values["variant"] for c in Space.of(KERNEL, asked, GPUS[90]) if c.implementation == "triton"}
    assert variants == {"pointer"}


def test_turing_is_left_to_the_library() -> None:
    space = Space.of(KERNEL, problem(FLUX, "float16"), GPUS[75])
    assert space.refused["triton"] == "needs compute capability 8.0, this is 7.5"
    assert {config.implementation for config in space} == {"library"}


class TestProblemOf:
    def test_round_trip(self) -> None:
        for asked in (
            problem(),
            problem({"batch": 3, **RAGGED}, "float16", gelu="erf"),
            problem(layout="strided"),
            problem(RAGGED, "bfloat16", alignment=2),
            problem(RAGGED, "bfloat16", layout="strided", alignment=8),
        ):
            operands = KERNEL.operands(asked, InputSource(0, "cpu"))
            assert KERNEL.problem_of(operands, asked.attributes) == asked
            if asked.alignment < ALIGNMENT_BYTES:
                addresses = {tensor.data_ptr() % ALIGNMENT_BYTES for tensor in operands.values()}
                assert addresses == {asked.alignment}

    def test_two_dimensions_are_one_item(self) -> None:
        operands = {"x": torch.zeros(4, 8), "weight": torch.zeros(16, 8), "bias": torch.zeros(16)}
        assert KERNEL.problem_of(operands, {}) == problem({"m": 4, "n": 16, "k": 8})

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"x": torch.zeros(8)}, "needs x as [m, k] or [batch, m, k], not [8]"),
            ({"weight": torch.zeros(16, 9)}, "needs weight as [n, 8] beside x, not [16, 9]"),
            ({"bias": torch.zeros(15)}, "needs bias of shape [16], not [15]"),
            ({"bias": torch.zeros(16).half()}, "needs bias in torch.float32, as x, not torch.float16"),
            ({"weight": torch.zeros(16, 8, device="meta")}, "needs weight on cpu, as x, not meta"),
            ({"weight": torch.zeros(8, 16).t()}, "needs weight with unit inner stride, not 16"),
            ({"x": torch.zeros(2, 8, 8)[:, :4]}, "needs x with evenly spaced rows"),
            ({"x": torch.zeros(4, 8).double()}, "needs weight in torch.float64"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_does_not_fit(self, wrong: dict[str, Any], message: str) -> None:
        operands = {"x": torch.zeros(4, 8), "weight": torch.zeros(16, 8), "bias": torch.zeros(16), **wrong}
        with pytest.raises(BadInput, match=re.escape(message)):
            KERNEL.problem_of(operands, {})
