"""The measuring process and the one that takes its place: real children, which say who they are."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tunedex.core.config import Config
from tunedex.core.errors import BadInput
from tunedex.core.measurement import Failure, FailureKind, Policy, Resources
from tunedex.core.problem import Problem
from tunedex.db.records import Ceilings
from tunedex.tuner import worker as worker_module
from tunedex.tuner.failures import SpoiltProblem, SpoiltProcess
from tunedex.tuner.faults import NotOpened
from tunedex.tuner.load import Idle
from tunedex.tuner.nvml import Sample
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
        self._bounds: list[float | None] = []

    def open(
        self,
        problem: Problem,
        max_error: float | None,
        floor_us: float,
        ceilings: Ceilings,
        policy: Policy | None,
        idle: Idle | None,
    ) -> Policy:
        if not self._allowed.exists():
            raise RuntimeError("no memory")
        if problem == REFUSED:
            raise BadInput("x has no stride", field="x")
        self._bounds.append(max_error)
        return policy or Policy.EAGER_WARM

    def measure(self, config: Config, resources: Resources, best_us: object) -> tuple[object, object]:
        if config.implementation == "lost":  # and every process after this one
            self._allowed.unlink()
            return Failure(FailureKind.CRASH, "planted"), None
        if config.implementation == "spoils":
            return SpoiltProblem(FailureKind.WRONG_RESULT, "planted"), Sample()
        if config.implementation == "uncaptured":
            return SpoiltProcess(FailureKind.INVALID_TIMING, "planted"), Sample()
        if config.implementation == "exits":
            os._exit(3)
        if config.implementation == "tells":
            return self._bounds, None
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


def test_a_problem_is_opened_once_under_each_bound_and_policy(worker_of: Callable[[bool], Worker]) -> None:
    worker = worker_of(False)
    for bound, policy in ((None, None), (None, Policy.EAGER_WARM), (0.5, None), (0.5, Policy.EAGER_COLD), (None, None)):
        for _ in range(2):
            worker.open(PROBLEM, bound, 0.0, CEILINGS, policy)
    assert worker.measure(Config("tells"), Resources(), {}, START_S)[0] == [None, 0.5, 0.5, None]


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


@pytest.mark.usefixtures("no_pauses")
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


@pytest.mark.usefixtures("no_pauses")
def test_what_costs_the_device_is_no_config_s_failure(worker_of: Callable[[bool], Worker]) -> None:
    """The process that takes the broken one's place cannot be started: nobody knows what the config did."""
    with pytest.raises(DeviceLost, match="no measuring process can be started"):
        measured(worker_of(False), "lost")


@pytest.mark.usefixtures("no_pauses")
def test_one_that_stood_by_and_was_lost_with_the_device_is_no_config_s_failure(
    worker_of: Callable[[bool], Worker],
) -> None:
    worker = worker_of(True)
    pid_of(worker)
    worker.prepare()
    assert worker._standby is not None
    assert worker._standby._coming is not None
    worker._standby._coming.result()
    with pytest.raises(DeviceLost):
        measured(worker, "lost")


def test_a_start_that_fails_is_tried_again(
    worker_of: Callable[[bool], Worker], allowed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is back during the second pause."""
    pauses: list[float] = []
    allowed.unlink()
    worker = worker_of(False)

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            pauses.append(timeout)
            if len(pauses) == 2:
                allowed.touch()
            return False

    monkeypatch.setattr(worker._made, "stopping", Stopping())
    pid_of(worker)
    assert tuple(pauses) == SETTINGS.worker.start_pauses_s[:2]
    assert pauses == sorted(set(pauses))


@pytest.mark.parametrize(("implementation", "renewed"), [("spoils", False), ("uncaptured", True)])
def test_what_a_failure_leaves_behind_is_not_left_to_the_next(
    worker_of: Callable[[bool], Worker], implementation: str, renewed: bool
) -> None:
    worker = worker_of(False)
    first = pid_of(worker)
    measured(worker, implementation)
    worker.open(PROBLEM, None, 0.0, CEILINGS)
    opened, _ = worker.measure(Config("tells"), Resources(), {}, START_S)
    assert opened == ([None] if renewed else [None, None])
    assert (pid_of(worker) != first) is renewed


def test_where_the_process_cannot_tell_the_device_s_state_the_worker_looks(allowed: Path) -> None:
    state = Sample(contended=True)
    worker = Worker(
        lambda: ChildProcess(Subject, allowed, start_s=START_S),
        SETTINGS.timeouts,
        Ledger(),
        standby=False,
        look=lambda: state,
    )
    try:
        outcome, told = measured(worker, "exits")
    finally:
        worker.close()
    assert isinstance(outcome, Failure)
    assert told == state


def test_a_process_that_has_measured_many_configs_gives_way_to_another(
    worker_of: Callable[[bool], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(SETTINGS, worker=replace(SETTINGS.worker, most_configs=2))
    monkeypatch.setattr(worker_module, "SETTINGS", few)
    worker = worker_of(False)
    pids = [pid_of(worker) for _ in range(4)]
    assert len(set(pids[:2])) == len(set(pids[2:])) == 1
    assert len(set(pids)) == 2
    assert worker.generation == 1
    assert len(worker._made._all) == 1  # the first is forgotten


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
