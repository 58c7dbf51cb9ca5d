"""The measuring process and the one that takes its place: real children, which say who they are."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tunedex.core.config import Config
from tunedex.core.errors import BadInput
from tunedex.core.measurement import Failure, FailureKind, Resources
from tunedex.core.problem import Problem
from tunedex.db.records import Ceilings
from tunedex.tuner.faults import NotOpened
from tunedex.tuner.process import ChildProcess
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.spent import Ledger
from tunedex.tuner.worker import DeviceLost, Stopped, Worker

START_S = 60.0


PROBLEM = Problem("kernel", {"rows": 4}, {}, {"x": "float32"})
#: One that the kernel itself refuses, with an error of Tunedex's.
REFUSED = Problem("kernel", {"rows": 5}, {}, {"x": "float32"})
CEILINGS = Ceilings(copy_bytes_s=1e9)


class Subject:
    """A bench that says with each outcome which process it is; starts only where ``allowed`` is there."""

    def __init__(self, allowed: Path) -> None:
        if not allowed.exists():
            raise RuntimeError("not allowed")
        self._allowed = allowed

    def open(self, *arguments: object) -> None:
        if not self._allowed.exists():
            raise RuntimeError("no memory")
        if arguments[0] == REFUSED:
            raise BadInput("x has no stride", field="x")

    def measure(self, config: Config, resources: Resources, best_us: object) -> tuple[object, object]:
        if config.implementation == "sleeps":
            time.sleep(600)
        if config.implementation == "refuses":
            raise BadInput("x is not contiguous", field="x")
        if config.implementation == "breaks":
            return Failure(FailureKind.ILLEGAL_ACCESS, "planted"), os.getpid()
        return os.getpid(), None

    def final(self, configs: object, seconds: float, against: object) -> object:
        raise BadInput("x is not contiguous", field="x")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    path = tmp_path / "allowed"
    path.touch()
    return path


@pytest.fixture
def worker_of(allowed: Path) -> Iterator[Callable[[bool], Worker]]:
    made: list[Worker] = []

    def make(standby: bool) -> Worker:
        def process() -> ChildProcess:
            return ChildProcess(Subject, allowed, start_s=START_S)

        made.append(Worker(process, SETTINGS.timeouts, Ledger(), standby=standby))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def measured(worker: Worker, implementation: str = "some") -> tuple[object, object]:
    worker.open(PROBLEM, None, 0.0, CEILINGS)
    outcome, state = worker.measure(Config(implementation, {}), Resources(), {}, START_S)
    return outcome, state


def pid_of(worker: Worker) -> int:
    pid, _ = measured(worker)
    assert isinstance(pid, int)
    return pid


@pytest.mark.parametrize("standby", [True, False])
def test_a_renewed_worker_is_another_process_and_the_first_is_gone(
    worker_of: Callable[[bool], Worker], standby: bool
) -> None:
    worker = worker_of(standby)
    first = pid_of(worker)
    worker.prepare()
    assert pid_of(worker) == first
    worker.renew()
    assert not alive(first)
    worker.open(PROBLEM, None, 0.0, CEILINGS)
    worker.renew()  # it has searched nothing yet
    assert worker.generation == 1
    second = pid_of(worker)
    assert second != first
    worker.close()
    assert not alive(second)


def test_one_that_cannot_be_started_ahead_is_started_when_needed(
    worker_of: Callable[[bool], Worker], allowed: Path
) -> None:
    worker = worker_of(True)
    first = pid_of(worker)
    allowed.unlink()
    worker.prepare()
    worker.renew()
    allowed.touch()
    assert pid_of(worker) != first


def test_closing_ends_one_that_is_being_started(worker_of: Callable[[bool], Worker]) -> None:
    worker = worker_of(True)
    worker.prepare()
    worker.close()
    worker.close()


def test_a_worker_with_a_fault_that_sticks_gives_way_to_another(worker_of: Callable[[bool], Worker]) -> None:
    worker = worker_of(False)
    outcome, first = measured(worker, "breaks")
    assert isinstance(outcome, Failure)
    assert isinstance(first, int)
    assert not alive(first)
    assert pid_of(worker) != first
    assert worker.generation == 1


def test_what_cannot_be_opened_and_what_cannot_be_started_are_told_apart(
    worker_of: Callable[[bool], Worker], allowed: Path
) -> None:
    worker = worker_of(False)
    pid_of(worker)
    allowed.unlink()
    with pytest.raises(NotOpened, match=r"cannot be set up: .*no memory"):
        worker.open(Problem("kernel", {"rows": 8}, {}, {"x": "float32"}), None, 0.0, CEILINGS)
    with pytest.raises(DeviceLost, match=r"no measuring process can be started: .*not allowed"):
        worker.open(PROBLEM, None, 0.0, CEILINGS)


def test_what_a_kernel_raises_of_ours_is_its_own_fault_and_not_the_sweep_s(
    worker_of: Callable[[bool], Worker],
) -> None:
    worker = worker_of(False)
    with pytest.raises(NotOpened, match="cannot be set up: x has no stride"):
        worker.open(REFUSED, None, 0.0, CEILINGS)
    outcome, _ = measured(worker, "refuses")
    assert outcome == Failure(FailureKind.CRASH, "x is not contiguous")
    worker.open(PROBLEM, None, 0.0, CEILINGS)
    assert worker.final([Config("refuses", {})], 0.1, []) is None
    pid_of(worker)


def test_a_stopped_worker_ends_the_call_under_way(worker_of: Callable[[bool], Worker]) -> None:
    worker = worker_of(False)
    pid = pid_of(worker)
    stopper = threading.Timer(0.5, worker.stop)
    stopper.start()
    with pytest.raises(Stopped):
        measured(worker, "sleeps")
    with pytest.raises(Stopped):
        worker.check()
    worker.close()
    assert not alive(pid)
