"""One task of a sweep: its search, then the final of each of its problems, then what is published."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace

from tunedex.core.config import Config
from tunedex.core.limits import Limits
from tunedex.core.measurement import Failure, FailureKind, Measurement, Resources
from tunedex.core.problem import Problem
from tunedex.core.row import Row, choose
from tunedex.db.records import Stage, Trial
from tunedex.db.selection import select
from tunedex.tuner.ceilings import roofline_share
from tunedex.tuner.compiling import compiled
from tunedex.tuner.final import finalists, take_final
from tunedex.tuner.forward import mapped_forward
from tunedex.tuner.measurer import Context, Measurer
from tunedex.tuner.nvml import Sample
from tunedex.tuner.report import Progress, Result
from tunedex.tuner.search import Candidate, Search
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.space import Space
from tunedex.tuner.spent import Part
from tunedex.tuner.tasks import Task


class TaskRun:
    """Searches one task and concludes each of its problems."""

    def __init__(self, context: Context, task: Task) -> None:
        self._c = context
        self._task = task
        self._spaces = {problem.key: Space.of(task.kernel, problem, context.device) for problem in task.problems}
        self._history: dict[str, list[Trial]] = {problem.key: self._stored(problem) for problem in task.problems}
        self._measurer = Measurer(context, task)
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
        spent = self._c.spent
        self._c.bench.prepare()
        try:
            while True:
                over = deadline is not None and time.monotonic() > deadline
                with spent.on(Part.SEARCH):
                    asked = search.ask(self._room(len(waiting)), anchors_only=over)
                waiting |= {self._compiled(candidate): candidate for candidate in asked}
                if over:
                    waiting = {f: c for f, c in waiting.items() if c in search.anchors or not f.cancel()}
                if not waiting or len(self._measurer.faults) == len(self._spaces):
                    return
                with spent.waiting():
                    future = next(iter(wait(waiting, return_when=FIRST_COMPLETED).done))
                candidate = waiting.pop(future)
                if candidate.problem.key in self._measurer.faults:
                    continue
                tried = self._try(candidate, future.result())
                if tried is not None:
                    with spent.on(Part.SEARCH):
                        search.tell(candidate, _per_item(tried))
                self._tell(len(search.told), total, "searching")
        finally:
            for future in waiting:
                future.cancel()

    def space(self, problem: Problem) -> Space:
        """The configs of ``problem``, one of the task's."""
        return self._spaces[problem.key]

    def newest(self, problem: Problem, config: Config) -> Trial | None:
        """The newest trial of ``config`` in this environment, finals included."""
        return next((trial for trial in reversed(self._history[problem.key]) if trial.config == config), None)

    def try_all(self, problem: Problem, configs: Sequence[Config]) -> list[Trial]:
        """Measure each of ``configs`` on ``problem`` now, also those tried before, and store the trials, in order.

        The list is short, and empty from where the problem cannot be set up; `conclude` says so. What was tried
        last of a config is what counts.
        """
        candidates = [Candidate(problem, config) for config in dict.fromkeys(configs)]
        futures = [self._compiled(candidate) for candidate in candidates]
        tried = []
        try:
            for n, (candidate, future) in enumerate(zip(candidates, futures, strict=True)):
                trial = self._try(candidate, future.result())
                if trial is None:
                    break
                tried.append(trial)
                self._tell(n + 1, len(candidates), "trying")
        finally:
            for future in futures:
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
            fault=self._measurer.faults.get(problem.key, ""),
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
        with self._c.spent.on(Part.STORE):
            rows = select(finals, searched, incumbent, default=default, share=share)
            revision = 0
            if rows or incumbent:  # where all fail that was served, nothing is served any more
                revision = self._c.store.publish(self._c.device.key, {problem: rows}, sweep=self._c.sweep)
        limits = Limits(max_error=self._task.max_error)
        return replace(
            result,
            best=choose(rows, limits),
            own=choose([row for row in rows if not row.config.library], limits),
            library=choose([row for row in rows if row.config.library], limits),
            revision=revision,
            fault=self._measurer.faults.get(problem.key, ""),
        )

    def _final(self, problem: Problem) -> list[Trial]:
        """The final of ``problem``, stored whole or not at all."""
        newest = {trial.config: trial.outcome for trial in self._searched(problem)}
        searched = {config: outcome for config, outcome in newest.items() if isinstance(outcome, Measurement)}
        served = next((row.config for row in self._incumbent(problem)), None)
        bears_error = self._task.max_error is not None
        configs = finalists(searched, self._spaces[problem.key], served, bears_error=bears_error)
        self._tell(len(configs), len(configs), "final")
        trials = take_final(self._measurer, problem, configs, searched)
        if trials:
            with self._c.spent.on(Part.STORE):
                ids = self._c.store.add_trials(trials)
            trials = [replace(trial, id=id_) for trial, id_ in zip(trials, ids, strict=True)]
            self._history[problem.key] += trials
        return trials

    def _try(self, candidate: Candidate, resources: Resources | Failure) -> Trial | None:
        """Measure one candidate, whatever it does to the measuring process, and store the trial; None where its
        problem cannot be set up."""
        problem, config = candidate.problem, candidate.config
        measured: tuple[Measurement | Failure, Sample] | None
        if isinstance(resources, Failure):
            measured = resources, Sample()
        else:
            measured = self._measurer.measure(problem, config, resources, self._best_us(problem))
            if measured is None:
                return None
        outcome, state = measured
        trial = self._measurer.trial(problem, config, outcome, Stage.SEARCH, state)
        with self._c.spent.on(Part.STORE):
            trial = replace(trial, id=self._c.store.add_trial(trial))
        self._history[problem.key].append(trial)
        self.new_trials += 1
        return trial

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
        return mapped_forward(
            self._task.kernel, self._c.store.rows_of(self._c.device.key, problem.key, channel="candidate")
        )

    def _best_us(self, problem: Problem) -> dict[bool, float]:
        """The best time so far of the lossless (True) and of the other configs of ``problem``, in microseconds."""
        best: dict[bool, float] = {}
        for trial in self._searched(problem):
            if isinstance(outcome := trial.outcome, Measurement):
                best[outcome.lossless] = min(best.get(outcome.lossless, outcome.time_us), outcome.time_us)
        return best

    def _compiled(self, candidate: Candidate) -> Future[Resources | Failure]:
        return compiled(self._c.pool, candidate.problem, candidate.config)

    def _room(self, waiting: int) -> int:
        """How many candidates to ask for: as many as compile at once, or one where nothing compiles ahead."""
        pool = self._c.pool
        return max(0, (max(SETTINGS.window, pool.processes) if pool else 1) - waiting)

    def _tell(self, done: int, total: int, phase: str) -> None:
        times = [us for trials in self._history.values() for t in trials if (us := _per_item(t)) is not None]
        self._c.watch(Progress(str(self._task), done, total, min(times, default=None), phase))


def _per_item(trial: Trial) -> float | None:
    """A trial's time for one item of its batch, in microseconds; None for a failure."""
    if isinstance(trial.outcome, Failure):
        return None
    return trial.outcome.time_us / max(1, trial.problem.batch)
