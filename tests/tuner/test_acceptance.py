"""The acceptance rule at its edges: sums of many terms however they are split, and outputs of every kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import pytest
import torch

from tunedex.core.measurement import Failure
from tunedex.core.problem import Problem
from tunedex.core.signature import Dimension, Operand, Signature
from tunedex.kernels.base import Cost, InputSource, Kernel, Launch, OutputSpec, Reference, Tensors
from tunedex.kernels.linear_gelu import KERNEL as LINEAR
from tunedex.tuner.checking import Accepted, check
from tunedex.tuner.sets import InputSet, Outputs
from tunedex.tuner.verify import Verdict

#: Terms of a sum, and the blocks of them that a kernel takes at once.
TERMS, BLOCKS = 32_768, 512


@cache
def product(dtype: str, outliers: bool, max_error: float | None = None) -> InputSet:
    problem = LINEAR.signature.problem({"m": 20, "n": 24, "k": TERMS, "dtype": dtype, "gelu": "erf"})
    return InputSet.make(LINEAR, problem, InputSource(1, "cpu", outliers=outliers), max_error, slow=False)


def in_parts(
    made: InputSet,
    split: int,
    *,
    drop: int | None = None,
    rounded: Callable[[torch.Tensor], torch.Tensor] = lambda operand: operand,
) -> Verdict:
    """The verdict on a product of which each of ``split`` parts is summed up by itself in float32, and all but ``drop``
    are added."""
    x, weight, bias = (made.operands[name] for name in ("x", "weight", "bias"))
    blocks = zip(x.float().chunk(split, -1), weight.float().chunk(split, -1), strict=True)
    parts = [rounded(a) @ rounded(b).mT for n, (a, b) in enumerate(blocks) if n != drop]
    total = torch.stack(parts).sum(0) + bias.float()
    return made.standards["out"].judge(torch.nn.functional.gelu(total).to(x.dtype))


def to_tf32(operand: torch.Tensor) -> torch.Tensor:
    """``operand`` with 10 bits behind the point, rounded to nearest."""
    return (operand.contiguous().view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)


every_product = pytest.mark.parametrize(
    ("dtype", "outliers"), [(d, o) for d in ("float16", "bfloat16", "float32") for o in (False, True)]
)


class TestLongSums:
    @every_product
    def test_however_a_sum_is_split_it_is_accepted(self, dtype: str, outliers: bool) -> None:
        made = product(dtype, outliers)
        for split in (1, 2, 4, 8, BLOCKS):
            verdict = in_parts(made, split)
            assert verdict.lossless, (split, verdict.detail)

    @every_product
    @pytest.mark.parametrize("drop", [0, BLOCKS // 2, BLOCKS - 1])
    def test_one_without_a_block_of_its_terms_is_refused(self, dtype: str, outliers: bool, drop: int) -> None:
        verdict = in_parts(product(dtype, outliers), BLOCKS, drop=drop)
        assert not verdict.accepted
        assert "elements beyond tolerance, first at [0, " in verdict.detail

    @pytest.mark.parametrize("outliers", [False, True])
    def test_tf32_is_no_float32_and_accepted_only_where_its_error_is_borne(self, outliers: bool) -> None:
        assert not in_parts(product("float32", outliers), 1, rounded=to_tf32).accepted
        assert in_parts(product("bfloat16", outliers), 1, rounded=to_tf32).lossless  # it loses nothing of these
        borne = in_parts(product("float32", outliers, max_error=1e-2), 1, rounded=to_tf32)
        assert (borne.accepted, borne.lossless) == (True, False)


#: Shape and dtype of each output of `Many`.
OUTPUTS: Mapping[str, tuple[tuple[int, ...], str]] = {
    "eight": ((6, 8), "float8_e4m3fn"),
    "five": ((6, 8), "float8_e5m2"),
    "half": ((6, 8), "bfloat16"),
    "single": ((6, 8), "float32"),
    "double": ((6, 8), "float64"),
    "indices": ((6, 3), "int32"),
    "places": ((6, 3), "int64"),
    "bytes": ((6, 3), "uint8"),
    "flags": ((6, 3), "bool"),
    "rows": ((6,), "float32"),
    "total": ((), "float32"),
    "empty": ((0, 8), "float32"),
    "none": ((0,), "int32"),
}


class Many(Kernel):
    """Each output holds the first elements of x, as far as its dtype can."""

    signature = Signature(
        kernel="many",
        version="000000000001",
        formula="every output is x",
        dimensions=(Dimension("rows"), Dimension("cols")),
        operands=(Operand("x", ("float32",)),),
    )
    implementations = ()

    def cost(self, problem: Problem) -> Cost:
        raise NotImplementedError

    def reduction_length(self, problem: Problem) -> int:
        return 1

    def operands(self, problem: Problem, source: InputSource) -> dict[str, torch.Tensor]:
        return {"x": source.normal(tuple(problem.dims.values()), problem.dtype)}

    def outputs(self, problem: Problem) -> dict[str, OutputSpec]:
        return {name: OutputSpec(*spec) for name, spec in OUTPUTS.items()}

    def reference(self, problem: Problem, operands: Tensors, dtype: torch.dtype | None = None) -> dict[str, Reference]:
        found: dict[str, Reference] = {}
        for name, (shape, kind) in OUTPUTS.items():
            value = operands["x"].to(dtype or torch.float64).flatten()[: math.prod(shape)].view(shape)
            if not getattr(torch, kind).is_floating_point:
                value = (value.abs() * 10).floor() % (2 if kind == "bool" else 100)
            found[name] = Reference(value, value.abs())
        return found

    def eager(self, problem: Problem, operands: Tensors) -> dict[str, torch.Tensor]:
        exact = self.reference(problem, operands)
        return {name: exact[name].value.to(getattr(torch, kind)) for name, (_, kind) in OUTPUTS.items()}

    def problem_of(self, operands: Tensors, attributes: Mapping[str, str]) -> Problem:
        raise NotImplementedError


class TestManyOutputs:
    def checked(self, change: Callable[[dict[str, torch.Tensor]], None]) -> Accepted | Failure:
        """What is said of outputs that are right until ``change`` is made to them."""
        kernel = Many()
        problem = kernel.signature.problem({"rows": 6, "cols": 8, "dtype": "float32"})
        sets = [InputSet.make(kernel, problem, InputSource(n, "cpu"), None, slow=False) for n in range(2)]

        def launch(operands: Tensors, outputs: Tensors) -> None:
            right = kernel.eager(problem, operands)
            change(right)
            for name, value in right.items():
                outputs[name].copy_(value)

        run: Launch = launch
        return check(run, sets, Outputs(kernel.outputs(problem), torch.device("cpu")))

    def test_each_is_held_to_the_tolerance_of_its_own_dtype(self) -> None:
        found = self.checked(lambda outputs: None)
        assert isinstance(found, Accepted)
        assert found.lossless
        # The error of the coarsest, of which one rounding is up to an eighth.
        assert 0.02 < found.error < 0.125

    @pytest.mark.parametrize("name", [name for name, (shape, _) in OUTPUTS.items() if math.prod(shape)])
    def test_one_wrong_element_of_any_is_found_and_named(self, name: str) -> None:
        shape, _ = OUTPUTS[name]

        def change(outputs: dict[str, torch.Tensor]) -> None:
            flat = outputs[name].reshape(-1)
            off = 3 if flat.dtype.is_floating_point else 1  # many roundings, and the next integer
            flat[-1] = ~flat[-1] if flat.dtype is torch.bool else (flat[-1].double() + off).to(flat.dtype)

        found = self.checked(change)
        assert isinstance(found, Failure)
        last = [size - 1 for size in shape]
        assert found.detail.startswith(f"{name}, normal inputs: 1 elements beyond tolerance, first at {last}: ")

    @pytest.mark.parametrize("name", ["eight", "five", "half", "single", "double", "rows", "total"])
    def test_what_is_not_a_number_is_found(self, name: str) -> None:
        def change(outputs: dict[str, torch.Tensor]) -> None:
            outputs[name].reshape(-1)[0] = math.nan

        found = self.checked(change)
        assert isinstance(found, Failure)
        assert found.detail.startswith(
            f"{name}, normal inputs: not finite or not written at {[0] * len(OUTPUTS[name][0])}"
        )
