"""Run the fitted GELU through Triton's interpreter: a process of its own, started by a test.

Reads a JSON list of numbers on standard input (``Infinity`` and ``NaN`` among them), and writes GELU of each, by form
and dtype of the coefficients, on standard output.
"""

from __future__ import annotations

import json
import sys

import torch
import triton
from triton import language as tl

from tunedex.kernels import gelu
from tunedex.kernels.offline import interpreted

LANES = 16


@triton.jit
def activate(z, out, Q: tl.constexpr, LANES: tl.constexpr):  # noqa: N803 - as Triton spells constants
    lane = tl.arange(0, LANES)
    tl.store(out + lane, gelu.gelu_fitted(tl.load(z + lane), Q))


def run(values: list[float], form: str, dtype: str) -> list[float]:
    given = torch.zeros(LANES)
    given[: len(values)] = torch.tensor(values)
    out = torch.full((LANES,), 7.0)
    activate[(1,)](given, out, gelu.fitted(form, dtype), LANES)
    return out[: len(values)].tolist()


if __name__ == "__main__":
    assert interpreted(), "TRITON_INTERPRET is not set"
    values = json.load(sys.stdin)
    found = {f"{form} {dtype}": run(values, form, dtype) for form in gelu.FORMS for dtype in ("float32", "bfloat16")}
    json.dump(found, sys.stdout)
