"""The row kernels' Triton code through the interpreter, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
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


@pytest.fixture(scope="module")
def verdicts() -> dict[str, dict[str, Any]]:
    """What the interpreter gives for every case, by the case's id."""
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted_cases.py"))],
        input=json.dumps([case.values[0] for case in CASES]),
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return dict(zip((str(case.id) for case in CASES), json.loads(result.stdout), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_result(case: dict[str, Any], verdicts: dict[str, dict[str, Any]], request: pytest.FixtureRequest) -> None:
    verdict = verdicts[request.node.callspec.id]
    if case["parameters"]["dtype"] == "bfloat16":
        # The interpreter truncates where the device rounds.
        assert verdict["error"] <= 2.5 * verdict["eager_error"]
    else:
        assert verdict["accepted"], verdict["detail"]
