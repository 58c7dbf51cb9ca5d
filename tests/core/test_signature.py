"""What a kernel accepts, and how a problem is read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from core_examples import CPU, H200, RTX, SIGNATURE, problem
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedex.core.canonical import MAX_INT
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.errors import BadInput
from tunedex.core.problem import ALIGNMENT_BYTES, Problem
from tunedex.core.signature import Attribute, DefaultRule, Dimension, Operand, Signature, whole_number


class TestProblem:
    def test_what_is_left_out_is_filled_in(self) -> None:
        found = problem()
        assert found.dims == {"batch": 1, "rows": 8, "cols": 16}
        assert found.attributes == {"form": "plain"}
        assert found.dtypes == {"x": "float32", "weight": "float32"}
        assert (found.layout, found.alignment, found.batch, found.dtype) == (
            "contiguous",
            ALIGNMENT_BYTES,
            1,
            "float32",
        )
        assert not found.empty

    @pytest.mark.parametrize(
        "same",
        [
            {"rows": 8.0},
            {"rows": "8"},
            {"rows": " +8 "},
            {"rows": np.int64(8)},
            {"rows": np.uint8(8)},
            {"rows": torch.tensor(8)},
            {"dtype": "fp32"},
            {"dtype": torch.float32},
            {"dtype": "bfloat16", "x_dtype": "f32", "weight_dtype": "float"},
            {"batch": "1"},
            {"form": "plain"},
            {"layout": "contiguous"},
            {"alignment": "16"},
        ],
        ids=str,
    )
    def test_another_spelling_is_the_same_problem(self, same: dict[str, Any]) -> None:
        assert problem(**same) == problem()
        assert problem(**same).key == problem().key

    def test_the_order_of_parameters_does_not_count(self) -> None:
        given = {"rows": 8, "cols": 16, "dtype": "float32", "form": "centred"}
        assert SIGNATURE.problem(dict(reversed(given.items()))).key == SIGNATURE.problem(given).key

    def test_everything_that_changes_the_result_is_in_the_key(self) -> None:
        changes: list[dict[str, Any]] = [
            {}, {"rows": 9}, {"cols": 17}, {"batch": 2}, {"form": "centred"}, {"dtype": "bf16"},
            {"weight_dtype": "bf16"}, {"x_dtype": "bf16"}, {"layout": "strided"}, {"alignment": 8}, {"alignment": 1},
            {"rows": 16, "cols": 8},
        ]  # fmt: skip
        assert len({problem(**change).key for change in changes}) == len(changes)
        assert len({hash(problem(**change)) for change in changes}) == len(changes)

    @pytest.mark.parametrize(
        ("wrong", "field", "message"),
        [
            ({"rows": None}, "rows", "norm needs rows; it takes [batch], rows, cols, [form=plain|centred], dtype"),
            ({"depth": 1}, "depth", "norm has no parameter 'depth'; it takes [batch], rows, cols"),
            ({"rows": -1}, "rows", "rows=-1 is negative"),
            ({"rows": "-1"}, "rows", "rows=-1 is negative"),
            ({"rows": 2**63}, "rows", "rows=9223372036854775808 is over 2^63 - 1"),
            ({"rows": 1e19}, "rows", "is over 2^63 - 1"),
            ({"rows": 1.5}, "rows", "rows=1.5 is not a whole number"),
            ({"rows": "1e3"}, "rows", "rows=1e3 is not a whole number"),
            ({"rows": "٣"}, "rows", "rows=٣ is not a whole number"),
            ({"rows": "1_0"}, "rows", "rows=1_0 is not a whole number"),
            ({"rows": ""}, "rows", "rows= is not a whole number"),
            ({"rows": True}, "rows", "rows=True is not a whole number"),
            ({"rows": float("nan")}, "rows", "rows=nan is not a whole number"),
            ({"rows": float("inf")}, "rows", "rows=inf is not a whole number"),
            ({"rows": [8]}, "rows", "rows=[8] is not a whole number"),
            ({"rows": np.array([8, 8])}, "rows", "is not a whole number"),
            ({"rows": torch.tensor(8.0)}, "rows", "is not a whole number"),
            ({"form": "odd"}, "form", "form=odd is not a choice of norm; it takes plain or centred"),
            ({"layout": "diagonal"}, "layout", "layout 'diagonal' is unknown; it takes contiguous or strided"),
            ({"layout": "channels_last"}, "layout", "layout 'channels_last' is not taken by norm"),
            ({"alignment": 3}, "alignment", "alignment=3 is not 1, 2, 4, 8 or 16 bytes"),
            ({"alignment": 0}, "alignment", "alignment=0 is not 1, 2, 4, 8 or 16 bytes"),
            ({"dtype": "bf17"}, "dtype", "dtype 'bf17' is unknown; known are float64"),
            ({"dtype": "float64"}, "dtype", "norm takes no float64 for x; it takes float32, bfloat16"),
            ({"weight_dtype": "int8"}, "weight_dtype", "norm takes no int8 for weight"),
        ],
        ids=lambda value: value if isinstance(value, str) and "=" in value else "",
    )
    def test_bad_input_says_what_would_be_right(self, wrong: dict[str, Any], field: str, message: str) -> None:
        with pytest.raises(BadInput, match=re.escape(message)) as caught:
            problem(**wrong)
        assert caught.value.field == field
        assert "\n" not in str(caught.value)

    def test_a_dtype_may_be_given_for_all_or_for_each(self) -> None:
        with pytest.raises(BadInput, match=re.escape("norm needs dtype (or weight_dtype)")):
            SIGNATURE.problem({"rows": 8, "cols": 16, "x_dtype": "float32"})
        each = SIGNATURE.problem({"rows": 8, "cols": 16, "x_dtype": "float32", "weight_dtype": "bfloat16"})
        assert each.dtypes == {"x": "float32", "weight": "bfloat16"}

    def test_a_dtype_for_all_is_read_even_where_each_has_its_own(self) -> None:
        each = {"x_dtype": "bf16", "weight_dtype": "bf16"}
        with pytest.raises(BadInput, match="banana"):
            SIGNATURE.problem({"rows": 8, "cols": 16, "dtype": "banana", **each})
        assert SIGNATURE.problem({"rows": 8, "cols": 16, "dtype": "fp32", **each}).dtype == "bfloat16"

    @pytest.mark.parametrize(
        ("dtypes", "field", "found"),
        [
            ({"dtype": "bf16", "weight_dtype": "fp32"}, "weight_dtype", "x in bfloat16 and weight in float32"),
            ({"dtype": "bf16", "x_dtype": "fp32"}, "dtype", "x in float32 and weight in bfloat16"),
        ],
    )
    def test_operands_of_one_dtype(self, dtypes: dict[str, str], field: str, found: str) -> None:
        signature = replace(SIGNATURE, same_dtype=("x", "weight"))
        with pytest.raises(BadInput, match=f"^norm needs x and weight in one dtype, not {found}$") as caught:
            signature.problem({"rows": 8, "cols": 16, **dtypes})
        assert caught.value.field == field
        alike = {"rows": 8, "cols": 16, "x_dtype": "bf16", "weight_dtype": "bfloat16"}
        assert signature.problem(alike) == problem(dtype="bf16")

    def test_zero_is_a_size_with_nothing_to_compute(self) -> None:
        assert problem(rows=0).empty
        assert problem(batch=0).empty

    def test_the_largest_size(self) -> None:
        assert problem(rows=str(MAX_INT)).dims["rows"] == MAX_INT == 2**63 - 1

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, MAX_INT), st.integers(1, MAX_INT), st.sampled_from(["plain", "centred"]))
    def test_documents_and_command_lines_round_trip(self, rows: int, batch: int, form: str) -> None:
        asked = problem(rows=rows, batch=batch, form=form, layout="strided", alignment=4, weight_dtype="bf16")
        assert Problem.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
        kernel, _, text = str(asked).partition(":")
        assert kernel == asked.kernel
        assert SIGNATURE.problem(dict(part.split("=") for part in text.split(","))) == asked

    def test_as_the_command_line_takes_it(self) -> None:
        assert str(problem()) == "norm:rows=8,cols=16,form=plain,dtype=float32"
        mixed = problem(batch=2, weight_dtype="bf16", alignment=8, layout="strided")
        assert str(mixed) == (
            "norm:batch=2,rows=8,cols=16,form=plain,x_dtype=float32,weight_dtype=bfloat16,layout=strided,alignment=8"
        )

    def test_another_batch(self) -> None:
        assert problem().at_batch(4) == problem(batch=4)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.integers(0, MAX_INT), st.integers(0, 2**53).map(float)))
def test_a_number_and_its_text_read_alike(value: float) -> None:
    assert whole_number("n", value) == whole_number("n", str(int(value))) == value


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(), st.floats(), st.integers(), st.booleans(), st.none(), st.lists(st.integers())))
def test_whatever_comes_is_a_size_or_bad_input(value: Any) -> None:
    try:
        number = whole_number("n", value)
    except BadInput:
        return
    assert type(number) is int
    assert 0 <= number <= MAX_INT


class TestDefault:
    @pytest.mark.parametrize(
        ("parameters", "device", "values"),
        [
            ({"dtype": "bf16"}, H200, {"block": 4}),
            ({"dtype": "bf16", "rows": 64}, H200, {"block": 4}),
            ({"dtype": "bf16", "rows": 65}, H200, {"block": 2}),
            ({"dtype": "bf16", "x_dtype": "fp32"}, H200, {"block": 2}),
            ({}, H200, {"block": 2}),
            ({"dtype": "bf16"}, RTX, {"block": 1}),
            ({}, CPU, {}),
        ],
        ids=str,
    )
    def test_the_first_rule_that_fits(self, parameters: dict[str, Any], device: Device, values: dict[str, int]) -> None:
        config = SIGNATURE.default(problem(**parameters), device)
        assert config is not None
        assert config.values == values

    @pytest.mark.parametrize(("device", "block"), [(H200, 8), (RTX, 1)], ids=["sm90", "sm89"])
    def test_a_rule_for_new_devices(self, device: Device, block: int) -> None:
        newer = DefaultRule("cuda", {"implementation": "triton", "block": 8}, min_target=90)
        config = replace(SIGNATURE, defaults=(newer, *SIGNATURE.defaults)).default(problem(rows=65), device)
        assert config is not None
        assert config.values == {"block": block}
        assert newer.runs_on(device) is (block == 8)

    def test_none_for_a_device_that_no_rule_is_for(self) -> None:
        assert SIGNATURE.default(problem(), Device.from_key("name:Some_NPU")) is None


class TestSignature:
    @pytest.mark.parametrize(
        "change",
        [
            {},
            {"same_dtype": ("x", "weight")},
            {"defaults": (DefaultRule("cpu", {"implementation": "a"}, min_target=90),)},
        ],
        ids=str,
    )
    def test_round_trip(self, change: dict[str, Any]) -> None:
        signature = replace(SIGNATURE, **change)
        assert Signature.from_dict(json.loads(json.dumps(signature.to_dict()))) == signature

    def test_one_without_what_came_later_is_read(self) -> None:
        data = SIGNATURE.to_dict()
        del data["same_dtype"]
        for rule in data["defaults"]:
            del rule["min_target"]
        assert Signature.from_dict(data) == SIGNATURE

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"kernel": "Norm"}, "a name is of lower-case letters"),
            ({"kernel": "a:b:c"}, "a name is of lower-case letters"),
            ({"dimensions": (Dimension("rows", "close"),)}, "rows matches 'close', which is not free"),
            ({"dimensions": (Dimension("rows", "divisible(0)"),)}, "rows matches 'divisible(0)'"),
            ({"dimensions": (Dimension("rows"), Dimension("rows"))}, "rows is declared twice"),
            ({"dimensions": (Dimension("dtype"),)}, "dtype has a meaning already"),
            ({"attributes": (Attribute("form", ("a", "b"), "c"),)}, "form defaults to 'c', which is not one of"),
            ({"attributes": (Attribute("rows", ("a",), "a"),)}, "rows is declared twice"),
            ({"operands": (Operand("x", ("bf16",)),)}, "x takes bf16, which is no dtype"),
            ({"operands": ()}, "it reads no operand"),
            ({"layouts": ("diagonal",)}, "layout 'diagonal' is unknown"),
            ({"defaults": (DefaultRule("cpu", {"implementation": "library"}, {"depth": (1, 2)}),)}, "asks for depth"),
            ({"defaults": (DefaultRule("cpu", {"block": 1}),)}, "a default cannot be: a config has no implementation"),
            (
                {"defaults": (DefaultRule("cpu", {"implementation": "numba", "streams": "two"}),)},
                "a default cannot be: streams 'two' is not a count from 1",
            ),
            ({"same_dtype": ("x", "bias")}, "bias is to share a dtype and is no operand"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_contradicts_itself_is_refused(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            replace(SIGNATURE, **change)

    @pytest.mark.parametrize("name", ["softmax", "linear_gelu", "vllm:fused_moe", "a1"])
    def test_names(self, name: str) -> None:
        assert replace(SIGNATURE, kernel=name).kernel == name

    @pytest.mark.parametrize("matching", ["free", "exact", "divisible(8)", "divisible(128)"])
    def test_matchings(self, matching: str) -> None:
        assert (
            Dimension("n", matching)
            in replace(SIGNATURE, dimensions=(Dimension("n", matching),), defaults=()).dimensions
        )


class TestConfig:
    def test_round_trip(self) -> None:
        config = Config("triton", {"block": 64, "fast": True, "share": 0.5, "hint": "evict_first"})
        assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert str(config) == "triton block=64 fast=True hint=evict_first share=0.5"

    def test_equal_by_key(self) -> None:
        assert Config("triton", {"a": 1, "b": 2}) == Config("triton", {"b": 2, "a": 1.0})
        assert (
            len({Config("triton", {"a": 1}), Config("triton", {"a": 1.0}), Config("triton", {"a": np.int64(1)})}) == 1
        )
        different = [Config("triton", {"a": 1}), Config("cuda", {"a": 1}), Config("triton", {"a": True}),
                     Config("triton", {"a": "1"}), Config("triton", {"a": 2}), Config("triton", {"b": 1}),
                     Config("triton")]  # fmt: skip
        assert len(set(different)) == len(different)
        assert Config("triton") != "triton"

    def test_streams(self) -> None:
        assert Config("triton", {"streams": 4}).streams == 4
        assert Config("triton").streams == 1
