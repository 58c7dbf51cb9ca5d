"""Data types by name."""

from __future__ import annotations

import pytest
import torch

from tunedex.core.dtypes import ALIASES, DTYPES, dtype_name
from tunedex.core.errors import BadInput


@pytest.mark.parametrize("name", sorted(set(DTYPES) - {"int4"}))
def test_names_sizes_and_roundings_are_torchs(name: str) -> None:
    dtype = getattr(torch, name)
    assert dtype_name(dtype) == dtype_name(str(dtype)) == name
    assert DTYPES[name].bytes == dtype.itemsize
    assert DTYPES[name].bits == 8 * dtype.itemsize
    # torch's eps is the step after 1, twice the error of rounding to nearest.
    expected = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0
    assert DTYPES[name].unit_roundoff == expected


def test_half_a_byte_is_stored_in_one() -> None:
    assert (DTYPES["int4"].bits, DTYPES["int4"].bytes) == (4, 1)


@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_aliases_are_read(alias: str, name: str) -> None:
    assert name in DTYPES
    assert alias not in DTYPES
    assert dtype_name(f" {alias.upper()} ") == name


@pytest.mark.parametrize("text", ["", "bf17", "float128", None, 32, "complex64", "torch.", "torch"])
def test_others_are_refused_with_those_that_are_known(text: object) -> None:
    with pytest.raises(BadInput, match="is unknown; known are float64, float32, float16") as caught:
        dtype_name(text)
    assert caught.value.field == "dtype"
