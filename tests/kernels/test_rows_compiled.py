"""The row kernels compiled by Triton and by NVRTC for targets that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.kernels import get_kernel
from tunedex.kernels.base import OverLimit

pytest.importorskip("triton")

DEVICES = {
    80: Device.from_key("nvidia-sm80-108sm-l2_40m-smem_163k-mem_80g"),
    86: Device.from_key("nvidia-sm86-84sm-l2_6m-smem_99k-mem_24g"),
    89: Device.from_key("nvidia-sm89-128sm-l2_72m-smem_99k-mem_24g"),
    90: Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"),
}
KERNELS = ("layernorm_gelu_residual", "softmax")


def compile_all(cases: list[tuple[str, dict[str, Any], dict[str, Any], int]]) -> list[dict[str, Any]]:
    """Compile every ``(kernel, parameters, config, target)`` in this process."""
    found = []
    for name, parameters, config, target in cases:
        kernel, device = get_kernel(name), DEVICES[target]
        problem, chosen = kernel.signature.problem(parameters), Config.from_dict(config)
        try:
            resources = kernel.implementation(chosen.implementation).compile(problem, chosen, device)
            found.append({"shared": resources.shared_memory_bytes, "registers": resources.registers})
        except OverLimit as limit:
            found.append({"over": limit.resource, "needed": limit.needed})
    return found


@pytest.fixture(scope="module")
def compile_apart(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`compile_all` in a process of its own with empty caches."""
    folder = tmp_path_factory.mktemp("caches")

    def run(cases: list[Any]) -> list[dict[str, Any]]:
        result = subprocess.run(
            [sys.executable, str(Path(__file__))],
            input=json.dumps(cases),
            env={
                **os.environ,
                "TRITON_CACHE_DIR": str(folder / "triton"),
                "TUNEDEX_CACHE_DIR": str(folder / "tunedex"),
                "TRITON_INTERPRET": "0",
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        found: list[dict[str, Any]] = json.loads(result.stdout)
        return found

    return run


def test_defaults_compile_and_fit_everywhere(compile_apart: Any) -> None:
    """Every target and every dtype, short rows and long ones."""
    cases = []
    for name in KERNELS:
        signature = get_kernel(name).signature
        for target, dtype, cols in (
            (80, "bfloat16", 3840),
            (86, "float32", 8192),
            (89, "float16", 7),
            (90, "bfloat16", 301),
        ):
            parameters = {"rows": 100, "cols": cols, "dtype": dtype}
            default = signature.default(signature.problem(parameters), DEVICES[target])
            assert default is not None
            cases.append((name, parameters, default.to_dict(), target))
    for case, found in zip(cases, compile_apart(cases), strict=True):
        assert found.get("shared", 1 << 30) <= DEVICES[86].shared_memory_bytes, (case, found)
        assert found["registers"] > 0


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("layernorm_gelu_residual", {"gelu_math": "fitted", "num_stages": 2}),
        ("softmax", {"streams": 1, "num_stages": 3}),
    ],
)
def test_pipeline_beyond_shared_memory(name: str, own: dict[str, Any], compile_apart: Any) -> None:
    """A deep pipeline of wide tiles is refused where shared memory is small and kept where it is large."""
    config = {"implementation": "triton", "chunk": 16384, "rows": 1, "num_warps": 32, "programs": 2,
              "evict_first": False, **own}  # fmt: skip
    parameters = {"rows": 100000, "cols": 16384, "dtype": "float32"}
    small, large = compile_apart([(name, parameters, config, 86), (name, parameters, config, 90)])
    assert small["over"] == "bytes of shared memory"
    assert small["needed"] > DEVICES[86].shared_memory_bytes
    assert large["shared"] <= DEVICES[90].shared_memory_bytes


def test_cuda_sources_compile_for_every_target(compile_apart: Any) -> None:
    shapes = {"float32": (32, 4, 1, 301), "float16": (256, 1, 2, 3840), "bfloat16": (96, 2, 8, 3840)}
    cases = []
    for name in KERNELS:
        for dtype, (lanes, rows, vector, cols) in shapes.items():
            config = {"implementation": "cuda", "lanes": lanes, "rows": rows, "vector": vector, "blocks": 0,
                      "streaming": rows == 2}  # fmt: skip
            cases += [(name, {"rows": 100, "cols": cols, "dtype": dtype}, config, target) for target in DEVICES]
    found = compile_apart(cases)
    assert all(0 < result["registers"] <= 255 for result in found)
    assert all(result["shared"] <= 2048 for result in found)


if __name__ == "__main__":
    json.dump(compile_all(json.load(sys.stdin)), sys.stdout)
