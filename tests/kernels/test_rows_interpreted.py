"""The row kernels' Triton code through the interpreter, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")

WHOLE = {"chunk": 512, "rows": 1, "num_warps": 4, "programs": 0, "num_stages": 1, "evict_first": False}
CUT = {**WHOLE, "chunk": 256, "rows": 2}
WALKING = {**CUT, "programs": 2, "num_stages": 2, "evict_first": True}
OWN = {"layernorm_gelu_residual": {"gelu_math": "fitted"}, "softmax": {"streams": 1}}
RAGGED = {"rows": 5, "cols": 301}


def case(name: str, kernel: str, dtype: str, values: dict[str, Any], **more: Any) -> Any:
    sizes = more.pop("sizes", RAGGED)
    return pytest.param(
        {
            "kernel": kernel,
            "parameters": {**sizes, "dtype": dtype, **more.pop("parameters", {})},
            "values": {**values, **OWN[kernel], **more.pop("own", {})},
            **more,
        },
        id=f"{kernel}-{name}",
    )


CASES = [
    built
    for kernel in OWN
    for built in (
        *(case(f"{cut}-{dtype}", kernel, dtype, values)
          for cut, values in (("whole", WHOLE), ("cut", CUT), ("walking", WALKING))
          for dtype in ("float32", "float16", "bfloat16")),
        case("even-width", kernel, "float16", CUT, sizes={"rows": 4, "cols": 512}),
        case("batch", kernel, "float32", CUT, sizes={"batch": 3, "rows": 3, "cols": 40}),
        case("more-tiles-than-programs", kernel, "float32", {**WALKING, "rows": 1, "chunk": 16},
             sizes={"rows": 270, "cols": 7}),
        case("strided", kernel, "float32", CUT, parameters={"layout": "strided"}, strided=True),
        case("strided-aligned", kernel, "float16", WHOLE, sizes={"batch": 2, "rows": 3, "cols": 304},
             parameters={"layout": "strided"}, strided=True),
        case("unaligned", kernel, "float16", CUT, parameters={"alignment": 2}),
        case("outliers", kernel, "float32", CUT, outliers=True),
        case("outliers-float16", kernel, "float16", WALKING, outliers=True),
        case("one-element", kernel, "float32", {**WHOLE, "chunk": 16}, sizes={"rows": 1, "cols": 1}),
    )
] + [
    case(f"{form}-{math}-{dtype}", "layernorm_gelu_residual", dtype, CUT, parameters={"gelu": form},
         own={"gelu_math": math})
    for form in ("erf", "tanh")
    for math in ("exact", "fitted")
    for dtype in ("float32", "float16")
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_result(case: dict[str, Any], verdict: dict[str, Any], accept: Callable[..., None]) -> None:
    accept(case, verdict)
