"""A sweep: for each task search, store every trial at once, re-time the leaders, publish the best.

Nothing here touches a device: the measuring process does, and can be killed. Stopping at any moment, by Ctrl-C
or by kill -9, costs the trial under way; the same sweep run again goes on from the trial table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import mean
from typing import Any

from tunedex.core.device import Environment
from tunedex.db import Store
from tunedex.db.records import Ceilings, Sweep, SweepStatus
from tunedex.tuner.bench import Bench
from tunedex.tuner.ceilings import faster_precisions
from tunedex.tuner.compiling import compile_pool
from tunedex.tuner.devices import DetectedDevice
from tunedex.tuner.lock import device_lock
from tunedex.tuner.measurer import Context
from tunedex.tuner.process import ChildProcess
from tunedex.tuner.report import Effort, Progress, Report
from tunedex.tuner.settings import SETTINGS, Timeouts
from tunedex.tuner.spent import Part, Spent
from tunedex.tuner.task_run import TaskRun
from tunedex.tuner.tasks import Task
from tunedex.tuner.worker import Worker


class DeviceSweep:
    """Sweeps tasks on one device. ``watch`` is told of the progress after every trial; ``timeouts`` bound
    what each step of it may take."""

    def __init__(
        self,
        store: Store,
        detected: DetectedDevice,
        environment: Environment,
        effort: Effort,
        watch: Callable[[Progress], None] = lambda progress: None,
        timeouts: Timeouts = SETTINGS.timeouts,
    ) -> None:
        self._store = store
        self._device = detected.device
        self._environment = environment
        self._effort = effort
        self._watch = watch
        self._timeouts = timeouts
        self._spent = Spent()
        self._report = Report(detected, environment, spent=self._spent)
        self._bench = Worker(self._child, ahead=detected.device.kind == "cuda")

    def _child(self) -> ChildProcess:
        detected, timeouts = self._report.detected, self._timeouts
        return ChildProcess(
            Bench, detected.device, detected.index, start_s=timeouts.start_s, heartbeat_s=timeouts.heartbeat_s
        )

    def run(self, tasks: Sequence[Task], options: dict[str, Any]) -> Report:
        """Work through ``tasks``; ``options`` are stored with the sweep. Ctrl-C ends it early, with what is there.

        Raises:
            CannotRun: another process tunes on the device.
        """
        try:
            with self.session(tasks, options) as context:
                self._run_tasks(tasks, context)
        except KeyboardInterrupt:
            self._report.interrupted = True
        return self._report

    @contextmanager
    def session(self, tasks: Sequence[Task], options: dict[str, Any]) -> Iterator[Context]:
        """The device, held and ready for a `TaskRun` of each of ``tasks``; a sweep in the store from begin to end.

        Raises:
            CannotRun: another process tunes on the device.
        """
        store, report = self._store, self._report
        with device_lock(report.detected):
            self._end_those_killed()
            store.register_device(self._device)
            store.register_environment(self._environment)
            store.register_signatures(task.kernel.signature for task in tasks)
            sweep = store.start_sweep(Sweep(self._device.key, self._environment.key, options))
            status = SweepStatus.FAILED
            try:
                with compile_pool(self._device, self._timeouts) as pool:
                    yield Context(
                        store=store,
                        device=self._device,
                        environment=self._environment.key,
                        effort=self._effort,
                        sweep=sweep,
                        ceilings=self._ceilings(tasks),
                        bench=self._bench,
                        pool=pool,
                        watch=self._watch,
                        spent=self._spent,
                        timeouts=self._timeouts,
                    )
                status = SweepStatus.DONE if report.complete else SweepStatus.PARTIAL
            except KeyboardInterrupt:
                status = SweepStatus.INTERRUPTED
                raise
            finally:
                self._bench.close()
                store.end_sweep(sweep, status)

    def _run_tasks(self, tasks: Sequence[Task], context: Context) -> None:
        concluded: list[float] = []
        for n, task in enumerate(tasks):
            seconds = None
            if self._effort.budget_s is not None:
                # What concluding a problem has cost so far is kept back for those that are still to be concluded.
                conclude_s = mean(concluded) if concluded else SETTINGS.finals.expected_s
                waiting = sum(len(task.problems) for task in tasks[n:])
                left = self._effort.budget_s - self._spent.wall_s - waiting * conclude_s
                seconds = max(0.0, left) / (len(tasks) - n)
            run = TaskRun(context, task)
            try:
                run.search(seconds)
                for problem in task.problems:
                    begin = time.monotonic()
                    result = run.conclude(problem)
                    concluded.append(time.monotonic() - begin)
                    self._report.results.append(result)
                    self._report.revision = result.revision or self._report.revision
            finally:
                self._report.new_trials += run.new_trials

    def _end_those_killed(self) -> None:
        """Say of this device's sweeps that were killed that they are over. In a shared database they may run elsewhere,
        on a card of the same model; in an embedded one the device's lock shows that none does."""
        if self._store.embedded:
            for sweep in self._store.list_sweeps(device=self._device.key, limit=1000).items:
                if sweep.status is SweepStatus.RUNNING and sweep.id is not None:
                    self._store.end_sweep(sweep.id, SweepStatus.INTERRUPTED)

    def _ceilings(self, tasks: Sequence[Task]) -> Ceilings:
        """The device's ceilings in this environment: the highest ever measured, for a sweep may start on a busy
        machine."""
        peaks = {task.kernel.cost(problem).peak for task in tasks for problem in task.problems} - {""}
        if self._device.kind == "cuda":
            peaks |= {faster for peak in peaks for faster in faster_precisions(peak)}
        self._watch(Progress("ceilings", 0, 1, None, "measuring"))
        with self._spent.on(Part.START):
            self._bench.start()
        measured: Ceilings = self._bench.call("ceilings", peaks, timeout_s=self._timeouts.ceilings_s)
        if known := self._store.ceilings(self._device.key, self._environment.key):
            measured = measured.highest(known)
        self._store.put_ceilings(self._device.key, self._environment.key, measured)
        return measured
