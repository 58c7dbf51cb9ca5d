"""linear_gelu's Triton variants through the interpreter, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

TILE = {
    "precision": "ieee",
    "block_m": 64,
    "block_n": 64,
    "block_k": 32,
    "group_m": 8,
    "num_warps": 4,
    "num_stages": 2,
}
#: Sizes that no tile divides, with rows of a multiple of 16 bytes, which descriptors need.
RAGGED = {"m": 70, "n": 136, "k": 88}
ODD = {"m": 67, "n": 129, "k": 83}


def case(name: str, sizes: dict[str, int], dtype: str, *, variant: str = "pointer", **more: Any) -> Any:
    form = more.pop("gelu", "tanh")
    tile = {**TILE, "variant": variant, **more.pop("tile", {})}
    return pytest.param(
        {
            "kernel": "linear_gelu",
            "parameters": {**sizes, "gelu": form, "dtype": dtype, **more.pop("parameters", {})},
            "values": tile,
            **more,
        },
        id=name,
    )


CASES = [
    *(case(f"{variant}-{dtype}", RAGGED, dtype, variant=variant)
      for variant in ("pointer", "descriptor", "persistent")
      for dtype in ("float32", "float16", "bfloat16")),
    case("erf", RAGGED, "float32", gelu="erf"),
    case("erf-persistent", RAGGED, "float16", gelu="erf", variant="persistent"),
    case("odd-sizes", ODD, "float16"),
    case("odd-sizes-float32", ODD, "float32"),
    case("batch", {"batch": 3, **RAGGED}, "float32"),
    case("batch-persistent", {"batch": 3, **RAGGED}, "float16", variant="persistent"),
    case("strided", RAGGED, "float16", strided=True, parameters={"layout": "strided"}),
    case("strided-descriptor", RAGGED, "float16", variant="descriptor", strided=True, parameters={"layout": "strided"}),
    case("unaligned", RAGGED, "float32", parameters={"alignment": 4}),
    case("outliers", RAGGED, "float32", outliers=True),
    case("outliers-float16", RAGGED, "float16", outliers=True, variant="persistent"),
    case("one-row", {"m": 1, "n": 64, "k": 48}, "float16", tile={"block_m": 16}),
    case("whole-blocks", {"m": 64, "n": 128, "k": 64}, "float32"),
    case("one-term", {"m": 5, "n": 6, "k": 1}, "float32"),
    case("more-tiles-than-programs", {"m": 1040, "n": 1032, "k": 16}, "float16", variant="persistent"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_result(case: dict[str, Any], verdict: dict[str, Any], accept: Callable[..., None]) -> None:
    accept(case, verdict)
