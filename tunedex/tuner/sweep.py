"""A sweep: for each task search, store every trial at once, re-time the leaders, publish the best.

Nothing here touches a device: the measuring process does, and can be killed. Stopping at any moment, by Ctrl-C
or by kill -9, costs the trial under way; the same sweep run again goes on from the trial table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from tunedex.core.device import Environment
from tunedex.core.errors import DatabaseError
from tunedex.db import Patience, Store
from tunedex.db.records import Ceilings, Sweep, SweepStatus
from tunedex.tuner.bench import Bench
from tunedex.tuner.budget import Budget
from tunedex.tuner.ceilings import faster_precisions
from tunedex.tuner.compiling import CompilePool, compile_pool
from tunedex.tuner.context import Context
from tunedex.tuner.costs import named_peaks
from tunedex.tuner.devices import DetectedDevice, sample
from tunedex.tuner.lock import device_lock, host_name, lock_name
from tunedex.tuner.nvml import Sample
from tunedex.tuner.peaks import peaks_of
from tunedex.tuner.process import ChildProcess
from tunedex.tuner.report import Effort, Progress, Report, Result
from tunedex.tuner.settings import SETTINGS, Timeouts
from tunedex.tuner.spent import Ledger
from tunedex.tuner.task_queue import TaskQueue
from tunedex.tuner.task_run import TaskRun
from tunedex.tuner.tasks import Task
from tunedex.tuner.worker import BenchProcess, DeviceLost, Stopped, Worker


class DeviceSweep:
    """Sweeps tasks on one device, or on several of one key, which share the tasks.

    Args:
        store: where trials and results go.
        detected: the device.
        environment: what else the times depend on.
        effort: how much is done.
        watch: told of the progress after every trial, from the thread of the device that made it.
        timeouts: what each step may take.
        others: more devices of the same key.
        begun: when the budget's time began to run, by ``clock``; default when the sweep does.
        make: what makes a device's measuring process.
        clock: gives seconds.
    """

    def __init__(
        self,
        store: Store,
        detected: DetectedDevice,
        environment: Environment,
        effort: Effort,
        watch: Callable[[Progress], None] = lambda progress: None,
        timeouts: Timeouts = SETTINGS.timeouts,
        *,
        others: Sequence[DetectedDevice] = (),
        begun: float | None = None,
        make: Callable[[DetectedDevice, Timeouts], BenchProcess] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Whoever waits for the database is not waited for when the sweep ends.
        self._ending = threading.Event()
        self._store = store.patient(Patience(SETTINGS.store_patience_s, self._ending.wait))
        self._devices = (detected, *others)
        self._device = detected.device
        self._environment = environment
        self._effort = effort
        self._watch = watch
        self._timeouts = timeouts
        self._begun = begun
        self._make = make or measuring_process
        self._clock = clock
        self._report = Report(detected, environment)
        self._reporting = threading.Lock()

    def run(self, tasks: Sequence[Task], options: Mapping[str, Any]) -> Report:
        """Work through ``tasks``; ``options`` are stored with the sweep. Ctrl-C ends it early, with what is there.

        Raises:
            CannotRun: another process tunes on a device, or no device can be measured on.
        """
        queue = TaskQueue(tasks, len(self._devices))
        budget = self._budget()
        try:
            with (
                self._recorded(tasks, options, lambda: self._report.complete) as sweep,
                compile_pool(self._device, self._timeouts, len(self._devices)) as pool,
            ):
                self._work_all(tasks, queue, budget, sweep, pool)
        except KeyboardInterrupt:
            self._report.interrupted = True
        asked = ((problem, task.max_error) for task in tasks for problem in task.problems)
        order = {each: n for n, each in enumerate(asked)}
        self._report.results.sort(key=lambda result: order[result.asked])
        return self._report

    @contextmanager
    def session(
        self, tasks: Sequence[Task], options: Mapping[str, Any], complete: Callable[[], bool]
    ) -> Iterator[Context]:
        """The device, held and ready for a `TaskRun` of each of ``tasks``; a sweep in the store from begin to end, and
        partial where it is not ``complete`` then.

        Raises:
            CannotRun: another process tunes on the device, or it cannot be measured on.
        """
        detected, budget, ledger = self._devices[0], self._budget(), Ledger(self._clock)
        with self._recorded(tasks, options, complete) as sweep, compile_pool(self._device, self._timeouts) as pool:
            worker = self._worker(detected, ledger)
            try:
                yield self._context(detected, tasks, worker, pool, budget, ledger, sweep)
            finally:
                worker.close()

    def _work_all(
        self, tasks: Sequence[Task], queue: TaskQueue, budget: Budget, sweep: int, pool: CompilePool | None
    ) -> None:
        """Have every device work in a thread of its own until there is no more to do."""
        self._ending.clear()
        ledgers = [Ledger(self._clock) for _ in self._devices]
        workers = [self._worker(found, ledger) for found, ledger in zip(self._devices, ledgers, strict=True)]

        def work(detected: DetectedDevice, worker: Worker, ledger: Ledger) -> None:
            try:
                context = self._context(detected, tasks, worker, pool, budget, ledger, sweep)
                self._work(context, queue)
            except Stopped:
                return
            except DeviceLost as lost:
                with self._reporting:
                    self._report.lost.append(f"{detected.selector}: {lost}")
            finally:
                queue.leave()
                worker.close()

        with ThreadPoolExecutor(len(workers), thread_name_prefix="device") as threads:
            working: list[Future[None]] = []
            try:  # Ctrl-C may come while threads are started: the first may be at work by then
                for each in zip(self._devices, workers, ledgers, strict=True):
                    working.append(threads.submit(work, *each))
                pending = set(working)
                while pending:  # in short waits: a library may have made SIGINT one that interrupts none (SA_RESTART)
                    done, pending = wait(pending, timeout=SETTINGS.stop_poll_s, return_when=FIRST_EXCEPTION)
                    for future in done:
                        future.result()
            except BaseException:
                self._ending.set()
                queue.stop()
                for worker in workers:
                    worker.stop()
                raise
            finally:
                wait(working)
                for ledger in ledgers:
                    self._report.spent += ledger.spent
        self._report.left = queue.left
        if not self._report.results and self._report.lost:
            raise DeviceLost("; ".join(self._report.lost))

    def _work(self, context: Context, queue: TaskQueue) -> None:
        """What one device does: take a task, search it, conclude its problems, and so on."""
        task = queue.take()
        run: TaskRun | None = None
        while task is not None:
            following: Task | None = None
            prepared: TaskRun | None = None
            finished = False
            try:
                run = run or TaskRun(context, task)
                run.search(None if self._effort.budget_s is None else context.budget.search_s(queue.due))
                # The next task's first configs compile while this one's finals are held.
                if context.pool is not None and (following := queue.take_ahead()) is not None:
                    prepared = TaskRun(context, following)
                    prepared.prepare()
                for problem in task.problems:
                    self._concluded(run.conclude(problem, queue.due))
                    queue.concluded(task)
                finished = True
            finally:
                with self._reporting:
                    self._report.new_trials += run.new_trials if run else 0
                queue.done(task) if finished else queue.give_back(task)
                if not finished and following is not None:
                    if prepared is not None:
                        prepared.drop()
                    queue.give_back(following)
            task, run = following or queue.take(), prepared

    def _concluded(self, result: Result) -> None:
        with self._reporting:
            others = [each for each in self._report.results if each.asked != result.asked]
            self._report.results = [*others, result]
            self._report.revision = max(result.revision, self._report.revision)

    def _budget(self) -> Budget:
        return Budget(self._effort.budget_s, devices=len(self._devices), begun=self._begun, clock=self._clock)

    def _worker(self, detected: DetectedDevice, ledger: Ledger) -> Worker:
        # On a CPU the start of a process would disturb what is measured meanwhile.
        standby = detected.device.kind == "cuda"
        # Nor can another process tell a CPU's load from the measuring process's own.
        look = partial(sample, detected.device) if standby else Sample
        return Worker(lambda: self._make(detected, self._timeouts), self._timeouts, ledger, standby=standby, look=look)

    def _context(
        self,
        detected: DetectedDevice,
        tasks: Sequence[Task],
        worker: Worker,
        pool: CompilePool | None,
        budget: Budget,
        ledger: Ledger,
        sweep: int,
    ) -> Context:
        return Context(
            store=self._store,
            device=self._device,
            environment=self._environment.key,
            effort=self._effort,
            sweep=sweep,
            ceilings=self._ceilings(detected, tasks, worker),
            worker=worker,
            pool=pool,
            watch=self._watch,
            budget=budget,
            ledger=ledger,
            timeouts=self._timeouts,
            selector=detected.selector,
        )

    @contextmanager
    def _recorded(
        self, tasks: Sequence[Task], options: Mapping[str, Any], complete: Callable[[], bool]
    ) -> Iterator[int]:
        """The number of a sweep in the store, from begin to end, while every device is held."""
        store = self._store
        with ExitStack() as locks:
            for detected in self._devices:
                locks.enter_context(device_lock(detected))
            held = sorted(map(lock_name, self._devices))
            self._end_those_killed(held)
            store.register_device(self._device)
            store.register_environment(self._environment)
            store.register_signatures(task.kernel.signature for task in tasks)
            stored = {**options, **self._timeouts.of_trials, "locks": held, "host": host_name()}
            sweep = store.start_sweep(Sweep(self._device.key, self._environment.key, stored))
            try:
                yield sweep
            except BaseException as error:
                interrupted = isinstance(error, KeyboardInterrupt)
                with suppress(DatabaseError):  # what ended it says more
                    store.end_sweep(sweep, SweepStatus.INTERRUPTED if interrupted else SweepStatus.FAILED)
                raise
            store.end_sweep(sweep, SweepStatus.DONE if complete() else SweepStatus.PARTIAL)

    def _end_those_killed(self, held: Sequence[str]) -> None:
        """Say of the sweeps that were killed that they are over: those whose locks are among those ``held`` now. In a
        shared database a sweep of a device of this key may run on another host, whose locks are called alike unless
        they are by a UUID."""
        anywhere = {lock_name(detected) for detected in self._devices if detected.uuid}
        for sweep in self._store.list_sweeps(device=self._device.key, limit=1000).items:
            here = self._store.embedded or sweep.options.get("host") == host_name()
            locks = sweep.options.get("locks")
            if not isinstance(locks, list):  # of a sweep that did not say
                locks = held if self._store.embedded else []
            ended = any(lock in (held if here else anywhere) for lock in locks)
            if sweep.status is SweepStatus.RUNNING and sweep.id is not None and ended:
                self._store.end_sweep(sweep.id, SweepStatus.INTERRUPTED)

    def _ceilings(self, detected: DetectedDevice, tasks: Sequence[Task], worker: Worker) -> Ceilings:
        """The device's ceilings in this environment: the highest ever measured, for a sweep may start on a busy
        machine, but no higher than its data sheet, for a clock may err."""
        peaks = named_peaks((task.kernel, problem) for task in tasks for problem in task.problems)
        if self._device.kind == "cuda":
            peaks |= {faster for peak in peaks for faster in faster_precisions(peak)}
        self._watch(Progress("ceilings", 0, 1, None, "measuring", detected.selector))
        measured = worker.ceilings(peaks)
        if known := self._store.ceilings(self._device.key, self._environment.key):
            measured = measured.highest(known)
        peaks_known = peaks_of(self._device)
        measured = measured.at_most(peaks_known.memory_bytes_s, peaks_known.flops_s)
        self._store.put_ceilings(self._device.key, self._environment.key, measured)
        return measured


def measuring_process(detected: DetectedDevice, timeouts: Timeouts, bench: type[Bench] = Bench) -> ChildProcess:
    """A process that owns the device and holds a ``bench``, not started yet."""
    return ChildProcess(
        bench, detected.device, detected.index, start_s=timeouts.start_s, heartbeat_s=timeouts.heartbeat_s
    )
