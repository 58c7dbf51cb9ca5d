"""The bench with time of our own making: what is invalid, what order does, what is written, how energy is told."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.host import cpu
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy, Resources
from tunedex.core.problem import Problem
from tunedex.core.signature import BATCH, Dimension, Operand, Signature
from tunedex.db.records import Ceilings
from tunedex.kernels.base import (
    Cost,
    Implementation,
    InputSource,
    Kernel,
    Launch,
    OutputSpec,
    Reference,
    Tensors,
    Tunable,
)
from tunedex.kernels.registry import get_kernel
from tunedex.tuner import bench as bench_module
from tunedex.tuner import load
from tunedex.tuner.bench import Bench, Busy, FinalTime
from tunedex.tuner.failures import SpoiltProblem, failure_of, spoils_process
from tunedex.tuner.nvml import Sample
from tunedex.tuner.sampling import Stopwatch
from tunedex.tuner.sets import TensorSet
from tunedex.tuner.settings import SETTINGS, Settings
from tunedex.tuner.timing import CaptureError, Repeater, Timer

ROWS, COLS = 37, 61

#: Times by config: three that cannot be, and four of which the first is the fastest.
IMPOSSIBLE_US = {"a": -20.0, "b": 0.0, "c": 1e-6, "d": 800.0}
NEAR_US = {"b": 20_000.0, "a": 20_600.0, "c": 22_000.0, "d": 25_000.0}

#: Finals without a wait between them, and nothing that depends on how fast this machine is.
QUICK = replace(
    SETTINGS, timing=replace(SETTINGS.timing, idle_s=math.inf), finals=replace(SETTINGS.finals, seconds=0.0)
)


class Doubling(Implementation):
    """Configs are right, or go wrong in the way that they are named after."""

    name = "numba"
    kinds = frozenset({"cpu"})

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return (Tunable("name", ("a", "b", "c", "d", "scaled", "shifted"), "which config"),)

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        name = str(config.values["name"])

        def launch(operands: Tensors, outputs: Tensors) -> None:
            torch.mul(operands["x"], 2, out=outputs["out"])
            if name == "scaled":
                operands["x"].mul_(0.5)
            if name == "shifted":
                operands["x"].add_(1)

        launch.config = name  # type: ignore[attr-defined] - read by the timer
        return launch


class DoublingKernel(Kernel):
    signature = Signature(
        kernel="doubling",
        version="000000000001",
        formula="out = 2 x",
        dimensions=(BATCH, Dimension("rows"), Dimension("cols")),
        operands=(Operand("x", ("float32",)),),
    )
    implementations = (Doubling(),)

    def cost(self, problem: Problem) -> Cost:
        count = math.prod(problem.dims.values())
        return Cost(flops=count, bytes=8 * count)

    def reduction_length(self, problem: Problem) -> int:
        return 1

    def operands(self, problem: Problem, source: InputSource) -> dict[str, torch.Tensor]:
        return {"x": source.normal(tuple(problem.dims.values()), "float32")}

    def outputs(self, problem: Problem) -> dict[str, OutputSpec]:
        return {"out": OutputSpec(tuple(problem.dims.values()), "float32")}

    def reference(self, problem: Problem, operands: Tensors, dtype: torch.dtype | None = None) -> dict[str, Reference]:
        value = operands["x"].to(dtype or torch.float64) * 2
        return {"out": Reference(value, value.abs())}

    def eager(self, problem: Problem, operands: Tensors) -> dict[str, torch.Tensor]:
        return {"out": operands["x"] * 2}

    def problem_of(self, operands: Tensors, attributes: Mapping[str, str]) -> Problem:
        raise NotImplementedError


class HalvingInPlace(DoublingKernel):
    """out = 2 x, and x is halved: x is written by every launch, and is a result."""

    writes = frozenset({"x"})

    def reference(self, problem: Problem, operands: Tensors, dtype: torch.dtype | None = None) -> dict[str, Reference]:
        doubled = super().reference(problem, operands, dtype)
        value = operands["x"].to(dtype or torch.float64) / 2
        return {**doubled, "x": Reference(value, value.abs())}

    def eager(self, problem: Problem, operands: Tensors) -> dict[str, torch.Tensor]:
        doubled = operands["x"] * 2
        return {"out": doubled, "x": operands["x"].mul_(0.5)}


class FakeTimer(Timer):
    """Tells times of its own, by the name of the config; each launch is run as often as a real timer would.

    ``time_us`` gets the config's name and the milliseconds for which the device has been busy.
    """

    def __init__(self, time_us: Callable[[str, float], float], sets: int = 1) -> None:
        self.time_us = time_us
        self.sets = sets
        self.busy_ms = 0.0
        self.samples: list[str] = []
        self.repeated: list[str] = []
        self.energy_j = 0.0

    def policy(self, floor_us: float) -> Policy:
        return Policy.GRAPH_COLD

    def sets_needed(self, policy: Policy, set_bytes: int) -> int:
        return self.sets

    def stopwatch(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Stopwatch:
        name = launch.config  # type: ignore[attr-defined]
        for each in sets:
            launch(each.operands, each.outputs)

        def sample() -> float:
            launch(sets[0].operands, sets[0].outputs)
            self.samples.append(name)
            time_us = self.time_us(name, self.busy_ms)
            self.busy_ms += max(0.0, time_us) / 1e3
            return time_us

        return sample

    def repeater(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Repeater:
        self.repeated.append(launch.config)  # type: ignore[attr-defined]
        self.energy_j += 50.0  # of what leads up to the calls

        def repeat(seconds: float) -> int:
            self.energy_j += 3.0 if len(self.repeated) == 1 else 4.0
            return 1000

        return repeat

    def warm_up(self, seconds: float) -> None:
        self.busy_ms += seconds * 1e3


def after(output: torch.Tensor) -> torch.Tensor:
    """The element behind ``output``."""
    return output.as_strided((1,), (1,), output.storage_offset() + output.numel())


def config(name: str) -> Config:
    return Config("numba", {"name": name})


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return use(monkeypatch, DoublingKernel())


def use(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> Kernel:
    monkeypatch.setattr(bench_module, "get_kernel", lambda name: kernel)
    return kernel


def opened(kernel: Kernel, timer: FakeTimer, settings: Settings = QUICK, floor_us: float = 1.0, **more: Any) -> Bench:
    bench = Bench(cpu(), None, timer=timer, settings=settings)
    problem = kernel.signature.problem({"rows": ROWS, "cols": COLS, "dtype": "float32"})
    bench.open(problem, None, floor_us, **more)
    return bench


def measured(bench: Bench, name: str, best: Mapping[bool, float] | None = None) -> Measurement | Failure:
    return bench.measure(config(name), Resources(), best or {})[0]


class TestTimesThatCannotBe:
    def test_they_are_failures_and_the_slow_truth_wins(self, kernel: Kernel) -> None:
        timer = FakeTimer(lambda name, busy_ms: IMPOSSIBLE_US[name])
        bench = opened(kernel, timer)
        outcomes = {name: measured(bench, name) for name in IMPOSSIBLE_US}
        kinds = {name: outcome.kind for name, outcome in outcomes.items() if isinstance(outcome, Failure)}
        assert kinds == dict.fromkeys("abc", FailureKind.INVALID_TIMING)
        assert isinstance(outcomes["d"], Measurement)
        assert outcomes["d"].time_us == 800.0
        times, _ = bench.final([config(name) for name in IMPOSSIBLE_US])
        assert [isinstance(time, FinalTime) for time in times] == [False, False, False, True]
        assert all(time.kind is FailureKind.INVALID_TIMING for time in times if isinstance(time, Failure))

    @pytest.mark.parametrize("bad", [-20.0, 0.0, 1e-6, math.nan, math.inf])
    def test_they_are_taken_once_more_before_they_are_believed(self, kernel: Kernel, bad: float) -> None:
        again = QUICK.timing.max_samples if math.isnan(bad) else QUICK.timing.min_samples
        timer = FakeTimer(lambda name, busy_ms: bad if len(timer.samples) <= again else 800.0)
        outcome = measured(opened(kernel, timer), "d")
        assert isinstance(outcome, Measurement)
        assert outcome.time_us == 800.0

    def test_a_final_is_timed_once_more_as_a_whole(self, kernel: Kernel) -> None:
        rounds = QUICK.finals.min_rounds
        timer = FakeTimer(lambda name, busy_ms: -1.0 if len(timer.samples) <= 2 * rounds and name == "a" else 800.0)
        times, _ = opened(kernel, timer).final([config("a"), config("b")])
        assert all(isinstance(time, FinalTime) and time.time_us == 800.0 for time in times)

    def test_the_least_is_that_of_the_ceilings_where_they_are_known(self, kernel: Kernel) -> None:
        bytes_ = 8 * ROWS * COLS
        ceilings = Ceilings(copy_bytes_s=bytes_ / 100e-6)
        least_us = QUICK.timing.physical_share * 100.0
        for time_us, right in ((least_us * 1.01, True), (least_us * 0.99, False)):
            bench = opened(kernel, FakeTimer(lambda name, busy_ms, t=time_us: t), measured=ceilings)  # type: ignore[misc]
            assert isinstance(measured(bench, "a"), Measurement) is right


class TestOrder:
    def winner(self, kernel: Kernel, names: Sequence[str], settings: Settings) -> str:
        def slow_at_first(name: str, busy_ms: float) -> float:
            return NEAR_US[name] * (1.3 if busy_ms < 100 else 1.0)

        bench = opened(kernel, FakeTimer(slow_at_first), settings)
        times: dict[str, float] = {}
        for name in names:
            outcome = measured(bench, name, {True: min(times.values())} if times else None)
            assert isinstance(outcome, Measurement)
            times[name] = outcome.time_us
        return min(times, key=lambda name: times[name])

    def orders(self) -> list[list[str]]:
        names = list(NEAR_US)
        shuffled = random.Random(4).sample(names, len(names))
        assert shuffled not in (names, names[::-1])
        return [names, names[::-1], shuffled]

    def test_it_does_not_change_the_winner(self, kernel: Kernel) -> None:
        assert {self.winner(kernel, names, QUICK) for names in self.orders()} == {"b"}

    def test_it_would_without_the_warm_up(self, kernel: Kernel) -> None:
        # And without the samples that a time which changes under way asks for.
        few = QUICK.timing.min_samples
        cold = replace(QUICK, timing=replace(QUICK.timing, warm_up_s=0.0, max_samples=few))
        assert {self.winner(kernel, names, cold) for names in self.orders()} == {"a", "b"}

    def test_a_device_that_was_idle_is_warmed_up_again(self, kernel: Kernel) -> None:
        idle = replace(QUICK, timing=replace(QUICK.timing, idle_s=-1.0))
        timer = FakeTimer(lambda name, busy_ms: 100.0)
        bench = opened(kernel, timer, idle)
        before = timer.busy_ms
        measured(bench, "a")
        samples = len(timer.samples)
        assert timer.busy_ms == pytest.approx(before + idle.timing.rewarm_s * 1e3 + samples * 0.1)


class TestWhatIsWritten:
    def test_an_operand_is_only_written_where_the_kernel_says_so(self, kernel: Kernel) -> None:
        bench = opened(kernel, FakeTimer(lambda name, busy_ms: 100.0))
        problem = bench.opened.problem
        for name in ("scaled", "shifted"):
            assert measured(bench, name) == SpoiltProblem(FailureKind.WRONG_RESULT, "operand x was changed")
            with pytest.raises(RuntimeError, match="no problem is open"):
                measured(bench, "a")  # which what they overwrote would be held against
            bench.open(problem, None, 1.0)
        assert isinstance(measured(bench, "a"), Measurement)

    @pytest.mark.parametrize(
        ("spoils", "words"),
        [
            (lambda set_: set_.operands["x"].add_(1), "operand x was changed"),
            (lambda set_: after(set_.outputs["out"]).fill_(0), "out: memory beside the output was written"),
        ],
        ids=["operand", "beside"],
    )
    def test_what_is_written_only_while_it_is_timed_is_seen_as_well(
        self, kernel: Kernel, spoils: Callable[[TensorSet], object], words: str
    ) -> None:
        class Racy(FakeTimer):
            def stopwatch(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Stopwatch:
                spoils(sets[0])
                return super().stopwatch(launch, sets, policy)

        bench = opened(kernel, Racy(lambda name, busy_ms: 100.0))
        assert measured(bench, "a") == SpoiltProblem(FailureKind.WRONG_RESULT, words)

    def test_declared_writes_are_judged_and_undone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel = use(monkeypatch, HalvingInPlace())
        bench = opened(kernel, FakeTimer(lambda name, busy_ms: 100.0, sets=3))
        before = [{name: t.clone() for name, t in made.operands.items()} for made in bench.opened.inputs]
        outcomes = {name: measured(bench, name) for name in ("scaled", "shifted", "a", "scaled")}
        assert isinstance(outcomes["scaled"], Measurement)
        assert outcomes["scaled"].lossless
        for name in ("shifted", "a"):
            refused = outcomes[name]
            assert isinstance(refused, Failure)
            assert refused.detail.startswith("x, normal inputs: ")
        (time,), _ = bench.final([config("scaled")])
        assert isinstance(time, FinalTime)
        for made, values in zip(bench.opened.inputs, before, strict=True):
            assert torch.equal(made.operands["x"], values["x"])

    def test_both_input_sets_are_timed_in_turn(self, kernel: Kernel) -> None:
        seen: list[int] = []

        class Looking(FakeTimer):
            def stopwatch(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Stopwatch:
                seen.extend(each.operands["x"].data_ptr() for each in sets)
                values.extend(each.operands["x"].clone() for each in sets)
                return super().stopwatch(launch, sets, policy)

        values: list[torch.Tensor] = []
        bench = opened(kernel, Looking(lambda name, busy_ms: 100.0, sets=4))
        assert isinstance(measured(bench, "a"), Measurement)
        normal, outliers = (made.operands["x"] for made in bench.opened.inputs)
        assert [torch.equal(value, normal) for value in values] == [True, False, True, False]
        assert [torch.equal(value, outliers) for value in values] == [False, True, False, True]
        assert len(set(seen)) == 4


class TestEnergy:
    def test_it_is_of_one_call_and_of_the_fastest_alone(self, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
        timer = FakeTimer(lambda name, busy_ms: {"a": 120.0, "b": 100.0, "c": 110.0}[name])
        monkeypatch.setattr(bench_module, "energy_j", lambda device: timer.energy_j)
        times, _ = opened(kernel, timer).final([config(name) for name in "abc"])
        assert timer.repeated == ["b", "c"]
        assert [time.energy_j for time in times if isinstance(time, FinalTime)] == [None, 0.003, 0.004]

    def test_nothing_runs_for_it_where_nobody_counts(self, kernel: Kernel) -> None:
        timer = FakeTimer(lambda name, busy_ms: 100.0)
        times, _ = opened(kernel, timer).final([config("a")])
        assert timer.repeated == []
        assert [time.energy_j for time in times if isinstance(time, FinalTime)] == [None]

    def test_what_fails_for_it_alone_keeps_its_time(self, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
        class NoRepeat(FakeTimer):
            def repeater(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Repeater:
                raise CaptureError("it cannot be captured in a CUDA graph: RuntimeError: operation not permitted")

        monkeypatch.setattr(bench_module, "energy_j", lambda device: 5.0)
        times, _ = opened(kernel, NoRepeat(lambda name, busy_ms: 100.0)).final([config("a")])
        assert [(time.time_us, time.energy_j) for time in times if isinstance(time, FinalTime)] == [(100.0, None)]

    def test_what_breaks_the_process_says_so(self, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
        class Breaks(FakeTimer):
            def repeater(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Repeater:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(bench_module, "energy_j", lambda device: 5.0)
        times, _ = opened(kernel, Breaks(lambda name, busy_ms: 100.0)).final([config("a")])
        assert [time.kind for time in times if isinstance(time, Failure)] == [FailureKind.ILLEGAL_ACCESS]

    def test_a_counter_that_stands_still_tells_nothing(self, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bench_module, "energy_j", lambda device: 5.0)
        times, _ = opened(kernel, FakeTimer(lambda name, busy_ms: 100.0)).final([config("a")])
        assert [time.energy_j for time in times if isinstance(time, FinalTime)] == [None]


def test_a_warm_time_that_cannot_be_leaves_the_deciding_one(kernel: Kernel) -> None:
    class WarmIsWrong(FakeTimer):
        def stopwatch(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Stopwatch:
            taken = super().stopwatch(launch, sets, policy)
            return taken if policy.cold else lambda: 0.0

    times, _ = opened(kernel, WarmIsWrong(lambda name, busy_ms: 100.0)).final([config("a")])
    assert [(time.time_us, time.warm_us) for time in times if isinstance(time, FinalTime)] == [(100.0, None)]


@pytest.mark.parametrize("busy", [True, False])
def test_the_first_final_of_a_process_knows_whether_it_was_disturbed(
    kernel: Kernel, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look at a CPU tells nothing; it is taken when the problem is opened."""
    looks = itertools.chain([None], itertools.repeat(busy))
    monkeypatch.setattr(load, "_look_at", lambda *arguments: lambda: next(looks))
    monkeypatch.setattr(load, "_watches", {})
    bench = Bench(cpu(), None, settings=replace(SETTINGS, finals=replace(SETTINGS.finals, seconds=0.0)))
    bench.open(kernel.signature.problem({"rows": 4, "cols": 8, "dtype": "float32"}), None, 0.0)
    _, states = bench.final([config("a")])
    assert len(states) == SETTINGS.finals.min_rounds
    assert {state.contended for state in states} == {busy}


def test_a_failure_s_state_is_told_as_well(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = opened(kernel, FakeTimer(lambda name, busy_ms: 100.0))
    monkeypatch.setattr(bench_module, "sample", lambda device: Sample(contended=True))
    monkeypatch.setattr(bench, "bind", fails)
    outcome, state = bench.measure(config("a"), Resources(), {})
    assert outcome == Failure(FailureKind.OOM, "MemoryError: planted")
    assert state.contended is True


def fails(config: Config) -> Launch:
    raise MemoryError("planted")


def test_a_problem_s_policy_is_that_of_its_trials_so_far(kernel: Kernel) -> None:
    bench = opened(kernel, FakeTimer(lambda name, busy_ms: 100.0))
    assert bench.opened.policy is Policy.GRAPH_COLD
    bench.open(bench.opened.problem, None, 0.0, policy=Policy.EAGER_COLD)
    found = measured(bench, "a")
    assert isinstance(found, Measurement)
    assert found.policy is Policy.EAGER_COLD


def test_what_cannot_be_captured_is_that_configs_failure(kernel: Kernel) -> None:
    class NoGraph(FakeTimer):
        def stopwatch(self, launch: Launch, sets: Sequence[TensorSet], policy: Policy) -> Stopwatch:
            if launch.config == "a":  # type: ignore[attr-defined]
                raise CaptureError("it cannot be captured in a CUDA graph: RuntimeError: operation not permitted")
            return super().stopwatch(launch, sets, policy)

    bench = opened(kernel, NoGraph(lambda name, busy_ms: 100.0))
    refused = measured(bench, "a")
    assert isinstance(refused, Failure)
    assert refused.kind is FailureKind.INVALID_TIMING
    assert "cannot be captured" in refused.detail
    assert spoils_process(refused)
    assert isinstance(measured(bench, "b"), Measurement)
    times, _ = bench.final([config("a"), config("b")])
    assert isinstance(times[0], Failure)
    assert isinstance(times[1], FinalTime)


def test_what_a_process_spends_its_time_on_is_added_up(kernel: Kernel) -> None:
    bench = opened(kernel, FakeTimer(lambda name, busy_ms: 100.0))
    assert bench.busy() == Busy()
    measured(bench, "a")
    once = bench.busy()
    assert once.verify_s > 0
    assert once.timing_s > 0
    assert once.first_call_s > 0
    bench.final([config("a")])
    assert bench.busy().verify_s == once.verify_s
    assert bench.busy().timing_s > once.timing_s


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError("x"), FailureKind.OOM),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), FailureKind.ILLEGAL_ACCESS),
        (RuntimeError("CUDA error: out of memory"), FailureKind.OOM),
        (RuntimeError("CUDA error: the launch timed out and was terminated"), FailureKind.TIMEOUT),
        (RuntimeError("CUDA_ERROR_LAUNCH_TIMEOUT"), FailureKind.TIMEOUT),
        (RuntimeError("too many resources requested for launch"), FailureKind.OUT_OF_RESOURCES),
        (CaptureError("it waits"), FailureKind.INVALID_TIMING),
        (ValueError("anything\nelse"), FailureKind.CRASH),
    ],
)
def test_an_exception_is_a_failure_of_its_kind_in_one_line(error: Exception, kind: FailureKind) -> None:
    failure = failure_of(error)
    assert failure.kind is kind
    assert failure.detail.startswith(f"{type(error).__name__}: ")
    assert "\n" not in failure.detail


@pytest.mark.parametrize(
    "parameters",
    [
        {"rows": 37, "cols": 61, "dtype": "float32"},
        {"batch": 3, "rows": 19, "cols": 33, "dtype": "bfloat16", "layout": "strided"},
    ],
    ids=str,
)
def test_ragged_and_strided_problems_go_the_same_way(parameters: dict[str, Any]) -> None:
    kernel = get_kernel("softmax")
    bench = Bench(cpu(), None, settings=QUICK)
    bench.open(kernel.signature.problem(parameters), None, 0.01)
    outcome, _ = bench.measure(Config("library", {"call": "eager"}), Resources(), {})
    assert isinstance(outcome, Measurement)
    assert outcome.lossless
