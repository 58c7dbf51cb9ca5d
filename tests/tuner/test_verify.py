"""The acceptance rule: what passes, what does not, what is said of it, and what holds where float64 is slow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tunedex.core.device import Device
from tunedex.core.host import cpu
from tunedex.kernels.base import InputSource, Kernel, OutputSpec, Reference
from tunedex.kernels.registry import get_kernel
from tunedex.tuner import verify
from tunedex.tuner.sets import InputSet, Outputs, copied, float64_is_slow
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.verify import SampledStandard, bits_hash, judge, relative_error


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


class Unreferenced(type(get_kernel("softmax"))):  # type: ignore[misc]
    """One element of the reference is no number."""

    def reference(self, *arguments: Any, **named: Any) -> dict[str, Reference]:
        made = super().reference(*arguments, **named)
        for reference in made.values():
            reference.value.flatten()[-1] = math.nan
        return made


@pytest.mark.parametrize("slow", [False, True])
def test_a_reference_that_is_no_number_is_held_against_no_config(slow: bool) -> None:
    kernel = Unreferenced()
    problem = kernel.signature.problem({"rows": 8, "cols": 16, "dtype": "float32"})
    with pytest.raises(ValueError, match="the reference of out is not finite"):
        InputSet.make(kernel, problem, InputSource(1, "cpu"), None, slow=slow)


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


def test_a_scale_that_is_no_number_bounds_an_element_by_the_smallest(exact: torch.Tensor) -> None:
    exact[3, 4] = 0.0
    scale = exact.abs()
    scale[3, 4] = math.nan
    result = exact.float()
    words = {"dtype": "float32", "reduction_length": 1, "eager_error": 1.0}
    assert judge(result, Reference(exact, scale), **words).lossless
    result[3, 4] = 1e-6
    assert "first at [3, 4]: 1e-06 instead of 0" in judge(result, Reference(exact, scale), **words).detail


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


@pytest.mark.parametrize("count", [1, 3, 8, 9, 4096, 10_001])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
def test_the_hash_sees_every_bit(count: int, dtype: torch.dtype) -> None:
    x = torch.zeros(count, dtype=dtype)
    hashes = {bits_hash(x)}
    for position in {0, count // 2, count - 1}:
        for bit in {0, 8 * dtype.itemsize - 1}:
            y = x.clone()
            octets = y.view(torch.uint8)
            octets[position * dtype.itemsize + bit // 8] = 1 << bit % 8
            hashes.add(bits_hash(y))
    # Two sign bits, where plain sums of words would see none.
    y = x.clone()
    y.view(torch.uint8)[dtype.itemsize - 1 :: 8] = 128
    hashes.add(bits_hash(y))
    places = len({0, count // 2, count - 1})
    assert len(hashes) == 1 + 2 * places + (y.view(torch.uint8).count_nonzero().item() > 1)


def test_the_hash_does_not_depend_on_how_much_is_summed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1001, generator=torch.Generator().manual_seed(1))
    whole = bits_hash(x)
    in_parts(monkeypatch)
    assert bits_hash(x) == whole
    assert bits_hash(torch.cat([x[:1], x])[1:]) == whole  # not at a multiple of eight bytes


def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(SETTINGS, verifying=replace(SETTINGS.verifying, chunk_elements_cpu=64))
    monkeypatch.setattr(verify, "SETTINGS", small)


@pytest.mark.parametrize("place", [(0, 0), (31, 17), (63, 99)])
def test_a_result_is_judged_alike_in_parts(
    exact: torch.Tensor, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = exact.float()
    result[place] += 1.0
    whole = judged(result, exact, "float32", eager_error=1.0)
    in_parts(monkeypatch)
    part = judged(result, exact, "float32", eager_error=1.0)
    assert part.error == pytest.approx(whole.error)
    assert part.detail == whole.detail
    assert f"first at {list(place)}: " in part.detail


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32])
def test_integers_are_equal_or_wrong(dtype: torch.dtype) -> None:
    exact = torch.arange(-20, 20, dtype=torch.float64).view(4, 10)
    result = exact.to(dtype)
    name = str(dtype).removeprefix("torch.")
    assert judged(result, exact, name, eager_error=0.0).lossless
    result[2, 3] += 1
    verdict = judged(result, exact, name, eager_error=1.0)
    assert not verdict.accepted
    assert "1 elements beyond tolerance, first at [2, 3]: 4 instead of 3" in verdict.detail


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_eight_bits_are_judged(exact: torch.Tensor, dtype: str) -> None:
    result = exact.to(getattr(torch, dtype))
    assert judged(result, exact, dtype, relative_error(result, exact)).lossless
    result[1, 2] = 200.0
    assert "[1, 2]" in judged(result, exact, dtype, eager_error=1.0).detail


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_memory_beside_an_output_is_watched(dtype: str, side: str) -> None:
    outputs = Outputs({"out": OutputSpec((3, 5), dtype), "sum": OutputSpec((3,), "float32")}, torch.device("cpu"))
    outputs.poison()
    assert outputs.trespassed().tolist() == [False, False]
    out = outputs.tensors["out"]
    place = out.storage_offset() + (out.numel() if side == "after" else -1)
    out.as_strided((1,), (1,), place).view(torch.uint8)[0] = 0
    assert outputs.trespassed().tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("strided", [False, True])
def test_a_changed_bit_of_an_operand_is_seen(dtype: torch.dtype, strided: bool) -> None:
    x = torch.zeros(6, 40, dtype=dtype)[:, : 33 if strided else 40]
    made = InputSet({"x": x}, {"x": copied(x)}, {})
    assert made.changed().tolist() == [False]
    x[5, 32] = -0.0 if dtype.is_floating_point else 1
    assert made.changed().tolist() == [True]


def test_values_that_are_not_numbers_are_equal_to_themselves() -> None:
    x = torch.full((4, 4), math.nan)
    assert InputSet({"x": x}, {"x": copied(x)}, {}).changed().tolist() == [False]


@pytest.mark.parametrize(
    ("capability", "slow"),
    [
        *(((7, 0), False), ((8, 0), False), ((9, 0), False), ((10, 0), False)),
        *(((7, 5), True), ((8, 6), True), ((8, 7), True), ((8, 9), True), ((12, 0), True), ((99, 0), True)),
    ],
)
def test_where_float64_is_slow(capability: tuple[int, int], slow: bool) -> None:
    assert float64_is_slow(Device("cuda", "x", 1, 2**30, capability)) is slow


def test_a_cpu_is_fast_in_float64() -> None:
    assert not float64_is_slow(cpu())


SLOW_CASES: list[tuple[str, dict[str, Any]]] = [
    ("layernorm_gelu_residual", {"rows": 301, "cols": 133, "dtype": "float32"}),
    ("layernorm_gelu_residual", {"batch": 2, "rows": 301, "cols": 64, "dtype": "bfloat16", "layout": "strided"}),
    ("softmax", {"batch": 2, "rows": 219, "cols": 333, "dtype": "float16"}),
    ("linear_gelu", {"m": 235, "n": 127, "k": 1048, "dtype": "float32"}),
    ("linear_gelu", {"batch": 2, "m": 235, "n": 127, "k": 48, "dtype": "bfloat16"}),
]
every_slow_case = pytest.mark.parametrize(("name", "parameters"), SLOW_CASES, ids=str)


class TestWhereFloat64IsSlow:
    """Both ways of judging are made on the CPU, side by side, over the same operands."""

    def both(
        self, name: str, parameters: dict[str, Any], *, outliers: bool = True
    ) -> tuple[Kernel, InputSet, InputSet]:
        kernel = get_kernel(name)
        problem = kernel.signature.problem(parameters)

        def made(slow: bool) -> InputSet:
            source = InputSource(1, "cpu", outliers=outliers, strided=problem.layout == "strided")
            return InputSet.make(kernel, problem, source, None, slow=slow)

        full, sampled = made(slow=False), made(slow=True)
        assert isinstance(sampled.standards["out"], SampledStandard)
        assert all(torch.equal(full.operands[name], sampled.operands[name]) for name in full.operands)
        return kernel, full, sampled

    @every_slow_case
    @pytest.mark.parametrize("outliers", [False, True])
    def test_what_float64_accepts_is_accepted(self, name: str, parameters: dict[str, Any], outliers: bool) -> None:
        kernel, full, sampled = self.both(name, parameters, outliers=outliers)
        problem = kernel.signature.problem(parameters)
        exact = kernel.reference(problem, full.operands)["out"].value
        eager = kernel.eager(problem, full.operands)["out"]
        rounded = exact.to(eager.dtype)
        for result in (eager, rounded):
            strict, loose = (made.standards["out"].judge(result) for made in (full, sampled))
            assert strict.lossless, strict.detail
            assert loose.lossless, loose.detail
        # The sample's error is near that of the whole.
        assert loose.error == pytest.approx(strict.error, rel=0.25)

    @every_slow_case
    def test_a_gross_fault_is_found_anywhere(self, name: str, parameters: dict[str, Any]) -> None:
        kernel, full, sampled = self.both(name, parameters)
        right = kernel.eager(kernel.signature.problem(parameters), full.operands)["out"]
        for row in range(0, right.shape[-2], 7):
            wrong = right.clone()
            wrong[..., row, -1] += 1.0
            verdict = sampled.standards["out"].judge(wrong)
            assert not verdict.accepted
            assert f"{row}, {right.shape[-1] - 1}]: " in verdict.detail

    def test_a_slight_fault_is_found_in_the_sample_and_named_by_its_row(self) -> None:
        name, parameters = SLOW_CASES[3]
        kernel, full, sampled = self.both(name, parameters)
        problem = kernel.signature.problem(parameters)
        reference = kernel.reference(problem, full.operands)["out"]
        # More than the rule allows, less than the rule and the rounding of a reference in float32 together.
        length = math.sqrt(kernel.reduction_length(problem))
        off = 1.2 * verify.ELEMENT_ROUNDINGS * 2.0**-24 * (1 + length) * reference.scale
        for row in (0, problem.dims["m"] - 1):
            wrong = reference.value.clone()
            wrong[0, row, 5] += off[0, row, 5]
            verdict = sampled.standards["out"].judge(wrong.float())
            assert not verdict.accepted
            assert f"first at [0, {row}, 5]: " in verdict.detail
        unseen = reference.value.clone()
        unseen[0, 1, 5] += off[0, 1, 5]
        rows = sampled.standards["out"]._rows.tolist()
        assert 1 not in rows
        assert len(rows) * problem.dims["n"] >= SETTINGS.verifying.sampled_elements
        assert not full.standards["out"].judge(unseen.float()).accepted
        assert sampled.standards["out"].judge(unseen.float()).accepted

    def test_a_result_that_is_not_finite_is_refused(self) -> None:
        kernel, full, sampled = self.both(*SLOW_CASES[0])
        wrong = kernel.eager(kernel.signature.problem(SLOW_CASES[0][1]), full.operands)["out"]
        wrong[0, 7, 9] = math.nan
        assert "not finite or not written at [0, 7, 9]" in sampled.standards["out"].judge(wrong).detail
