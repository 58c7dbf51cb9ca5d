"""The one spelling of a value."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunedex.core.canonical import KEY_HEX_DIGITS, MAX_INT, canonical_json, key_of

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text('añ☃x"\\ ')
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4)
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        ({"rows": 3.0, "eps": 1e-5}, '{"eps":1e-05,"rows":3}'),
        ((1, 2), "[1,2]"),
        (-0.0, "0"),
        (1e300, "1e+300"),
        ("ä", '"ä"'),
        ({}, "{}"),
        (MAX_INT, "9223372036854775807"),
    ],
)
def test_spelling(value: Any, text: str) -> None:
    assert canonical_json(value) == text


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_it_is_json_and_its_own_canonical_form(value: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text


@pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, [{"a": "b\udc00"}]])
def test_half_a_surrogate_pair_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(ValueError, match="half a surrogate pair is no text"):
        canonical_json(value)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text("abcdef", min_size=1), st.integers(), min_size=2), st.randoms())
def test_order_does_not_count(value: dict[str, int], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert key_of(dict(items)) == key_of(value)


@settings(max_examples=50, deadline=None)
@given(st.integers(-(2**53) + 1, 2**53 - 1))
def test_a_whole_number_is_one_value_whatever_its_type(number: int) -> None:
    assert key_of(float(number)) == key_of(number) == key_of(np.int64(number))


def test_what_differs_has_another_key() -> None:
    different = [3, "3", True, [3], {"a": 3}, None, 3.5, "3.0", False, 0, ""]
    assert len({key_of(value) for value in different}) == len(different)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [-float("inf")]}])
def test_only_finite_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        canonical_json(value)


@pytest.mark.parametrize("key", [1, None, True, ("a",)])
def test_only_text_names(key: Any) -> None:
    with pytest.raises(ValueError, match="is not a string"):
        canonical_json({key: 1})


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), 1j, np.zeros(2)])
def test_other_types_have_no_form(value: Any) -> None:
    with pytest.raises(TypeError, match="has no canonical form"):
        canonical_json(value)


def test_a_key_is_32_hexadecimal_digits() -> None:
    assert key_of({}) == "44136fa355b3678a1146ad16f7e8649e"  # of SHA-256("{}")
    assert len(key_of([1])) == KEY_HEX_DIGITS


def test_keys_are_the_same_in_every_process() -> None:
    code = (
        "from core_examples import *\n"
        "print(problem(form='centred').key, FULL_ROW.config.key, H200.key, FULL_ROW.measurement.to_dict() != {})"
    )
    outputs = set()
    for seed in ("0", "1", "12345"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        }
        command = [sys.executable, "-c", code]
        outputs.add(subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60).stdout)
    assert len(outputs) == 1
