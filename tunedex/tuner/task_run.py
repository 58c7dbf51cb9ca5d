"""One task of a sweep: its search, then the final of each of its problems, then what is published."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.limits import Limits
from tunedex.core.measurement import Failure, FailureKind, Measurement, Resources
from tunedex.core.problem import Problem
from tunedex.core.row import Row, choose
from tunedex.db import Store
from tunedex.db.records import Ceilings, Stage, Trial
from tunedex.db.selection import select
from tunedex.tuner.bench import FinalTime
from tunedex.tuner.ceilings import roofline_share, shortest_us
from tunedex.tuner.compiling import CompilePool
from tunedex.tuner.nvml import Sample
from tunedex.tuner.process import ChildProcess, ProcessFailure, RemoteError
from tunedex.tuner.report import Effort, Progress, Result
from tunedex.tuner.search import Candidate, Search
from tunedex.tuner.settings import SETTINGS, Timeouts
from tunedex.tuner.space import Space
from tunedex.tuner.tasks import Task

#: Failures after which the measuring process is not to be trusted: what sticks to it would be held against others.
_STICKY = frozenset({FailureKind.ILLEGAL_ACCESS, FailureKind.CRASH, FailureKind.TIMEOUT})


@dataclass(frozen=True)
class Context:
    """What the tasks of a device's sweep share. ``environment`` is a key, ``sweep`` the number in the store."""

    store: Store
    device: Device
    environment: str
    effort: Effort
    sweep: int
    ceilings: Ceilings
    bench: ChildProcess
    pool: CompilePool | None
    watch: Callable[[Progress], None]
    timeouts: Timeouts = SETTINGS.timeouts


class TaskRun:
    """Searches one task and concludes each of its problems."""

    def __init__(self, context: Context, task: Task) -> None:
        self._c = context
        self._task = task
        self._spaces = {problem.key: Space.of(task.kernel, problem, context.device) for problem in task.problems}
        self._history: dict[str, list[Trial]] = {problem.key: self._stored(problem) for problem in task.problems}
        self._faults: dict[str, str] = {}
        self._opened: str | None = None
        self.new_trials = 0

    def search(self, seconds: float | None) -> None:
        """Search until the trials, the time or the space run out.

        The default and the library call are measured even when the time is over: without them nothing can be said
        to be better than what the user has.
        """
        effort = self._c.effort
        size = sum(map(len, self._spaces.values()))
        trials = effort.trials if effort.trials is not None else size
        spaces = list(self._spaces.values())
        search = Search(spaces, sampler=effort.sampler, trials=trials, seed=effort.seed)
        for problem in self._task.problems:
            for trial in self._searched(problem):
                if not self._refused_too_strictly(trial):
                    search.recall(Candidate(problem, trial.config), _per_item(trial))
        total = min(trials, search.size)
        deadline = None if seconds is None else time.monotonic() + seconds
        waiting: dict[Future[Resources | Failure], Candidate] = {}
        try:
            while True:
                over = deadline is not None and time.monotonic() > deadline
                for candidate in search.ask(self._room(len(waiting)), anchors_only=over):
                    waiting[self._compiled(candidate)] = candidate
                if over:
                    waiting = {f: c for f, c in waiting.items() if c in search.anchors or not f.cancel()}
                if not waiting or len(self._faults) == len(self._spaces):
                    return
                future = next(iter(wait(waiting, return_when=FIRST_COMPLETED).done))
                candidate = waiting.pop(future)
                if candidate.problem.key in self._faults:
                    continue
                tried = self._try(candidate, future.result())
                if tried is not None:
                    search.tell(candidate, _per_item(tried))
                self._tell(len(search.told), total, "searching")
        finally:
            for future in waiting:
                future.cancel()

    def try_all(self, problem: Problem, configs: Sequence[Config]) -> list[Trial]:
        """Measure each of ``configs`` on ``problem`` now, also those tried before, and store the trials, in order.

        The list is short, and empty from where the problem cannot be set up; `conclude` says so. What was tried
        last of a config is what counts.
        """
        candidates = [Candidate(problem, config) for config in dict.fromkeys(configs)]
        compiled = [self._compiled(candidate) for candidate in candidates]
        tried = []
        try:
            for n, (candidate, future) in enumerate(zip(candidates, compiled, strict=True)):
                trial = self._try(candidate, future.result())
                if trial is None:
                    break
                tried.append(trial)
                self._tell(n + 1, len(candidates), "trying")
        finally:
            for future in compiled:
                future.cancel()
        return tried

    def conclude(self, problem: Problem) -> Result:
        """Re-time the leaders of ``problem`` unless a final has already seen them all; publish what is best."""
        searched = self._searched(problem)
        failures = Counter(t.outcome.kind.value for t in searched if isinstance(t.outcome, Failure))
        result = Result(
            problem=problem,
            kernel_version=self._task.kernel.signature.version,
            max_error=self._task.max_error,
            trials=len(searched),
            failures=dict(sorted(failures.items())),
            fault=self._faults.get(problem.key, ""),
        )
        if result.fault:
            return result
        finals = self._newest_final(problem) or self._final(problem)
        incumbent = self._incumbent(problem)
        # A share stays with its time as published, also where the ceilings have risen since.
        shares = {(row.config.key, row.measurement.time_us): row.roofline_share for row in incumbent}

        def share(row: Row) -> float | None:
            time_us = row.measurement.time_us
            if published := shares.get((row.config.key, time_us)):
                return published
            return roofline_share(self._task.kernel, problem, row.config, time_us, self._c.ceilings)

        default = self._spaces[problem.key].default
        rows = select(finals, searched, incumbent, default=default, share=share)
        revision = self._c.store.publish(self._c.device.key, {problem: rows}, sweep=self._c.sweep) if rows else 0
        limits = Limits(max_error=self._task.max_error)
        return replace(
            result,
            best=choose(rows, limits),
            own=choose([row for row in rows if not row.config.library], limits),
            library=choose([row for row in rows if row.config.library], limits),
            revision=revision,
            fault=self._faults.get(problem.key, ""),
        )

    def _final(self, problem: Problem) -> list[Trial]:
        """The interleaved final, stored whole or not at all. A config that fails in it is left out and the others
        are timed again; one whose failure cannot be laid on any config leaves things as they were."""
        newest = {trial.config: trial.outcome for trial in self._searched(problem)}
        searched = {config: outcome for config, outcome in newest.items() if isinstance(outcome, Measurement)}
        configs = self._finalists(problem, searched)
        failed: dict[Config, Failure] = {}
        times: list[FinalTime | Failure] = []
        state = Sample()
        while configs and not times:
            self._tell(len(configs), len(configs), "final")
            called = self._call_final(problem, configs)
            if called is None:
                failed |= self._culprits(problem, configs)
                rest = [config for config in configs if config not in failed]
                if not rest or rest == configs or problem.key in self._faults:
                    return []
                configs = rest
                continue
            times, state = called
            bad = {c: t for c, t in zip(configs, times, strict=True) if isinstance(t, Failure)}
            if any(failure.kind in _STICKY for failure in bad.values()):
                self._distrust()
                # Only the first may be at fault: what follows it ran in a process that it had broken.
                first = next(config for config in configs if config in bad)
                failed[first] = bad[first]
                configs = [config for config in configs if config != first]
                times = []
        outcomes: dict[Config, tuple[Measurement | Failure, float | None]] = {c: (f, None) for c, f in failed.items()}
        for config, timed in zip(configs, times, strict=True):
            outcomes[config] = _timed(searched[config], timed)
        if not any(isinstance(outcome, Measurement) for outcome, _ in outcomes.values()):
            return []
        trials = [
            self._trial(problem, config, outcome, Stage.FINAL, warm_us, state)
            for config, (outcome, warm_us) in outcomes.items()
        ]
        ids = self._c.store.add_trials(trials)
        trials = [replace(trial, id=id_) for trial, id_ in zip(trials, ids, strict=True)]
        self._history[problem.key] += trials
        return trials

    def _call_final(
        self, problem: Problem, configs: Sequence[Config]
    ) -> tuple[list[FinalTime | Failure], Sample] | None:
        """The times of ``configs``; None where the measuring process fails, by whose fault it does not say."""
        if not self._open(problem):
            return None
        try:
            called: tuple[list[FinalTime | Failure], Sample] = self._c.bench.call(
                "final", configs, timeout_s=self._c.timeouts.final_s
            )
        except (ProcessFailure, RemoteError):
            self._distrust()
            return None
        return called

    def _culprits(self, problem: Problem, configs: Sequence[Config]) -> dict[Config, Failure]:
        """Which of ``configs`` the measuring process does not survive when each is timed alone."""
        failure = Failure(FailureKind.CRASH, "ends the measuring process in the final")
        return {config: failure for config in configs if self._call_final(problem, [config]) is None}

    def _finalists(self, problem: Problem, searched: Mapping[Config, Measurement]) -> list[Config]:
        bears_error = self._task.max_error is not None
        settings = SETTINGS.finals
        ranked = sorted(searched, key=lambda config: (searched[config].time_us, config.key))
        lossless = [config for config in ranked if searched[config].lossless]
        lossy = [config for config in ranked if not searched[config].lossless]
        own = [config for config in lossless if not config.library]
        # Other work on the machine lifts a median, less so a low quantile: what it held back gets its chance here.
        quiet = sorted(own, key=lambda config: (searched[config].p20_us, config.key))
        space = self._spaces[problem.key]
        wanted = [
            *lossless[: settings.leaders],
            *own[:1],
            *quiet[: settings.quiet_leaders],
            *lossy[: settings.leaders if bears_error else settings.lossy_leaders],
            *([space.default] if space.default else []),
            *space.library,
            *(row.config for row in self._incumbent(problem)[:1]),
        ]
        return [config for config in dict.fromkeys(wanted) if config in searched]

    def _try(self, candidate: Candidate, compiled: Resources | Failure) -> Trial | None:
        """Measure one candidate, whatever it does to the measuring process, and store the trial; None where its
        problem cannot be set up."""
        outcome: Measurement | Failure
        state = Sample()
        if isinstance(compiled, Failure):
            outcome = compiled
        elif not self._open(candidate.problem):
            return None
        else:
            try:
                outcome, state = self._c.bench.call(
                    "measure",
                    candidate.config,
                    compiled,
                    self._best_us(candidate.problem),
                    timeout_s=self._c.timeouts.trial_s,
                )
            except ProcessFailure as failure:
                outcome = Failure(failure.kind, str(failure))
            except RemoteError as error:
                outcome = Failure(FailureKind.CRASH, str(error))
            if isinstance(outcome, Failure) and outcome.kind in _STICKY:
                self._distrust()
        trial = self._trial(candidate.problem, candidate.config, outcome, Stage.SEARCH, None, state)
        trial = replace(trial, id=self._c.store.add_trial(trial))
        self._history[candidate.problem.key].append(trial)
        self.new_trials += 1
        return trial

    def _open(self, problem: Problem) -> bool:
        """Make ``problem`` the measuring process's, if it is not; False, and a fault, where that cannot be."""
        if self._opened == problem.key and self._c.bench.running:
            return True
        floor_us = shortest_us(self._task.kernel, problem, self._c.ceilings)
        try:
            arguments = (problem, self._task.max_error, floor_us, self._c.ceilings)
            self._c.bench.call("open", *arguments, timeout_s=self._c.timeouts.open_s)
        except (ProcessFailure, RemoteError) as failure:
            # No config is at fault: the inputs or the reference could not be made.
            self._distrust()
            self._faults[problem.key] = f"cannot be set up: {failure}"
            return False
        self._opened = problem.key
        return True

    def _distrust(self) -> None:
        """Give up the measuring process; the next call starts a fresh one."""
        self._c.bench.close()
        self._opened = None

    def _trial(
        self,
        problem: Problem,
        config: Config,
        outcome: Measurement | Failure,
        stage: Stage,
        warm_us: float | None,
        state: Sample,
    ) -> Trial:
        return Trial(
            problem=problem,
            device=self._c.device.key,
            environment=self._c.environment,
            kernel_version=self._task.kernel.signature.version,
            config=config,
            outcome=outcome,
            stage=stage,
            sweep=self._c.sweep,
            warm_us=warm_us,
            clock_mhz=state.clock_mhz,
            temperature_c=state.temperature_c,
            throttle=state.throttle,
            created_at=datetime.now(UTC),
            max_error=self._task.max_error,
        )

    def _stored(self, problem: Problem) -> list[Trial]:
        return self._c.store.trials_of(
            problem.key,
            device=self._c.device.key,
            environment=self._c.environment,
            kernel_version=self._task.kernel.signature.version,
        )

    def _searched(self, problem: Problem) -> list[Trial]:
        return [trial for trial in self._history[problem.key] if trial.stage is Stage.SEARCH]

    def _newest_final(self, problem: Problem) -> list[Trial]:
        """The trials of the newest final, if nothing was measured since: only times of one run are compared."""
        history = self._history[problem.key]
        finals = [trial for trial in history if trial.stage is Stage.FINAL]
        newest = max((trial.sweep or 0 for trial in finals), default=0)
        finals = [trial for trial in finals if (trial.sweep or 0) == newest]
        measured = [t.id or 0 for t in history if t.stage is Stage.SEARCH and isinstance(t.outcome, Measurement)]
        seen = max((trial.id or 0 for trial in finals), default=0)
        return finals if seen > max(measured, default=0) else []

    def _refused_too_strictly(self, trial: Trial) -> bool:
        """Whether ``trial`` failed by a bound on its error that this task does not set."""
        wrong = isinstance(trial.outcome, Failure) and trial.outcome.kind is FailureKind.WRONG_RESULT
        mine = self._task.max_error
        return wrong and mine is not None and (trial.max_error is None or trial.max_error < mine)

    def _incumbent(self, problem: Problem) -> Sequence[Row]:
        return self._c.store.rows_of(self._c.device.key, problem.key, channel="candidate")

    def _best_us(self, problem: Problem) -> dict[bool, float]:
        """The best time so far of the lossless (True) and of the other configs of ``problem``, in microseconds."""
        best: dict[bool, float] = {}
        for trial in self._searched(problem):
            if isinstance(outcome := trial.outcome, Measurement):
                best[outcome.lossless] = min(best.get(outcome.lossless, outcome.time_us), outcome.time_us)
        return best

    def _compiled(self, candidate: Candidate) -> Future[Resources | Failure]:
        if self._c.pool is not None:
            return self._c.pool.submit(candidate.problem, candidate.config)
        done: Future[Resources | Failure] = Future()
        done.set_result(Resources())
        return done

    def _room(self, waiting: int) -> int:
        """How many candidates to ask for: as many as compile at once, or one where nothing compiles ahead."""
        pool = self._c.pool
        return max(0, (max(SETTINGS.window, pool.processes) if pool else 1) - waiting)

    def _tell(self, done: int, total: int, phase: str) -> None:
        times = [us for trials in self._history.values() for t in trials if (us := _per_item(t)) is not None]
        self._c.watch(Progress(str(self._task), done, total, min(times, default=None), phase))


def _timed(found: Measurement, timed: FinalTime | Failure) -> tuple[Measurement | Failure, float | None]:
    """What a final says of a config whose search gave ``found``, and its time with a warm cache."""
    if isinstance(timed, Failure):
        return timed, None
    outcome = replace(
        found,
        time_us=timed.time_us,
        p20_us=timed.p20_us,
        p80_us=timed.p80_us,
        samples=timed.samples,
        energy_j=timed.energy_j,
    )
    return outcome, timed.warm_us


def _per_item(trial: Trial) -> float | None:
    """A trial's time for one item of its batch, in microseconds; None for a failure."""
    if isinstance(trial.outcome, Failure):
        return None
    return trial.outcome.time_us / max(1, trial.problem.batch)
