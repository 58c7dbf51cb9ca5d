"""A kernel's cost is its own code: what is none is its problem's fault, and ends nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import Simulation, task_of

from tunedex.core.host import cpu
from tunedex.db import open_store
from tunedex.kernels.base import Cost, Kernel
from tunedex.tuner.costs import cost_of, named_peaks
from tunedex.tuner.faults import NotOpened
from tunedex.tuner.report import Effort
from tunedex.tuner.tasks import tasks_for


def _raises() -> Cost:
    raise SystemExit(3)


#: What a kernel may give for its cost, and what is said of it.
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (_raises, "SystemExit: 3"),
    "none": (lambda: None, "a NoneType is no Cost"),
    "text": (lambda: "12 GFLOP", "a str is no Cost"),
    "texts": (lambda: Cost("1", "2"), "flops '1' is not a finite number from 0"),  # type: ignore[arg-type]
    "nan": (lambda: Cost(1.0, float("nan")), "bytes nan is not a finite number from 0"),
    "infinite": (lambda: Cost(float("inf"), 1.0), "flops inf is not a finite number from 0"),
    "negative": (lambda: Cost(1.0, -8), "bytes -8 is not a finite number from 0"),
    "huge": (lambda: Cost(10**400, 1), "OverflowError"),
    "peak": (lambda: Cost(1.0, 8.0, "bf16"), "peak 'bf16' is unknown; known are bfloat16, float16"),
    "no_peak": (lambda: Cost(1.0, 8.0, None), "peak None is no text"),  # type: ignore[arg-type]
}


@pytest.fixture(params=WRONG.values(), ids=WRONG.keys())
def wrong(request: pytest.FixtureRequest, planted: Kernel, monkeypatch: pytest.MonkeyPatch) -> tuple[Kernel, str]:
    """The kernel ``planted`` with a cost that is none, and what is to be said of it. ``steps`` keeps its own."""
    give, words = request.param
    monkeypatch.setattr(planted, "cost", lambda problem: give())
    return planted, words


def test_a_cost_is_numbers(planted: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = task_of(planted).problems[0]
    monkeypatch.setattr(planted, "cost", lambda problem: Cost(np.int64(3), np.float32(0), "tf32"))  # type: ignore[arg-type]
    assert cost_of(planted, problem) == Cost(3.0, 0.0, "tf32")
    assert named_peaks([(planted, problem)]) == {"tf32"}


def test_what_is_no_cost_is_said(wrong: tuple[Kernel, str]) -> None:
    kernel, words = wrong
    problem = task_of(kernel).problems[0]
    with pytest.raises(NotOpened, match="has no cost") as caught:
        cost_of(kernel, problem)
    assert words in str(caught.value)
    assert named_peaks([(kernel, problem)]) == set()


@pytest.mark.parametrize("batch", ["1", "auto"])
def test_a_problem_without_a_cost_is_planned_and_fails_alone(
    wrong: tuple[Kernel, str], steps: Kernel, tmp_path: Path, batch: str
) -> None:
    _, words = wrong
    text = f"planted:batch={batch},rows=8,cols=64,dtype=float32"
    tasks = tasks_for(cpu(), [], [text, "steps:rows=8,cols=64,dtype=float32"])
    with open_store(str(tmp_path / "tunedex.db")) as store:
        report = Simulation(lambda config: 100.0).sweep(store, tasks, Effort(2, None))
    *faulty, right = report.results
    assert len(faulty) == len(tasks[0].problems)
    assert all(result.best is None and words in result.fault for result in faulty)
    assert right.best is not None
