"""Measuring on a real GPU: the timer under every policy, the bench with every kernel, what verifying costs, energy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy, Resources
from tunedex.kernels.base import InputSource, Launch, Tensors
from tunedex.kernels.registry import get_kernel
from tunedex.tuner import ceilings
from tunedex.tuner.bench import Bench, FinalTime
from tunedex.tuner.ceilings import shortest_us
from tunedex.tuner.checking import trespass
from tunedex.tuner.devices import detect, energy_j
from tunedex.tuner.peaks import peaks_of
from tunedex.tuner.sets import InputSet, Outputs, TensorSet
from tunedex.tuner.settings import SETTINGS, Timing
from tunedex.tuner.space import Space
from tunedex.tuner.timing import CaptureError, CudaTimer
from tunedex.tuner.verify import SampledStandard, WholeStandard, bits_hash

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

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


def double(operands: Tensors, outputs: Tensors) -> None:
    torch.mul(operands["x"], 2, out=outputs["out"])


def sets_of(x: torch.Tensor, count: int) -> list[TensorSet]:
    first = TensorSet({"x": x}, {"out": torch.full_like(x, math.nan)})
    return [first, *(first.clone() for _ in range(count - 1))]


class TestTimer:
    @pytest.mark.parametrize("policy", list(Policy))
    def test_every_set_of_a_policy_is_run(self, policy: Policy, device: Device) -> None:
        timer = CudaTimer(device, torch.device("cuda", 0), Timing())
        x = torch.randn(256, 1024, device="cuda")
        sets = sets_of(x, timer.sets_needed(policy, 2 * x.nbytes))
        assert (len(sets) > 1) is (policy is Policy.GRAPH_COLD)
        stopwatch = timer.stopwatch(double, sets, policy)
        for tensors in sets:
            tensors.outputs["out"].fill_(math.nan)
        samples = [stopwatch() for _ in range(3)]
        assert all(math.isfinite(sample) and sample > 0 for sample in samples)
        assert all(torch.equal(tensors.outputs["out"], 2 * x) for tensors in sets)

    @pytest.mark.parametrize("policy", list(Policy))
    def test_calls_are_repeated_for_as_long_as_asked(self, policy: Policy, device: Device) -> None:
        timer = CudaTimer(device, torch.device("cuda", 0), Timing())
        x = torch.randn(256, 1024, device="cuda")
        sets = sets_of(x, timer.sets_needed(policy, 2 * x.nbytes))
        begin = time.perf_counter()
        calls = timer.repeater(double, sets, policy)(0.2)
        seconds = time.perf_counter() - begin
        assert seconds >= 0.2
        assert calls >= len(sets)
        assert all(torch.equal(tensors.outputs["out"], 2 * x) for tensors in (sets if policy.cold else sets[:1]))

    @pytest.mark.parametrize(
        "spoil", [lambda out: out.sum().item(), lambda out: out.cpu(), lambda out: torch.cuda.synchronize()]
    )
    def test_what_cannot_be_captured_is_named_and_leaves_the_device_whole(
        self, spoil: Callable[[torch.Tensor], object], device: Device
    ) -> None:
        def launch(operands: Tensors, outputs: Tensors) -> None:
            double(operands, outputs)
            spoil(outputs["out"])

        timer = CudaTimer(device, torch.device("cuda", 0), Timing())
        sets = sets_of(torch.randn(64, 64, device="cuda"), 2)
        with pytest.raises(CaptureError, match="cannot be captured in a CUDA graph"):
            timer.stopwatch(launch, sets, Policy.GRAPH_COLD)
        assert timer.stopwatch(double, sets, Policy.GRAPH_COLD)() > 0

    def test_a_floor_decides_between_a_graph_and_single_launches(self, device: Device) -> None:
        timer = CudaTimer(device, torch.device("cuda", 0), Timing(graph_below_us=100.0))
        assert timer.policy(99.0) is Policy.GRAPH_COLD
        assert timer.policy(100.0) is Policy.EAGER_COLD

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
        self, name: str, parameters: dict[str, Any], graph: bool, device: Device
    ) -> None:
        timing = replace(SETTINGS.timing, graph_below_us=math.inf if graph else 0.0, energy_s=0.2)
        finals = replace(SETTINGS.finals, seconds=0.5)
        kernel = get_kernel(name)
        problem = kernel.signature.problem(parameters)
        space = Space.of(kernel, problem, device)
        assert space.default is not None
        configs = list(dict.fromkeys([space.default, *(branch[0] for branch in space.branches)]))
        bench = Bench(device, 0, settings=replace(SETTINGS, timing=timing, finals=finals))
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
        assert all(isinstance(time, FinalTime) and time.time_us > 0 and (time.warm_us or 0) > 0 for time in times), (
            times
        )

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

    def test_a_config_that_cannot_be_captured_costs_itself_alone(
        self, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = get_kernel("softmax")
        problem = kernel.signature.problem({"rows": 256, "cols": 1024, "dtype": "bfloat16"})
        default = kernel.signature.default(problem, device)
        assert default is not None
        bench = Bench(device, 0)
        bench.open(problem, None, FLOOR_US)
        bind = bench.bind

        def waiting(config: Config) -> Launch:
            launch = bind(config)

            def run(operands: Tensors, outputs: Tensors) -> None:
                launch(operands, outputs)
                torch.cuda.synchronize()

            return run

        with monkeypatch.context() as patch:
            patch.setattr(bench, "bind", waiting)
            outcome, _ = bench.measure(default, Resources(), {})
        assert isinstance(outcome, Failure)
        assert outcome.kind is FailureKind.INVALID_TIMING
        measured(bench.measure(default, Resources(), {})[0])

    def test_the_fastest_of_a_final_have_their_energy(self, device: Device) -> None:
        if energy_j(device) is None:
            pytest.skip("this device does not count energy")
        kernel = get_kernel("softmax")
        problem = kernel.signature.problem({"batch": 4, "rows": 1024, "cols": 4224, "dtype": "bfloat16"})
        space = Space.of(kernel, problem, device)
        configs = [config for branch in space.branches for config in branch[:2]]
        bench = Bench(device, 0, settings=replace(SETTINGS, finals=replace(SETTINGS.finals, seconds=0.2)))
        bench.open(problem, None, FLOOR_US)
        times = [time for time in bench.final(configs)[0] if isinstance(time, FinalTime)]
        fastest = sorted(times, key=lambda time: time.time_us)[: SETTINGS.timing.energy_leaders]
        assert {time for time in times if time.energy_j is not None} == set(fastest)
        for timed in fastest:
            assert timed.energy_j is not None
            # A call's energy over its time is what the device draws, in watts.
            assert 10 < timed.energy_j / (timed.time_us * 1e-6) < 5000

    def test_the_energy_of_a_call_is_the_same_however_long_it_is_measured(self, device: Device) -> None:
        if energy_j(device) is None:
            pytest.skip("this device does not count energy")
        kernel = get_kernel("softmax")
        problem = kernel.signature.problem({"batch": 4, "rows": 1024, "cols": 4224, "dtype": "bfloat16"})
        default = Space.of(kernel, problem, device).default
        assert default is not None
        found = []
        for energy_s in (1.0, 4.0):
            timing = replace(SETTINGS.timing, energy_s=energy_s)
            finals = replace(SETTINGS.finals, seconds=0.2)
            bench = Bench(device, 0, settings=replace(SETTINGS, timing=timing, finals=finals))
            bench.open(problem, None, FLOOR_US)
            (timed,), _ = bench.final([default])
            assert isinstance(timed, FinalTime)
            assert timed.energy_j is not None
            found.append(timed.energy_j)
        # The counter moves every 20 to 100 ms.
        assert found[0] == pytest.approx(found[1], rel=0.15)

    def test_a_kernel_that_writes_all_of_its_operands_is_verified(self, device: Device) -> None:
        kernel = get_kernel("softmax")
        problem = kernel.signature.problem({"rows": 64, "cols": 64, "dtype": "float32"})
        made = InputSet.make(kernel, problem, InputSource(1, "cuda"), None, slow=False)
        written = replace(made, writes=frozenset(made.operands))
        assert written.changed().device == next(iter(made.operands.values())).device
        assert trespass([written], Outputs(kernel.outputs(problem), torch.device("cuda", 0))) is None


class TestCeilings:
    def test_the_cache_is_faster_than_memory_and_memory_no_faster_than_its_data_sheet(self, device: Device) -> None:
        found = ceilings.measure(torch.device("cuda", 0), ["bfloat16"], device.l2_bytes)
        assert found.cache_bytes_s is not None
        assert found.cache_bytes_s > found.copy_bytes_s
        promised = peaks_of(device).memory_bytes_s
        assert promised is None or found.copy_bytes_s < promised

    @every_problem
    def test_no_honest_time_is_taken_for_unphysical(
        self, name: str, parameters: dict[str, Any], device: Device
    ) -> None:
        kernel = get_kernel(name)
        problem = kernel.signature.problem(parameters)
        peak = kernel.cost(problem).peak
        found = ceilings.measure(torch.device("cuda", 0), {peak, *ceilings.faster_precisions(peak)}, device.l2_bytes)
        space = Space.of(kernel, problem, device)
        bench = Bench(device, 0, settings=replace(SETTINGS, finals=replace(SETTINGS.finals, seconds=0.2)))
        bench.open(problem, None, shortest_us(kernel, problem, found), found)
        configs = [*([space.default] if space.default else []), *space.library]
        outcomes = {config: bench.measure(config, Resources(), {})[0] for config in configs}
        # The fused call of a product that cuBLASLt does not take rounds once more, which may be too often.
        refused = {config for config in outcomes if config.values.get("call") == "addmm_activation"}
        taken = [config for config in configs if config not in refused or not isinstance(outcomes[config], Failure)]
        assert all(isinstance(outcomes[config], Measurement) for config in taken), outcomes
        assert all(each.kind is FailureKind.WRONG_RESULT for each in outcomes.values() if isinstance(each, Failure))
        assert all(isinstance(time, FinalTime) for time in bench.final(taken)[0])


class TestVerifying:
    @pytest.mark.parametrize("count", [1, 9, 10_001, 2**24 + 3])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
    def test_a_hash_is_the_same_as_on_the_cpu(self, count: int, dtype: torch.dtype) -> None:
        x = torch.randint(0, 255, (count,), generator=torch.Generator().manual_seed(1)).to(dtype)
        assert bits_hash(x.cuda()) == bits_hash(x)

    @every_problem
    def test_both_ways_of_judging_agree(self, name: str, parameters: dict[str, Any]) -> None:
        kernel = get_kernel(name)
        problem = kernel.signature.problem(parameters)
        strided = problem.layout == "strided"
        full, sampled = (
            InputSet.make(
                kernel, problem, InputSource(1, "cuda", outliers=True, strided=strided), None, slow=slow
            ).standards["out"]
            for slow in (False, True)
        )
        assert isinstance(full, WholeStandard)
        assert isinstance(sampled, SampledStandard)
        source = InputSource(1, "cuda", outliers=True, strided=strided)
        right = kernel.eager(problem, kernel.operands(problem, source))["out"]
        assert full.judge(right).lossless
        assert sampled.judge(right).lossless
        wrong = right.clone()
        wrong[..., -1, -1] += 1000.0
        place = f"first at {[0, *(n - 1 for n in wrong.shape[1:])]}: "
        assert place in full.judge(wrong).detail
        assert place in sampled.judge(wrong).detail
