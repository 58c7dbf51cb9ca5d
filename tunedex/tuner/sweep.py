"""A sweep: for each task search, store every trial at once, re-time the leaders, publish the best.

Nothing here touches a device: the measuring process does, and can be killed. Stopping at any moment, by Ctrl-C
or by kill -9, costs the trial under way; the same sweep run again goes on from the trial table.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from tunedex.core.config import Config
from tunedex.core.device import Environment
from tunedex.core.errors import DeviceError
from tunedex.core.limits import Limits
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy, Resources
from tunedex.core.problem import Problem
from tunedex.core.row import Row, choose
from tunedex.db import Store
from tunedex.db.records import Ceilings, Stage, Sweep, SweepStatus, Trial
from tunedex.db.selection import select
from tunedex.tuner.bench import Bench, FinalTime
from tunedex.tuner.compiling import CompilePool, compile_pool
from tunedex.tuner.devices import DetectedDevice, sample
from tunedex.tuner.process import ChildProcess, ProcessFailure, RemoteError
from tunedex.tuner.search import Candidate, Sampler, Search
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.space import Space
from tunedex.tuner.tasks import Task


@dataclass(frozen=True)
class Effort:
    """How much a sweep does: ``trials`` a task (None: no bound), ``budget_s`` seconds a device (None: no bound)."""

    trials: int | None
    budget_s: float | None
    sampler: Sampler = Sampler.AUTO
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """Where a sweep is, for whoever watches: ``done`` of ``total`` trials of ``task``, and the best time so far."""

    task: str
    done: int
    total: int
    best_us: float | None
    phase: str


@dataclass(frozen=True)
class Result:
    """What one problem came to. Times in microseconds, from the final; ``own`` is the fastest config that is not
    the library's, ``library`` the fastest that is."""

    problem: Problem
    default_us: float | None
    library_us: float | None
    best: Row | None
    own: Row | None
    library: Row | None
    max_error: float | None
    trials: int
    failures: dict[str, int]
    kernel_version: str
    roofline_share: float | None

    def to_dict(self) -> dict[str, Any]:
        best, own = self.best, self.own
        return {
            "kernel": self.problem.kernel,
            "problem": self.problem.to_dict(),
            "version": self.kernel_version,
            "max_error": self.max_error,
            "default_us": self.default_us,
            "library_us": self.library_us,
            "best_us": best.measurement.time_us if best else None,
            "speedup": best.speedup if best else None,
            "roofline_share": self.roofline_share,
            "error": best.measurement.error if best else None,
            "policy": best.measurement.policy.value if best else None,
            "config": best.config.to_dict() if best else None,
            "own_us": own.measurement.time_us if own else None,
            "own_config": own.config.to_dict() if own else None,
            "trials": self.trials,
            "failures": self.failures,
        }


@dataclass
class Report:
    """What a sweep of one device came to."""

    detected: DetectedDevice
    environment: Environment
    revision: int = 0
    results: list[Result] = field(default_factory=list)
    interrupted: bool = False
    new_trials: int = 0

    @property
    def complete(self) -> bool:
        return not self.interrupted and all(result.best for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": self.detected.device.to_dict(),
            "environment": self.environment.to_dict(),
            "revision": self.revision,
            "results": [result.to_dict() for result in self.results],
        }


class DeviceSweep:
    """Sweeps tasks on one device. ``watch`` is told of the progress after every trial."""

    def __init__(
        self,
        store: Store,
        detected: DetectedDevice,
        environment: Environment,
        effort: Effort,
        watch: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._store = store
        self._detected = detected
        self._device = detected.device
        self._environment = environment
        self._effort = effort
        self._watch = watch
        self._bench = ChildProcess(Bench, detected.device, detected.index, start_s=SETTINGS.limits.start_s)
        self._sweep = 0
        self._report = Report(detected, environment)

    def run(self, tasks: Sequence[Task], options: dict[str, Any]) -> Report:
        """Work through ``tasks``; ``options`` are stored with the sweep. Ctrl-C ends it early, with what is there."""
        store, report = self._store, self._report
        store.register_device(self._device)
        store.register_environment(self._environment)
        store.register_signatures(task.kernel.signature for task in tasks)
        self._sweep = store.start_sweep(Sweep(self._device.key, self._environment.key, options))
        start = time.monotonic()
        status = SweepStatus.FAILED
        try:
            with compile_pool(self._device) as pool:
                ceilings = self._ceilings(tasks)
                for n, task in enumerate(tasks):
                    seconds = None
                    if self._effort.budget_s is not None:
                        left = self._effort.budget_s - (time.monotonic() - start)
                        seconds = max(0.0, left) / (len(tasks) - n)
                    self._run_task(task, ceilings, pool, seconds)
            status = SweepStatus.DONE if report.complete else SweepStatus.PARTIAL
        except KeyboardInterrupt:
            report.interrupted = True
            status = SweepStatus.INTERRUPTED
        finally:
            self._bench.close()
            store.end_sweep(self._sweep, status)
        return report

    def _ceilings(self, tasks: Sequence[Task]) -> Ceilings:
        """The device's ceilings in this environment, measured where the store does not have them all."""
        peaks = {task.kernel.cost(problem).peak for task in tasks for problem in task.problems}
        if self._device.kind == "cuda":
            peaks |= {faster for peak in peaks for faster in _faster(peak)}
        known = self._store.ceilings(self._device.key, self._environment.key)
        if known and peaks - {""} <= set(known.flops_s):
            return known
        self._watch(Progress("ceilings", 0, 1, None, "measuring the device's ceilings"))
        measured: Ceilings = self._bench.call(
            "ceilings", peaks | set(known.flops_s if known else ()), timeout_s=SETTINGS.limits.ceilings_s
        )
        self._store.put_ceilings(self._device.key, self._environment.key, measured)
        return measured

    def _run_task(self, task: Task, ceilings: Ceilings, pool: CompilePool | None, seconds: float | None) -> None:
        runner = _TaskRunner(self, task, ceilings, pool)
        found = runner.search(seconds)
        self._report.new_trials += found
        for problem in task.problems:
            result = runner.conclude(problem, fresh=found > 0)
            self._report.results.append(result)


class _TaskRunner:
    """One task of a device's sweep: its search, then the final of each of its problems."""

    def __init__(self, sweep: DeviceSweep, task: Task, ceilings: Ceilings, pool: CompilePool | None) -> None:
        self._s = sweep
        self._task = task
        self._ceilings = ceilings
        self._pool = pool
        self._spaces = [Space.of(task.kernel, problem, sweep._device) for problem in task.problems]
        self._opened: tuple[str, Policy] | None = None
        self._history: dict[str, list[Trial]] = {problem.key: [] for problem in task.problems}
        self._best_us: float | None = None

    def search(self, seconds: float | None) -> int:
        """Search until the trials, the time or the space run out; returns how many new trials were stored.

        The default and the library call are measured even when the time is over: without them nothing can be said
        to be better than what the user has.
        """
        effort = self._s._effort
        size = sum(len(space) for space in self._spaces)
        trials = effort.trials if effort.trials is not None else size
        search = Search(self._spaces, sampler=effort.sampler, trials=trials, seed=effort.seed)
        for problem in self._task.problems:
            for trial in self._stored(problem):
                self._history[problem.key].append(trial)
                if trial.stage is Stage.SEARCH and not self._refused_too_strictly(trial):
                    search.recall(Candidate(problem, trial.config), _per_item(trial))
        self._best_us = min((us for us in search.told.values() if us is not None), default=None)
        total = min(trials, search.size)
        deadline = None if seconds is None else time.monotonic() + seconds
        new = 0
        waiting: dict[Future[Resources | Failure], Candidate] = {}
        try:
            while True:
                over = deadline is not None and time.monotonic() > deadline
                for candidate in search.ask(self._room(len(waiting)), anchors_only=over):
                    waiting[self._compiled(candidate)] = candidate
                if over:
                    waiting = {f: c for f, c in waiting.items() if c in search.anchors or not f.cancel()}
                if not waiting:
                    break
                future = next(iter(wait(waiting, return_when=FIRST_COMPLETED).done))
                candidate = waiting.pop(future)
                trial = self._try(candidate, future.result())
                us = _per_item(trial)
                search.tell(candidate, us)
                new += 1
                self._best_us = min(filter(None, (self._best_us, us)), default=None)
                self._tell(len(search.told), total, "searching")
        finally:
            for future in waiting:
                future.cancel()
        return new

    def conclude(self, problem: Problem, *, fresh: bool) -> Result:
        """Re-time the leaders of ``problem`` where a search was ``fresh`` or no final is stored; publish."""
        history = self._history[problem.key]
        finals = _newest_final(history)
        if fresh or not finals:
            finals = self._final(problem)
        rows = select(
            finals,
            [trial for trial in history if trial.stage is Stage.SEARCH],
            self._incumbent(problem),
            default=self._space(problem).default,
            share=lambda row: self._share(row, problem),
        )
        if rows:
            self._s._report.revision = self._s._store.publish(
                self._s._device.key, {problem: rows}, sweep=self._s._sweep
            )
        limits = Limits(max_error=self._task.max_error)
        best = choose(rows, limits)
        own = choose([row for row in rows if not row.config.library], limits)
        library = choose([row for row in rows if row.config.library], limits)
        searched = [trial for trial in history if trial.stage is Stage.SEARCH]
        failures = Counter(t.outcome.kind.value for t in searched if isinstance(t.outcome, Failure))
        return Result(
            problem=problem,
            default_us=best.default_us if best else None,
            library_us=library.measurement.time_us if library else None,
            best=best,
            own=own,
            library=library,
            max_error=self._task.max_error,
            trials=len(searched),
            failures=dict(sorted(failures.items())),
            kernel_version=self._task.kernel.signature.version,
            roofline_share=best.roofline_share if best else None,
        )

    def _final(self, problem: Problem) -> list[Trial]:
        """The interleaved final of the leaders, the default, the library call and the incumbent; stored."""
        searched = {
            trial.config: trial.outcome
            for trial in self._history[problem.key]
            if trial.stage is Stage.SEARCH and isinstance(trial.outcome, Measurement)
        }
        configs = self._finalists(problem, searched)
        if not configs:
            return []
        self._tell(0, 1, "final")
        try:
            self._open(problem)
            times = self._s._bench.call("final", configs, timeout_s=SETTINGS.limits.final_s)
        except (ProcessFailure, RemoteError) as failure:
            self._opened = None
            times = [Failure(FailureKind.CRASH, f"final: {failure}")] * len(configs)
        return [
            self._store_final(problem, config, searched[config], timed)
            for config, timed in zip(configs, times, strict=True)
        ]

    def _finalists(self, problem: Problem, searched: dict[Config, Measurement]) -> list[Config]:
        bears_error = self._task.max_error is not None
        settings = SETTINGS.finals
        ranked = sorted(searched, key=lambda config: (searched[config].time_us, config.key))
        lossless = [config for config in ranked if searched[config].lossless]
        lossy = [config for config in ranked if not searched[config].lossless]
        own = [config for config in lossless if not config.library]
        space = self._space(problem)
        incumbent = [row.config for row in self._incumbent(problem)[:1]]
        wanted = [
            *lossless[: settings.leaders],
            *own[:1],
            *lossy[: settings.leaders if bears_error else settings.lossy_leaders],
            *([space.default] if space.default else []),
            *space.library,
            *incumbent,
        ]
        return [config for config in dict.fromkeys(wanted) if config in searched]

    def _store_final(self, problem: Problem, config: Config, found: Measurement, timed: FinalTime | Failure) -> Trial:
        outcome: Measurement | Failure = (
            timed
            if isinstance(timed, Failure)
            else replace(found, time_us=timed.time_us, p20_us=timed.p20_us, p80_us=timed.p80_us, samples=timed.samples)
        )
        warm_us = None if isinstance(timed, Failure) else timed.warm_us
        return self._store(problem, config, outcome, Stage.FINAL, warm_us)

    def _try(self, candidate: Candidate, compiled: Resources | Failure) -> Trial:
        """Measure one candidate, whatever it does to the measuring process, and store the trial."""
        outcome: Measurement | Failure
        if isinstance(compiled, Failure):
            outcome = compiled
        else:
            best_us = self._best_us * candidate.problem.batch if self._best_us else None
            try:
                self._open(candidate.problem)
                outcome = self._s._bench.call(
                    "measure", candidate.config, compiled, best_us, timeout_s=SETTINGS.limits.trial_s
                )
            except ProcessFailure as failure:
                self._opened = None
                kind = FailureKind.TIMEOUT if failure.timed_out else FailureKind.CRASH
                outcome = Failure(kind, str(failure))
            if isinstance(outcome, Failure) and outcome.kind in (FailureKind.ILLEGAL_ACCESS, FailureKind.CRASH):
                # The error may stick to the process: what follows must not be blamed for it.
                self._s._bench.close()
                self._opened = None
        return self._store(candidate.problem, candidate.config, outcome, Stage.SEARCH, None)

    def _open(self, problem: Problem) -> None:
        """Make ``problem`` the measuring process's, if it is not."""
        if self._opened and self._opened[0] == problem.key and self._s._bench.running:
            return
        try:
            policy, _ = self._s._bench.call(
                "open",
                problem,
                self._task.max_error,
                self._s._effort.seed,
                self._floor_us(problem),
                timeout_s=SETTINGS.limits.open_s,
            )
        except (ProcessFailure, RemoteError) as failure:
            # No config is at fault: the inputs or the reference could not be made.
            raise DeviceError(f"{problem} cannot be set up on {self._s._device.key}: {failure}") from failure
        self._opened = (problem.key, policy)

    def _store(
        self, problem: Problem, config: Config, outcome: Measurement | Failure, stage: Stage, warm_us: float | None
    ) -> Trial:
        state = sample(self._s._device)
        trial = Trial(
            problem=problem,
            device=self._s._device.key,
            environment=self._s._environment.key,
            kernel_version=self._task.kernel.signature.version,
            config=config,
            outcome=outcome,
            stage=stage,
            sweep=self._s._sweep,
            warm_us=warm_us,
            clock_mhz=state.clock_mhz,
            temperature_c=state.temperature_c,
            throttle=state.throttle,
            created_at=datetime.now(UTC),
            max_error=self._task.max_error,
        )
        trial = replace(trial, id=self._s._store.add_trial(trial))
        self._history[problem.key].append(trial)
        return trial

    def _stored(self, problem: Problem) -> list[Trial]:
        return self._s._store.trials_of(
            problem.key,
            device=self._s._device.key,
            environment=self._s._environment.key,
            kernel_version=self._task.kernel.signature.version,
        )

    def _refused_too_strictly(self, trial: Trial) -> bool:
        """Whether ``trial`` failed by a bound on its error that this task does not set."""
        wrong = isinstance(trial.outcome, Failure) and trial.outcome.kind is FailureKind.WRONG_RESULT
        mine = self._task.max_error
        return wrong and mine is not None and (trial.max_error is None or trial.max_error < mine)

    def _incumbent(self, problem: Problem) -> Sequence[Row]:
        snapshot = self._s._store.snapshot(self._s._device.key, channel="candidate")
        return snapshot.rows.get(problem.key, ())

    def _compiled(self, candidate: Candidate) -> Future[Resources | Failure]:
        if self._pool is not None:
            return self._pool.submit(candidate.problem, candidate.config)
        done: Future[Resources | Failure] = Future()
        done.set_result(Resources())
        return done

    def _room(self, waiting: int) -> int:
        """How many candidates to ask for: as many as compile at once, or one where nothing compiles ahead."""
        return max(0, (max(SETTINGS.window, self._pool.processes) if self._pool else 1) - waiting)

    def _space(self, problem: Problem) -> Space:
        return next(space for space in self._spaces if space.problem == problem)

    def _floor_us(self, problem: Problem) -> float:
        """The shortest time at the measured ceilings, whatever the compute precision."""
        cost = self._task.kernel.cost(problem)
        shares = [self._ceilings.share(cost.flops, peak, cost.bytes, 1.0) for peak in {cost.peak, *_faster(cost.peak)}]
        return min(filter(None, shares), default=0.0)

    def _share(self, row: Row, problem: Problem) -> float | None:
        """The roofline share of ``row``, against the rate of the precision that it computes in."""
        cost = self._task.kernel.cost(problem)
        precision = str(row.config.values.get("precision", ""))
        peak = precision if precision in _faster(cost.peak) else cost.peak
        return self._ceilings.share(cost.flops, peak, cost.bytes, row.measurement.time_us)

    def _tell(self, done: int, total: int, phase: str) -> None:
        self._s._watch(Progress(str(self._task), done, total, self._best_us, phase))


def _per_item(trial: Trial) -> float | None:
    """A trial's time for one item of its batch, in microseconds; None for a failure."""
    if isinstance(trial.outcome, Failure):
        return None
    return trial.outcome.time_us / max(1, trial.problem.batch)


def _faster(peak: str) -> tuple[str, ...]:
    """The compute precisions that products of this dtype may also run in."""
    return ("tf32",) if peak == "float32" else ()


def _newest_final(history: Sequence[Trial]) -> list[Trial]:
    """The trials of the newest interleaved final: only times of one run are compared with each other."""
    finals = [trial for trial in history if trial.stage is Stage.FINAL]
    newest = max((trial.sweep or 0 for trial in finals), default=0)
    return [trial for trial in finals if (trial.sweep or 0) == newest]
