"""Several devices of one kind share the tasks of a sweep. Here they are the CPU under several names."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated import ENVIRONMENT, WHOLE, SimulatedProcess, Simulation, task_of

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.errors import CannotRun
from tunedex.core.host import cpu
from tunedex.core.problem import Problem
from tunedex.db import Store, open_store
from tunedex.db.records import Stage, Sweep, SweepStatus
from tunedex.kernels.base import Kernel
from tunedex.tuner import sweep as sweep_module
from tunedex.tuner.budget import Due
from tunedex.tuner.compiling import CompilePool
from tunedex.tuner.devices import DetectedDevice
from tunedex.tuner.lock import device_lock, lock_name
from tunedex.tuner.process import ProcessFailure
from tunedex.tuner.report import Effort, Progress, Report
from tunedex.tuner.settings import Timeouts
from tunedex.tuner.sweep import DeviceSweep
from tunedex.tuner.task_queue import TaskQueue
from tunedex.tuner.tasks import Task

pytestmark = pytest.mark.usefixtures("no_pauses")

#: Two devices that nobody else has, so that their locks are ours.
TWO = [DetectedDevice(cpu(), uuid=f"SIM-{os.getpid()}-{n}") for n in range(2)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "tunedex.db")) as store:
        yield store


class Host:
    """Simulated processes, each knowing its device. ``meet`` has the first problems of all be opened at once."""

    def __init__(self, *, meet: int = 0) -> None:
        self.simulation = Simulation(lambda config: 100.0 + int(config.key[:2], 16))
        self.opened: dict[str, list[str]] = {}
        self.broken: set[str] = set()
        self.meeting = threading.Barrier(meet) if meet else None
        self.interrupt_at = 0
        self.interrupted = threading.Event()
        self.retired: list[str] = []

    def make(self, detected: DetectedDevice, timeouts: Timeouts) -> SimulatedProcess:
        return Process(self, detected.uuid or "")

    def sweep(self, store: Store, tasks: list[Task], effort: Effort = WHOLE, **more: Any) -> Report:
        swept = DeviceSweep(store, TWO[0], ENVIRONMENT, effort, others=TWO[1:], make=self.make, **more)
        return swept.run(tasks, {})


class Process(SimulatedProcess):
    def __init__(self, host: Host, uuid: str) -> None:
        super().__init__(host.simulation)
        self._host, self._uuid = host, uuid

    def start(self) -> None:
        if self._uuid in self._host.broken:
            raise ProcessFailure("planted: the device is gone")
        super().start()

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        host = self._host
        if method == "open":
            mine = host.opened.setdefault(self._uuid, [])
            mine.append(arguments[0].key)
            if len(mine) == 1 and host.meeting is not None:
                host.meeting.wait(60)
        if method == "measure" and host.interrupt_at:
            host.interrupt_at -= 1
            if not host.interrupt_at:
                os.kill(os.getpid(), signal.SIGINT)
                self._host.interrupted.wait(60)  # a real config runs meanwhile, until its process is ended
        if self._uuid in host.broken and method != "ceilings":
            self.close()
            raise ProcessFailure("planted: the device is gone")
        return super().call(method, *arguments, timeout_s=timeout_s)

    def retire(self) -> None:
        self._host.retired.append(self._uuid)
        self._host.interrupted.set()
        super().retire()


def tasks_of(kernel: Kernel, count: int) -> list[Task]:
    return [task_of(kernel, rows=8 + n) for n in range(count)]


def check_whole(store: Store, report: Report, tasks: list[Task]) -> None:
    """Every task is answered, in order, under the one key; no config was tried twice, and no final is in parts."""
    assert [result.problem for result in report.results] == [problem for task in tasks for problem in task.problems]
    assert all(result.best for result in report.results)
    trials = store.list_trials(limit=1000).items
    assert {trial.device for trial in trials} == {cpu().key}
    searched = [(trial.problem.key, trial.config) for trial in trials if trial.stage is Stage.SEARCH]
    assert len(searched) == len(set(searched))
    finals = [(trial.problem.key, trial.config) for trial in trials if trial.stage is Stage.FINAL]
    assert len(finals) == len(set(finals))
    assert {key for key, _ in finals} == {problem.key for task in tasks for problem in task.problems}


def test_they_share_the_tasks_and_one_sweep(steps: Kernel, store: Store) -> None:
    host, tasks = Host(meet=2), tasks_of(steps, 4)
    told: list[Progress] = []
    report = host.sweep(store, tasks, watch=told.append)
    check_whole(store, report, tasks)
    assert report.complete
    assert len(host.opened) == 2
    (sweep,) = store.list_sweeps().items
    assert sweep.status is SweepStatus.DONE
    assert {progress.phase for progress in told} == {"measuring", "searching", "final"}


def test_one_that_is_lost_leaves_its_tasks_to_the_other(steps: Kernel, store: Store) -> None:
    host, tasks = Host(meet=2), tasks_of(steps, 5)

    def watch(progress: Progress) -> None:
        if progress.done == 3 and progress.phase == "searching":
            host.broken.add(TWO[1].uuid or "")

    report = host.sweep(store, tasks, watch=watch)
    check_whole(store, report, tasks)
    assert len(report.lost) == 1
    assert "the device is gone" in report.lost[0]
    assert report.left == 0


def test_nothing_is_compiled_any_more_for_a_device_that_is_lost(
    steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost in the first task's final, while the second's configs compile, each until the end of the test."""
    card = DetectedDevice(Device.from_key("nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g"), 0, TWO[0].uuid)
    host, (first, second) = Host(), tasks_of(steps, 2)
    submitted: list[Future[Any]] = []
    open_at_give_back: list[int] = []
    over = threading.Event()
    submit, compile_one, give_back = CompilePool.submit, CompilePool._compile, TaskQueue.give_back

    def submits(pool: CompilePool, problem: Problem, config: Config) -> Future[Any]:
        future = submit(pool, problem, config)
        if problem in second.problems:
            submitted.append(future)
            host.broken.add(card.uuid or "")
        return future

    def compiles(pool: CompilePool, problem: Problem, config: Config) -> Any:
        if problem in second.problems:
            over.wait(60)
        return compile_one(pool, problem, config)

    def gives_back(queue: TaskQueue, task: Task) -> None:
        if task == second:
            open_at_give_back.append(sum(not future.done() and not future.running() for future in submitted))
        give_back(queue, task)
        over.set()

    monkeypatch.setattr(CompilePool, "submit", submits)
    monkeypatch.setattr(CompilePool, "_compile", compiles)
    monkeypatch.setattr(TaskQueue, "give_back", gives_back)
    swept = DeviceSweep(store, card, ENVIRONMENT, WHOLE, make=host.make)
    with pytest.raises(CannotRun, match="the device is gone"):
        swept.run([first, second], {})
    assert len(submitted) > 1
    assert open_at_give_back == [0]


def test_when_all_are_lost_the_sweep_cannot_run(steps: Kernel, store: Store) -> None:
    host = Host()
    host.broken = {device.uuid or "" for device in TWO}
    with pytest.raises(CannotRun, match="the device is gone"):
        host.sweep(store, tasks_of(steps, 2))
    (sweep,) = store.list_sweeps().items
    assert sweep.status is SweepStatus.FAILED


@pytest.mark.parametrize("restarts", [False, True], ids=["interrupts", "restarts"])
def test_ctrl_c_ends_all(steps: Kernel, store: Store, restarts: bool) -> None:
    """Also where a library, as NVRTC does, has made the signal one after which the system goes on waiting."""
    host, tasks = Host(meet=2), tasks_of(steps, 6)
    host.interrupt_at = 12
    signal.siginterrupt(signal.SIGINT, not restarts)
    try:
        report = host.sweep(store, tasks)
    finally:
        signal.siginterrupt(signal.SIGINT, True)
    assert report.interrupted
    assert len(report.results) < len(tasks)
    assert set(host.retired) == {device.uuid for device in TWO}
    (sweep,) = store.list_sweeps().items
    assert sweep.status is SweepStatus.INTERRUPTED
    check_whole(store, Host().sweep(store, tasks), tasks)


def test_ctrl_c_while_the_threads_are_started_ends_all(
    steps: Kernel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(ThreadPoolExecutor):
        """The starter is still at it when the signal comes, as on a busy machine."""

        def submit(self, *arguments: Any, **more: Any) -> Future[Any]:
            started = super().submit(*arguments, **more)
            if arguments[1] is TWO[1]:
                time.sleep(60)
            return started

    monkeypatch.setattr(sweep_module, "ThreadPoolExecutor", Slow)
    host, tasks = Host(meet=2), tasks_of(steps, 6)
    host.interrupt_at = 1
    report = host.sweep(store, tasks)
    assert report.interrupted
    assert len(report.results) < len(tasks)
    assert set(host.retired) == {device.uuid for device in TWO}


def test_tasks_that_share_a_problem_are_never_at_work_at_once(steps: Kernel, store: Store) -> None:
    (first, second) = tasks_of(steps, 2)
    both = replace(first, problems=(*first.problems, *second.problems))
    report = Host().sweep(store, [both, second, first])
    searched = [
        (trial.problem.key, trial.config)
        for trial in store.list_trials(limit=1000).items
        if trial.stage is Stage.SEARCH
    ]
    assert len(searched) == len(set(searched))
    assert report.complete


def test_each_device_is_held(steps: Kernel, store: Store) -> None:
    with device_lock(TWO[1]), pytest.raises(CannotRun, match="is being tuned by process"):
        Host().sweep(store, tasks_of(steps, 1))
    with device_lock(TWO[0]), device_lock(TWO[1]):
        pass
    assert store.list_sweeps().items == []


def test_a_sweep_that_runs_on_another_card_of_the_model_is_not_said_to_be_over(steps: Kernel, store: Store) -> None:
    store.register_device(cpu())
    store.register_environment(ENVIRONMENT)
    elsewhere = {"locks": [lock_name(DetectedDevice(cpu(), uuid="SIM-elsewhere"))]}
    killed = {"locks": [lock_name(TWO[1]), *elsewhere["locks"]]}
    for options in (elsewhere, killed):
        store.start_sweep(Sweep(cpu().key, ENVIRONMENT.key, options))
    Host().sweep(store, tasks_of(steps, 1))
    found = {sweep.id: sweep.status for sweep in store.list_sweeps().items}
    assert found == {1: SweepStatus.RUNNING, 2: SweepStatus.INTERRUPTED, 3: SweepStatus.DONE}


def test_two_real_processes(steps: Kernel, store: Store) -> None:
    tasks = tasks_of(steps, 3)
    swept = DeviceSweep(store, TWO[0], ENVIRONMENT, Effort(trials=6, budget_s=None), others=TWO[1:])
    report = swept.run(tasks, {})
    check_whole(store, report, tasks)
    assert report.spent.start_s > 0


class TestQueue:
    def test_who_is_at_work_takes_ahead_only_what_nobody_waits_for(self, steps: Kernel) -> None:
        tasks = tasks_of(steps, 4)
        queue = TaskQueue(tasks, devices=2)
        assert [queue.take(), queue.take()] == tasks[:2]
        assert queue.take_ahead() == tasks[2]
        assert queue.take_ahead() is None
        queue.leave()
        assert queue.take_ahead() == tasks[3]

    def test_what_is_given_back_comes_first(self, steps: Kernel) -> None:
        tasks = tasks_of(steps, 3)
        queue = TaskQueue(tasks, devices=1)
        first = queue.take()
        assert first is not None
        queue.concluded(first)
        queue.give_back(first)
        assert queue.due == Due(tasks=3, finals=3)
        assert queue.take() == first

    def test_what_is_due_shrinks_with_each_final(self, steps: Kernel) -> None:
        task = task_of(steps)
        both = replace(task, problems=(task.problems[0], task.problems[0].at_batch(2)))
        queue = TaskQueue([both, task_of(steps, rows=9)], devices=1)
        assert queue.due == Due(tasks=2, finals=3)
        taken = queue.take()
        assert taken is not None
        queue.concluded(taken)
        assert queue.due == Due(tasks=2, finals=2)
        queue.done(taken)
        assert (queue.due, queue.left) == (Due(tasks=1, finals=1), 1)

    def test_who_waits_gets_what_another_gives_back(self, steps: Kernel) -> None:
        queue = TaskQueue(tasks_of(steps, 1), devices=2)
        taken = queue.take()
        assert taken is not None
        got: list[Task | None] = []
        waiting = threading.Thread(target=lambda: got.append(queue.take()))
        waiting.start()
        queue.give_back(taken)
        waiting.join(60)
        assert got == [taken]

    def test_a_stopped_queue_hands_out_nothing(self, steps: Kernel) -> None:
        queue = TaskQueue(tasks_of(steps, 3), devices=1)
        queue.stop()
        assert queue.take() is None
        assert queue.take_ahead() is None
