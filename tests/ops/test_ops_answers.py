"""Which config a call runs: the published one, the next where it cannot, and what threads, forks and compilers see."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ops_cases import CASES, LIBRARY, Case, accept, every_case, publish, running

import tunedex
from tunedex import ops
from tunedex.core import host
from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.core.signature import DefaultRule, Signature
from tunedex.kernels.base import Launch
from tunedex.kernels.registry import get_kernel


@every_case
def test_the_published_config_is_the_one_that_runs(case: Case, tmp_path: Path) -> None:
    problem = case.problem()
    operands = case.tensors(problem)
    case.run(**operands)
    default = tunedex.default_client("cpu").answer(problem).config
    assert default is not None
    assert running() == [default]
    assert default != LIBRARY[case.kernel]
    publish(tmp_path / "mine.db", case, problem, LIBRARY[case.kernel])
    client = tunedex.connect(tmp_path / "mine.db", device="cpu")
    accept(case, problem, operands, case.run(**operands))
    assert running() == [LIBRARY[case.kernel]]
    publish(tmp_path / "mine.db", case, problem, default)
    client.refresh()
    case.run(**operands)
    assert running() == [default]


@pytest.mark.parametrize(
    "unusable",
    [
        Config("absent"),
        Config("triton", {"block": 64}),
        Config("library", {"call": "nonsense"}),
        Config("numba", {"rows_per_task": -1}),
    ],
    ids=str,
)
def test_a_config_that_cannot_run_gives_way_to_the_next_within_the_call(
    unusable: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES[2]
    problem = case.problem()
    operands = case.tensors(problem)
    publish(tmp_path / "mine.db", case, problem, unusable, LIBRARY[case.kernel])
    tunedex.connect(tmp_path / "mine.db", device="cpu")
    for _ in range(3):
        accept(case, problem, operands, case.run(**operands))
    assert running() == [LIBRARY[case.kernel]]
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert f"does not run with {unusable}" in warned[0]


def older(case: Case) -> tuple[Signature, Config]:
    """The kernel as another version had it, and its default on a CPU, which lacks a tunable of the one installed."""
    signature = get_kernel(case.kernel).signature
    values = dict(default_of(case, case.problem()).values)
    values.popitem()
    lacking = Config("numba", values)
    return replace(signature, version="0" * 12, defaults=(DefaultRule("cpu", lacking.to_dict()),)), lacking


def default_of(case: Case, problem: Problem) -> Config:
    """The default of the kernel as it is installed."""
    config = get_kernel(case.kernel).signature.default(problem, host.cpu())
    assert config is not None
    assert config.implementation == "numba"
    return config


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@every_case
def test_after_an_upgrade_what_was_published_before_gives_way_to_the_installed_default(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signature, lacking = older(case)
    problem, asked = case.problem(), case.problem(batch=3)
    default = default_of(case, problem)
    publish(tmp_path / "mine.db", case, problem, lacking, signature=signature)
    client = tunedex.connect(tmp_path / "mine.db", device="cpu")
    assert client.answer(asked).config == default_of(case, asked)  # not what the database calls so
    assert f"measured with kernel version {'0' * 12}, now " in client.answer(problem).reason
    for each in (problem, problem, asked):
        operands = case.tensors(each)
        accept(case, each, operands, case.run(**operands))
    assert running() == [default, default_of(case, asked)]
    (warned,) = warnings_of(caplog)
    assert f"{case.kernel} has configs that were measured with its version {'0' * 12}" in warned


@every_case
def test_configs_of_another_version_are_mapped_forward_or_passed_over(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature, _ = older(case)
    problem, kernel = case.problem(), get_kernel(case.kernel)
    seen: list[str] = []

    def map_forward(config: Config, version: str) -> Config | None:
        seen.append(version)
        return LIBRARY[case.kernel] if config.implementation == "formerly" else None

    monkeypatch.setattr(kernel, "map_forward", map_forward, raising=False)
    configs = [Config("gone"), Config("formerly")]
    publish(tmp_path / "mine.db", case, problem, *configs, signature=signature)
    tunedex.connect(tmp_path / "mine.db", device="cpu")
    operands = case.tensors(problem)
    accept(case, problem, operands, case.run(**operands))
    assert running() == [LIBRARY[case.kernel]]
    assert set(seen) == {"0" * 12}
    assert len(warnings_of(caplog)) == 1


@every_case
def test_a_miss_is_counted_once_a_kind_of_call_and_none_for_a_gradient(case: Case) -> None:
    assert tunedex.status().misses == 0
    operands = case.tensors(case.problem())
    wanted = {name: tensor.clone().requires_grad_() for name, tensor in operands.items()}
    case.run(**wanted).sum().backward()
    assert running() == [None]
    assert tunedex.status("cpu").misses == 0
    for _ in range(3):
        case.run(**operands)
    assert [tunedex.status(device).misses for device in ("cpu", host.cpu(), host.cpu().key)] == [1] * 3
    with torch.no_grad():
        case.run(**wanted)  # the same kind of call
    assert tunedex.default_client("cpu")._misses == {case.problem(): 1}


class Broken:
    """Binds launches that fail, at once or from the second call on."""

    def __init__(self, bind: Callable[..., Launch], good_calls: int) -> None:
        self.bind, self.left = bind, good_calls

    def __call__(self, problem: Problem, config: Config, device: Device) -> Launch:
        launch = self.bind(problem, config, device)

        def failing(operands: Any, outputs: Any, **options: Any) -> None:
            if self.left <= 0:
                outputs["out"].fill_(float("nan"))
                raise RuntimeError("out of resource: shared memory\nand more")
            self.left -= 1
            launch(operands, outputs, **options)

        return failing


@every_case
@pytest.mark.parametrize("good_calls", [0, 2])
def test_a_launch_that_fails_gives_way_to_the_next_and_is_not_tried_again(
    case: Case, good_calls: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = case.problem()
    operands = case.tensors(problem)
    library = get_kernel(case.kernel).implementation("library")
    monkeypatch.setattr(library, "bind", Broken(library.bind, good_calls), raising=False)
    publish(tmp_path / "mine.db", case, problem, LIBRARY[case.kernel])
    tunedex.connect(tmp_path / "mine.db", device="cpu")
    for _ in range(5):
        accept(case, problem, operands, case.run(**operands))
    (config,) = running()
    assert config is not None
    assert config.implementation == "numba"
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert warned[0].endswith("RuntimeError: out of resource: shared memory")


@every_case
def test_where_no_config_runs_the_unfused_chain_does(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = get_kernel(case.kernel)
    for name in ("numba", "library"):
        implementation = kernel.implementation(name)
        monkeypatch.setattr(implementation, "bind", Broken(implementation.bind, 0), raising=False)
    problem = case.problem()
    operands = case.tensors(problem)
    for _ in range(2):
        accept(case, problem, operands, case.run(**operands))
    assert running() == [None]


@every_case
def test_while_a_graph_is_captured_nothing_is_bound_which_is_said_once(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = case.problem()
    operands = case.tensors(problem)
    with monkeypatch.context() as patch:
        patch.setattr(ops, "_capturing", lambda tensor: True)
        for _ in range(2):
            accept(case, problem, operands, case.run(**operands))
        assert running() == [None]
        (warned,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert case.kernel in warned
        assert "call it once before the capture" in warned
    caplog.clear()
    accept(case, problem, operands, case.run(**operands))
    (bound,) = running()
    assert bound is not None
    monkeypatch.setattr(ops, "_capturing", lambda tensor: True)
    accept(case, problem, operands, case.run(**operands))
    assert running() == [bound]
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_memory_that_runs_out_is_the_callers_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = get_kernel("softmax").implementation("numba")

    def bind(*_: object) -> Launch:
        def launch(operands: Any, outputs: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        return launch

    with monkeypatch.context() as patch:
        patch.setattr(numba, "bind", bind, raising=False)
        with pytest.raises(torch.OutOfMemoryError):
            ops.softmax(torch.zeros(3, 40))
    x = torch.zeros(3, 40)
    torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))
    assert [config.implementation for config in running() if config] == ["numba"]


def test_threads_share_plans() -> None:
    x = torch.randn(64, 512)
    expected = torch.softmax(x, -1)
    results: list[torch.Tensor] = []
    start = threading.Barrier(6)

    def work() -> None:
        start.wait()
        results.extend(ops.softmax(x) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 120
    for result in results:
        torch.testing.assert_close(result, expected)


FORK = """
import os, torch
from tunedex import ops
x = torch.randn(6, 40)
ops.softmax(x)
assert [plan.config.implementation for plan in ops._plans.values()] == ["numba"]
child = os.fork()
if child == 0:
    good = torch.allclose(ops.softmax(x), torch.softmax(x, -1), atol=1e-6)
    os._exit(0 if good else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.allclose(ops.softmax(x), torch.softmax(x, -1), atol=1e-6)
"""


def test_a_child_of_a_process_that_ran_kernels_runs_them_too() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


SILENT_FORK = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # torch has threads
import torch
from tunedex import ops
ops.softmax(torch.zeros(4, 40))
ops.linear_gelu(torch.zeros(4, 40), torch.zeros(33, 40), torch.zeros(33))
sys.stderr.flush()
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_fork_says_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", SILENT_FORK], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\ntry:\n    {}\nexcept ImportError as error:\n    print(error)"


@pytest.mark.parametrize("line", ["from tunedex import ops", "import tunedex.ops", "import tunedex; tunedex.ops"])
def test_without_torch_the_extra_is_named(line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH.format(line)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "tunedex.ops needs torch, which is not installed; pip install 'tunedex[tuner]'\n"


def test_plans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_MOST_PLANS", 3)
    for rows in range(1, 12):
        ops.softmax(torch.zeros(rows, 4))
    assert len(ops._plans) <= 3


@every_case
def test_inside_torch_compile_a_call_is_one_operator(case: Case) -> None:
    compiled = torch.compile(lambda operands: case.run(**operands) * 2, backend="aot_eager", fullgraph=True)
    for batch in (2, 3):
        problem = case.problem(batch=batch)
        operands = case.tensors(problem)
        accept(case, problem, operands, compiled(operands) / 2)
    assert len(ops._plans) == 2
    torch._dynamo.reset()


@every_case
def test_inside_torch_compile_gradients_and_out_still_work(case: Case) -> None:
    compiled = torch.compile(lambda operands, out: case.run(**operands, out=out), backend="aot_eager")
    operands = case.tensors(case.problem())
    out = torch.empty_like(case.run(**operands))
    assert compiled(operands, out) is out
    accept(case, case.problem(), operands, out)
    wanted = {name: t.clone().requires_grad_() for name, t in operands.items()}
    compiled(wanted, None).sum().backward()
    assert all(t.grad is not None for t in wanted.values())
    torch._dynamo.reset()
