"""Measuring on a real GPU: the timer under every policy, the bench with every kernel, and sweeps as they are run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy, Resources
from tunedex.db import open_store
from tunedex.db.records import Stage
from tunedex.kernels.base import InputSource, Tensors
from tunedex.kernels.registry import get_kernel
from tunedex.tuner import bench as bench_module
from tunedex.tuner.bench import Bench, FinalTime
from tunedex.tuner.devices import detect
from tunedex.tuner.settings import SETTINGS, Timing
from tunedex.tuner.space import Space
from tunedex.tuner.timing import CudaTimer, TensorSet

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

ROOT = Path(__file__).parents[2]
PLANTED = ROOT / "tests" / "tuner" / "planted"

#: A time below which no problem here can run, so that no measurement is taken for unphysical.
FLOOR_US = 0.01

PROBLEMS: list[tuple[str, dict[str, Any]]] = [
    ("layernorm_gelu_residual", {"rows": 37, "cols": 301, "dtype": "bfloat16"}),
    ("layernorm_gelu_residual", {"rows": 4224, "cols": 3840, "dtype": "bfloat16"}),
    ("softmax", {"batch": 2, "rows": 37, "cols": 301, "dtype": "float16"}),
    ("softmax", {"batch": 4, "rows": 1024, "cols": 4224, "dtype": "bfloat16"}),
    ("linear_gelu", {"m": 67, "n": 133, "k": 83, "dtype": "float16"}),
    ("linear_gelu", {"m": 1024, "n": 3072, "k": 768, "dtype": "bfloat16"}),
    ("layernorm_gelu_residual", {"rows": 300, "cols": 1000, "dtype": "float16", "layout": "strided", "alignment": 2}),
    ("linear_gelu", {"m": 301, "n": 336, "k": 520, "dtype": "float16", "layout": "strided", "alignment": 8}),
]
every_problem = pytest.mark.parametrize(("name", "parameters"), PROBLEMS, ids=str)


@pytest.fixture(scope="module")
def device() -> Device:
    return detect("cuda:0")[0].device


def measured(outcome: Measurement | Failure) -> Measurement:
    assert isinstance(outcome, Measurement), outcome
    return outcome


class TestTimer:
    @pytest.mark.parametrize("policy", list(Policy))
    def test_every_set_of_a_policy_is_run(self, policy: Policy, device: Device) -> None:
        timer = CudaTimer(device, torch.device("cuda", 0), Timing())
        x = torch.randn(256, 1024, device="cuda")
        first = TensorSet({"x": x}, {"out": torch.full_like(x, math.nan)})
        sets = [first, *(first.clone() for _ in range(timer.sets_needed(policy, first.bytes) - 1))]
        assert (len(sets) > 1) is (policy is Policy.GRAPH_COLD)

        def double(operands: Tensors, outputs: Tensors) -> None:
            torch.mul(operands["x"], 2, out=outputs["out"])

        stopwatch = timer.stopwatch(double, sets, policy)
        for tensors in sets:
            tensors.outputs["out"].fill_(math.nan)
        samples = [stopwatch() for _ in range(3)]
        assert all(math.isfinite(sample) and sample > 0 for sample in samples)
        assert all(torch.equal(tensors.outputs["out"], 2 * x) for tensors in sets)

    def test_a_floor_decides_between_a_graph_and_single_launches(self, device: Device) -> None:
        timer = CudaTimer(device, torch.device("cuda", 0), Timing(graph_below_us=100.0))
        assert timer.policies(99.0) == (Policy.GRAPH_COLD, Policy.GRAPH_WARM)
        assert timer.policies(100.0) == (Policy.EAGER_COLD, Policy.EAGER_WARM)

    @every_problem
    def test_sets_are_of_one_problem(self, name: str, parameters: dict[str, Any]) -> None:
        kernel = get_kernel(name)
        problem = kernel.signature.problem(parameters)
        source = InputSource(0, "cuda", strided=problem.layout == "strided")
        made = TensorSet(kernel.operands(problem, source), {})
        copy = made.clone()
        assert kernel.problem_of(copy.operands, problem.attributes) == problem
        for operand, tensor in copy.operands.items():
            assert torch.equal(tensor, made.operands[operand])
            assert tensor.data_ptr() != made.operands[operand].data_ptr()


class TestBench:
    @pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
    @every_problem
    def test_each_implementation_is_verified_and_timed(
        self, name: str, parameters: dict[str, Any], graph: bool, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        timing = replace(SETTINGS.timing, graph_below_us=math.inf if graph else 0.0)
        finals = replace(SETTINGS.finals, seconds=0.5)
        monkeypatch.setattr(bench_module, "SETTINGS", replace(SETTINGS, timing=timing, finals=finals))
        kernel = get_kernel(name)
        problem = kernel.signature.problem(parameters)
        space = Space.of(kernel, problem, device)
        assert space.default is not None
        configs = list(dict.fromkeys([space.default, *(branch.configs[0] for branch in space.branches)]))
        bench = Bench(device, 0)
        bench.open(problem, None, FLOOR_US)
        assert bench.opened.policy is (Policy.GRAPH_COLD if graph else Policy.EAGER_COLD)
        kept = []
        for config in configs:
            outcome, state = bench.measure(config, Resources(), {})
            if isinstance(outcome, Failure) and outcome.kind is FailureKind.OUT_OF_RESOURCES:
                continue  # the first of a space need not fit every device
            found = measured(outcome)
            assert found.lossless
            assert found.policy is bench.opened.policy
            assert found.time_us > 0
            assert found.p20_us <= found.time_us <= found.p80_us
            assert found.peak_memory_bytes is not None
            assert state.clock_mhz
            kept.append(config)
        assert space.default in kept
        times, _ = bench.final(kept)
        assert all(isinstance(time, FinalTime) and time.time_us > 0 and time.warm_us > 0 for time in times), times

    def test_the_same_config_gives_the_same_bits(self, device: Device) -> None:
        kernel = get_kernel("softmax")
        problem = kernel.signature.problem({"rows": 256, "cols": 1024, "dtype": "bfloat16"})
        default = kernel.signature.default(problem, device)
        assert default is not None
        hashes = set()
        for _ in range(2):
            bench = Bench(device, 0)
            bench.open(problem, None, FLOOR_US)
            hashes.add(measured(bench.measure(default, Resources(), {})[0]).output_hash)
        assert len(hashes) == 1

    def test_tf32_passes_under_a_wider_bound_alone_and_is_not_lossless(self, device: Device) -> None:
        problem = get_kernel("linear_gelu").signature.problem({"m": 512, "n": 512, "k": 512, "dtype": "float32"})
        configs = {p: Config("library", {"call": "eager", "precision": p}) for p in ("ieee", "tf32")}
        before = torch.backends.cuda.matmul.fp32_precision
        bench = Bench(device, 0)
        bench.open(problem, None, FLOOR_US)
        refused, _ = bench.measure(configs["tf32"], Resources(), {})
        assert isinstance(refused, Failure)
        assert refused.kind is FailureKind.WRONG_RESULT
        bench.open(problem, 1e-2, FLOOR_US)
        exact, lossy = (measured(bench.measure(config, Resources(), {})[0]) for config in configs.values())
        assert (exact.lossless, lossy.lossless) == (True, False)
        assert exact.error < lossy.error < 1e-2
        assert torch.backends.cuda.matmul.fp32_precision == before


class TestSweep:
    @staticmethod
    def tuner(*arguments: str, path: Sequence[Path] = ()) -> dict[str, Any]:
        """The document that a command prints; it runs from the checkout, installed or not."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, [*path, ROOT]), os.environ.get("PYTHONPATH", "")]),
        }
        done = subprocess.run(
            [sys.executable, "-m", "tunedex", *arguments, "--json"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def test_every_planted_fault_costs_one_trial(self, device: Device, tmp_path: Path) -> None:
        db = str(tmp_path / "tunedex.db")
        problem = "planted:rows=37,cols=61,dtype=float32"
        document = self.tuner("sweep", "--device", "cuda:0", "--db", db, "--problem", problem, path=[PLANTED])
        (result,) = document["results"]
        assert document["device"]["key"] == device.key
        assert result["failures"] == {"crash": 3, "oom": 1, "out_of_resources": 1, "wrong_result": 4}
        with open_store(db) as store:
            outcomes = {
                trial.config.values.get("fault", "library"): trial.outcome
                for trial in store.list_trials(limit=1000).items
                if trial.stage is Stage.SEARCH
            }
        assert len(outcomes) == result["trials"]
        for fault in ("none", "library"):
            assert measured(outcomes[fault]).policy is Policy.GRAPH_COLD
        details = {fault: outcome.detail for fault, outcome in outcomes.items() if isinstance(outcome, Failure)}
        assert "[0, 36, 60]" in details["wrong_last"]
        assert details["operand"].endswith("operand x was changed")
        assert details["beside"].endswith("memory beside the output was written")
        assert "SIGABRT" in details["abort"]

    def test_what_a_sweep_finds_is_what_a_lookup_answers(self, device: Device, tmp_path: Path) -> None:
        db = str(tmp_path / "tunedex.db")
        problem = "softmax:batch=2,rows=1024,cols=4224,dtype=bfloat16"
        document = self.tuner("sweep", "--device", "cuda:0", "--db", db, "--problem", problem, "--trials", "8")
        (result,) = document["results"]
        assert result["trials"] >= 8
        assert result["config"]
        parameters = problem.partition(":")[2].split(",")
        answer = self.tuner("lookup", "softmax", *parameters, "--device", device.key, "--db", db)
        assert answer["match"] == "exact"
        assert answer["config"] == result["config"]
        assert answer["revision"] == document["revision"]
