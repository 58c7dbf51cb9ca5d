"""Problems as the command line writes them: read right, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tunedex.cli.app import run
from tunedex.core.device import GIB, Device
from tunedex.core.errors import BadInput, CannotRun, UnknownKernel
from tunedex.core.host import cpu
from tunedex.kernels.base import Kernel
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.tasks import parse_task, preset_named, tasks_for

GOOD = "softmax:batch=2,rows=1024,cols=4096,dtype=fp32"


def test_a_problem_is_read() -> None:
    task = parse_task(GOOD, cpu())
    assert [dict(p.dims) for p in task.problems] == [{"batch": 2, "rows": 1024, "cols": 4096}]
    assert str(task) == "softmax:batch=2,rows=1024,cols=4096,dtype=float32"
    assert parse_task(str(task), cpu()) == task


def test_batch_auto_is_one_task_of_several_problems() -> None:
    task = parse_task("softmax:batch=auto,rows=16,cols=16,dtype=float32", cpu())
    assert tuple(p.batch for p in task.problems) == SETTINGS.batches


def test_an_error_bound_belongs_to_the_task() -> None:
    assert parse_task("linear_gelu:m=8,n=8,k=8,dtype=float32,max_error=1e-3", cpu()).max_error == 1e-3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("softmax", "is not KERNEL:name=value"),
        ("softmax:", "is not KERNEL:name=value"),
        ("softmax:rows", "is not name=value"),
        ("softmax:rows=4,rows=5,cols=4,dtype=float32", "rows is given twice"),
        ("softmax:rows=4,dtype=float32", "softmax needs cols"),
        ("softmax:rows=4,cols=0,dtype=float32", "cols=0: nothing to compute"),
        ("softmax:rows=4,cols=-3,dtype=float32", "cols=-3 is negative"),
        ("softmax:rows=4,cols=four,dtype=float32", "cols=four is not a whole number"),
        ("softmax:rows=4,cols=1.5,dtype=float32", "cols=1.5 is not a whole number"),
        ("softmax:rows=4,cols=9223372036854775808,dtype=float32", "over 2^63 - 1"),
        ("softmax:rows=4,cols=4,dtype=float33", "dtype 'float33' is unknown"),
        ("softmax:rows=4,cols=4,depth=4,dtype=float32", "has no parameter 'depth'"),
        ("softmax:rows=4,cols=4", "needs dtype"),
        ("layernorm_gelu_residual:rows=4,cols=4,gelu=sigmoid,dtype=float32", "gelu=sigmoid is not a choice"),
        ("softmax:rows=4,cols=4,dtype=float32,objective=error", "a sweep takes no limit but max_error"),
        ("linear_gelu:m=4,n=4,k=4,dtype=float32,max_error=-1", "max_error=-1 is not a number above 0"),
        ("linear_gelu:m=4,n=4,k=4,dtype=float32,max_error=nan", "max_error=nan is not a number above 0"),
    ],
)
def test_a_bad_problem_is_one_line(text: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_task(text, cpu())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_kernel_or_preset_names_those_there_are() -> None:
    with pytest.raises(UnknownKernel, match="known are layernorm_gelu_residual, softmax, linear_gelu"):
        parse_task("sofmax:rows=4,cols=4,dtype=float32", cpu())
    with pytest.raises(BadInput, match="known are quick"):
        preset_named("quickest")


def test_the_quick_preset_has_a_problem_of_every_kernel() -> None:
    tasks = tasks_for(cpu(), [], [])
    assert [task.kernel.name for task in tasks] == ["layernorm_gelu_residual", "softmax", "linear_gelu"]
    assert all(not problem.empty for task in tasks for problem in task.problems)


def test_kernels_choose_among_the_preset_s_problems() -> None:
    assert [task.kernel.name for task in tasks_for(cpu(), ["softmax"], [])] == ["softmax"]
    assert [str(t) for t in tasks_for(cpu(), ["softmax"], [GOOD])] == [GOOD.replace("fp32", "float32")]
    with pytest.raises(BadInput, match="of none of the kernels that --kernels allows: softmax"):
        tasks_for(cpu(), ["softmax"], [GOOD, "linear_gelu:m=8,n=8,k=8,dtype=float32"])


def _ends() -> list[dict[str, int]]:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("quick", "words"),
    [
        (_ends, "SystemExit: 3"),
        (lambda: [{"rows": 0, "cols": 4, "dtype": "float32"}], "BadInput: rows=0: nothing to compute"),
        (lambda: ["rows=4"], "AttributeError"),
        (lambda: None, "TypeError"),
    ],
)
def test_a_kernel_that_names_no_preset_problems_is_left_out(
    planted: Kernel, steps: Kernel, monkeypatch: pytest.MonkeyPatch, quick: Callable[[], Any], words: str
) -> None:
    monkeypatch.setattr(planted, "quick", lambda device: quick())
    monkeypatch.setattr(steps, "quick", lambda device: [{"rows": 4, "cols": 4, "dtype": "float32"}])
    told: list[str] = []
    tasks = tasks_for(cpu(), ["planted", "steps"], [], tell=told.append)
    assert [task.kernel.name for task in tasks] == ["steps"]
    (line,) = told
    assert line.startswith("left out: kernel planted names no problems of the quick preset: ")
    assert words in line
    with pytest.raises(CannotRun, match="kernel planted names no problems"):
        tasks_for(cpu(), ["planted"], [])


def test_a_sweep_without_a_kernel_is_done_in_part(
    planted: Kernel, steps: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planted, "quick", lambda device: _ends())
    monkeypatch.setattr(steps, "quick", lambda device: [{"rows": 4, "cols": 64, "dtype": "float32"}])
    command = ["sweep", "--device", "cpu", "--kernels", "planted,steps", "--trials", "1", "--json"]
    assert run([*command, "--db", str(tmp_path / "tunedex.db")]) == 1
    printed = capsys.readouterr()
    assert "left out: kernel planted names no problems of the quick preset: SystemExit: 3\n" in printed.err
    assert [result["kernel"] for result in json.loads(printed.out)["results"]] == ["steps"]


HUGE = "softmax:rows=4,cols=99999999999999999,dtype=float32"


@pytest.mark.parametrize(
    "problem", [HUGE, HUGE + ",batch=auto", "linear_gelu:m=4,n=999999999,k=999999999,dtype=float32"]
)
def test_a_problem_that_no_memory_holds_is_refused(problem: str) -> None:
    with pytest.raises(BadInput, match=r"needs [0-9.]+ [PE]iB for operands and outputs, this device has [0-9.]+ GiB"):
        tasks_for(cpu(), [], [GOOD, problem])


def test_of_a_file_what_fits_is_tuned(caplog: pytest.LogCaptureFixture) -> None:
    device = Device("cuda", "small", 4, 8 * GIB, (8, 0))
    small, large = (parse_task(GOOD.replace("1024", rows), device).problems[0] for rows in ("1024", "1024000"))
    assert [task.problems for task in tasks_for(device, [], [], [large, small])] == [(small,)]
    (message,) = caplog.messages
    assert message.startswith("left out: problem 'softmax:batch=2,rows=1024000,cols=4096,dtype=float32' needs 62.5 GiB")
    with pytest.raises(BadInput, match="this device has 8 GiB"):
        tasks_for(device, [], [], [large])


def test_a_device_whose_memory_is_not_known_takes_every_problem() -> None:
    assert tasks_for(Device.from_key("cpu-some_model-8c-avx2"), [], [HUGE])
