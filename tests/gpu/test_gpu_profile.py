"""`tuner profile` of a program on a real GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tunedex.tuner.devices import detect

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

ROOT = Path(__file__).parents[2]
CODE = """
import torch
from torch.nn import functional

x = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)
weight, bias = torch.randn_like(x), torch.randn_like(x[0, :512])
scale = torch.ones_like(x[0])

@torch.no_grad()
def layers():
    functional.gelu(functional.linear(x, weight, bias))
    functional.gelu(functional.layer_norm(x, (1024,), scale, scale)) + x
    torch.softmax(x, -1)

for _ in range(150):
    layers()
with torch.cuda.stream(torch.cuda.Stream()):
    layers()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    layers()
graph.replay()
torch.cuda.synchronize()
"""


def test_a_program_s_problems_are_found_and_timed_on_its_device(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CODE)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "tunedex", "profile", "--json", "--", sys.executable, "script.py"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    device = detect("cuda:0")[0].device
    assert document["device"]["key"] == device.key
    assert str(device.attributes.get("uuid", "no UUID")) not in done.stdout
    # 150 calls, of which the first 100 are timed, one on another stream, and one captured.
    assert {each["kernel"]: each["calls"] for each in document["problems"]} == {
        "linear_gelu": 152,
        "layernorm_gelu_residual": 152,
        "softmax": 152,
    }
    assert all(each["total_ms"] > 0 for each in document["problems"])
    assert any(note.startswith("operators captured in a CUDA graph") for note in document["notes"])
