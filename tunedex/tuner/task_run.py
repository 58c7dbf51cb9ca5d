"""One task of a sweep: its search, then the final of each of its problems, then what is published."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from tunedex.core.config import Config
from tunedex.core.limits import Limits
from tunedex.core.measurement import Failure, FailureKind, Measurement, Resources
from tunedex.core.problem import Problem
from tunedex.core.row import Row, choose
from tunedex.db.records import Stage, Trial
from tunedex.db.selection import select
from tunedex.tuner.budget import Due
from tunedex.tuner.ceilings import roofline_share, shortest_us
from tunedex.tuner.compiling import compiled
from tunedex.tuner.context import Context
from tunedex.tuner.faults import NotOpened
from tunedex.tuner.final import Held, finalists, hold
from tunedex.tuner.history import History, per_item_us
from tunedex.tuner.nvml import Sample
from tunedex.tuner.report import Progress, Result, Searched
from tunedex.tuner.search.listing import Candidate
from tunedex.tuner.search.samplers import Sampler
from tunedex.tuner.search.search import Ended, Search
from tunedex.tuner.search.sources import Source
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.space import Space
from tunedex.tuner.tasks import Task
from tunedex.tuner.worker import FinalTimes

Compiled = Future[Resources | Failure]


class TaskRun:
    """Searches one task and concludes each of its problems.

    Every method raises `Stopped` where the worker is stopped, and `DeviceLost` where the device can be used no more.
    """

    def __init__(self, context: Context, task: Task) -> None:
        self._c = context
        self._task = task
        with context.ledger.of("search"):
            self._spaces = {problem.key: Space.of(task.kernel, problem, context.device) for problem in task.problems}
        self._history = History(context, task)
        self._faults: dict[str, str] = {}
        self._search: Search | None = None
        self._sources: Sequence[Source] = ()
        self._over = False
        self._waiting: dict[Compiled, Candidate] = {}
        self.new_trials = 0

    def prepare(self) -> None:
        """Propose the first configs and have them compiled, so that they are ready when `search` begins."""
        if self._search is None:
            with self._c.ledger.of("search"):
                self._search = self._recalled()
        self._ask(self._search, anchors_only=False)

    def search(self, seconds: float | None = None) -> None:
        """Search until the trials, the space or ``seconds`` (None: without bound) run out.

        The default, the library call and what is served are measured even when the time is over: without them nothing
        can be said to be better than what the user has.
        """
        c = self._c
        end = math.inf if seconds is None else c.budget.clock() + seconds
        if self._search is None:
            with c.ledger.of("search"):
                self._search = self._recalled()
        search = self._search
        total = search.wanted
        try:
            while len(self._faults) < len(self._spaces):
                over = c.budget.clock() >= end
                if over:
                    self._drop_all_but(search.anchors)
                self._ask(search, anchors_only=over)
                if not self._waiting:
                    self._over = over
                    return
                if (ready := self._next_compiled(end)) is None:
                    continue
                candidate, resources = ready
                needed = candidate in search.anchors
                limit_s = c.budget.trial_s(c.timeouts.trial_s, end, needed=needed)
                with self._asking(search, wanted=c.pool is not None and c.budget.clock() < end):
                    tried = self._try(candidate, resources, limit_s)
                if tried is not None:
                    with c.ledger.of("search"):
                        search.tell(candidate, per_item_us(tried))
                self._tell(len(search.told), total, "searching")
        finally:
            self.drop()

    def drop(self) -> None:
        """Have nothing compiled any more that nobody will measure here."""
        self._drop_all_but(frozenset())

    def space(self, problem: Problem) -> Space:
        """The configs of ``problem``, one of the task's."""
        return self._spaces[problem.key]

    def newest(self, problem: Problem, config: Config) -> Trial | None:
        """The newest trial of ``config`` in this environment, finals included."""
        return self._history.newest(problem, config)

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
                with self._c.ledger.of("compile_wait"):
                    resources = future.result()
                trial = self._try(candidate, resources, self._c.timeouts.trial_s)
                if trial is None:
                    break
                tried.append(trial)
                self._tell(n + 1, len(candidates), "trying")
        finally:
            for future in futures:
                future.cancel()
        return tried

    def conclude(self, problem: Problem, due: Due | None = None) -> Result:
        """Re-time the leaders of ``problem`` unless a final has already seen them all; publish what is best. ``due``
        is what the sweep has still to do, this final included; by default nothing else."""
        try:
            return self._conclude(problem, due or Due(tasks=1, finals=1))
        except NotOpened as fault:
            self._faults[problem.key] = str(fault)
            return self._conclude(problem, due or Due(tasks=1, finals=1))

    def _conclude(self, problem: Problem, due: Due) -> Result:
        searched = self._history.searched(problem)
        failures = Counter(t.outcome.kind.value for t in searched if isinstance(t.outcome, Failure))
        result = Result(
            problem=problem,
            kernel_version=self._task.kernel.signature.version,
            max_error=self._task.max_error,
            trials=len(searched),
            failures=dict(sorted(failures.items())),
            fault=self._faults.get(problem.key, ""),
            searched=self._searched(problem),
        )
        if result.fault:
            return result
        finals, disturbed_by = self._history.newest_final(problem), ""
        if not finals:
            finals, disturbed_by = self._final(problem, due)
        result = replace(result, contended=bool(disturbed_by), disturbed_by=disturbed_by)
        incumbent = self._history.incumbent(problem)
        with self._c.ledger.of("search"):
            default = self._spaces[problem.key].default
            share = self._shares(problem, incumbent)
            rows = select(finals, searched, incumbent, default=default, share=share)
        revision = 0
        if rows or incumbent:  # where all fail that was served, nothing is served any more
            with self._c.ledger.of("store"):
                revision = self._c.store.publish(self._c.device.key, {problem: rows}, sweep=self._c.sweep)
        limits = Limits(max_error=self._task.max_error)
        best = choose(rows, limits)
        return replace(
            result,
            best=best,
            own=choose([row for row in rows if not row.config.library], limits),
            library=choose([row for row in rows if row.config.library], limits),
            revision=revision,
            fault=self._faults.get(problem.key) or ("" if best else self._spaces[problem.key].emptied_by),
        )

    def _final(self, problem: Problem, due: Due) -> tuple[list[Trial], str]:
        """The final of ``problem``, stored whole or not at all, and what disturbed it."""
        c = self._c
        measured = self._history.measured(problem)
        space = self._spaces[problem.key]
        incumbent = (row.config for row in self._history.incumbent(problem)[:1])
        known = [*([space.default] if space.default else []), *space.library, *incumbent]
        runs = self._history.runs(problem)
        bears_error = self._task.max_error is not None
        configs = finalists(measured, runs, known=known, bears_error=bears_error, compiled=c.pool is None)
        if not configs:
            return [], ""
        seconds = c.budget.final_s(due)
        begin = c.budget.clock()

        def call(configs: Sequence[Config]) -> FinalTimes | None:
            c.watch(Progress(str(problem), len(configs), len(configs), None, "final", c.selector))
            self._open(problem)
            round_us = sum(measured[config].time_us for config in configs)
            return c.worker.final(configs, seconds, known, round_us)

        held: Held | None = None
        with c.ledger.of("final"), self._at_fault(problem):
            c.worker.renew()
            held = hold(configs, measured, call, again=lambda: c.budget.allows_another(due, seconds))
        if held is None:
            return [], ""
        trials = [
            replace(self._trial(problem, config, outcome, held.state), stage=Stage.FINAL, warm_us=warm_us)
            for config, (outcome, warm_us) in held.outcomes.items()
        ]
        stored = self._history.add(trials)
        c.budget.held(c.budget.clock() - begin, seconds)
        return stored, held.disturbed_by

    def _shares(self, problem: Problem, incumbent: Sequence[Row]) -> Callable[[Row], float | None]:
        """What gives a row's roofline share, which stays with its time as published, also where the ceilings rise."""
        published = {(row.config.key, row.measurement.time_us): row.roofline_share for row in incumbent}

        def share(row: Row) -> float | None:
            time_us = row.measurement.time_us
            if known := published.get((row.config.key, time_us)):
                return known
            return roofline_share(self._task.kernel, problem, row.config, time_us, self._c.ceilings)

        return share

    def _recalled(self) -> Search:
        """The task's search as it stands after what was tried so far, in this sweep or before."""
        effort = self._c.effort
        # In a new environment, or with a new version of the kernel, what is served has no time yet.
        winners: list[Candidate] = []
        for problem in self._task.problems:
            with self._at_fault(problem):
                rows = self._history.incumbent(problem)[: SETTINGS.searching.winners]
                winners += [Candidate(problem, row.config) for row in rows]
        wanted = self._wanted()
        if effort.sampler is Sampler.AUTO and not effort.cold and wanted is not None:
            self._sources = self._history.elsewhere()
        search = Search(
            list(self._spaces.values()),
            sampler=effort.sampler,
            trials=wanted,
            seed=effort.seed,
            winners=winners,
            sources=self._sources,
            stops=effort.stops,
        )
        for problem in self._task.problems:
            newest = {trial.config: trial for trial in self._history.searched(problem)}
            for trial in newest.values():
                if not self._history.says_nothing(trial) and not self._history.ended_too_soon(trial):
                    search.recall(Candidate(problem, trial.config), per_item_us(trial))
        return search

    def _wanted(self) -> int | None:
        """How many configs are to be tried of all the task's problems: the trials of each, and no more than it has."""
        each = self._c.effort.trials
        return None if each is None else sum(min(each, space.size) for space in self._spaces.values())

    def _searched(self, problem: Problem) -> Searched | None:
        """How far the search came; None where there was none."""
        if (search := self._search) is None:
            return None
        size = self._spaces[problem.key].size
        return Searched(
            task=str(self._task),
            tried=len(search.told),
            wanted=search.wanted,
            wanted_here=min(self._c.effort.trials or size, size),
            known_alone=search.known_alone,
            ended=Ended.BUDGET if self._over and len(search.told) < search.wanted else search.ended,
            sources=self._sources,
        )

    @contextmanager
    def _at_fault(self, problem: Problem) -> Iterator[None]:
        """Note what keeps ``problem`` from being measured, in the block, as its fault."""
        try:
            yield
        except NotOpened as fault:
            self._faults[problem.key] = str(fault)

    def _ask(self, search: Search, *, anchors_only: bool) -> None:
        """Have as many candidates proposed and compiling as there is room for."""
        with self._c.ledger.of("search"):
            self._fill(search, anchors_only=anchors_only)

    @contextmanager
    def _asking(self, search: Search, *, wanted: bool) -> Iterator[None]:
        """Where it is ``wanted``, `_ask` on another thread while the block measures: the device waits for no proposal.
        What is proposed is the same, since the block tells the search nothing."""
        if not wanted:
            yield
            return
        with ThreadPoolExecutor(1) as asker:
            asked = asker.submit(self._fill, search, anchors_only=False)
            try:
                yield
            finally:
                with self._c.ledger.of("search"):
                    asked.result()

    def _fill(self, search: Search, *, anchors_only: bool) -> None:
        pool = self._c.pool
        room = (max(SETTINGS.window, pool.processes) if pool else 1) - len(self._waiting)
        for candidate in search.ask(max(0, room), anchors_only=anchors_only):
            self._waiting[self._compiled(candidate)] = candidate

    def _next_compiled(self, end: float) -> tuple[Candidate, Resources | Failure] | None:
        """The first candidate that is compiled, in the order in which they were proposed; none where the time for
        searching ends first, or where its problem cannot be set up."""
        c = self._c
        done: set[Compiled] = set()
        with c.ledger.of("compile_wait"):
            # Past the end only what a sweep must have is waited for, however long it takes.
            overdue = c.budget.clock() >= end
            while not done and (overdue or c.budget.clock() < end):
                c.worker.check()
                done = wait(self._waiting, timeout=SETTINGS.stop_poll_s, return_when=FIRST_COMPLETED).done
        future = next((each for each in self._waiting if each in done), None)
        if future is None:
            return None
        candidate = self._waiting.pop(future)
        if candidate.problem.key in self._faults:
            return None
        if c.pool is not None:
            c.ledger.compiled()
        return candidate, future.result()

    def _drop_all_but(self, kept: frozenset[Candidate]) -> None:
        """Wait for no compilation any more but of ``kept``. One under way ends where nobody looks."""
        for future in [f for f, candidate in self._waiting.items() if candidate not in kept]:
            future.cancel()
            del self._waiting[future]

    def _try(self, candidate: Candidate, resources: Resources | Failure, limit_s: float) -> Trial | None:
        """Measure one candidate, whatever it does to the measuring process, and store the trial.

        None, and nothing stored, where its problem cannot be set up, or where it took longer than ``limit_s`` and
        that is less than a trial may take: it is the budget that ended it then.
        """
        c, problem, config = self._c, candidate.problem, candidate.config
        outcome: Measurement | Failure
        state = Sample()
        if isinstance(resources, Failure):
            outcome = resources
        else:
            shared = True
            while shared:  # for want of memory that others may have kept, it is tried again where there were no others
                with self._at_fault(problem):
                    self._open(problem)
                if problem.key in self._faults:
                    return None
                c.worker.prepare()
                shared = c.worker.searched
                outcome, state = c.worker.measure(config, resources, self._history.best_us(problem), limit_s)
                shared = shared and isinstance(outcome, Failure) and outcome.kind is FailureKind.OOM
            cut = limit_s < c.timeouts.trial_s
            if cut and isinstance(outcome, Failure) and outcome.kind is FailureKind.TIMEOUT:
                return None
        (trial,) = self._history.add([self._trial(problem, config, outcome, state)], c.worker.generation)
        self.new_trials += 1
        return trial

    def _open(self, problem: Problem) -> None:
        with self._c.ledger.of("search"):
            floor_us = shortest_us(self._task.kernel, problem, self._c.ceilings)
            policy = self._history.policy(problem)
        self._c.worker.open(problem, self._task.max_error, floor_us, self._c.ceilings, policy)

    def _trial(self, problem: Problem, config: Config, outcome: Measurement | Failure, state: Sample) -> Trial:
        return Trial(
            problem=problem,
            device=self._c.device.key,
            environment=self._c.environment,
            kernel_version=self._task.kernel.signature.version,
            config=config,
            outcome=outcome,
            sweep=self._c.sweep,
            clock_mhz=state.clock_mhz,
            temperature_c=state.temperature_c,
            throttle=state.throttle,
            contended=state.contended,
            created_at=datetime.now(UTC),
            max_error=self._task.max_error,
        )

    def _compiled(self, candidate: Candidate) -> Compiled:
        return compiled(self._c.pool, candidate.problem, candidate.config)

    def _tell(self, done: int, total: int, phase: str) -> None:
        best_us, per_item = self._history.best_per_item_us(), len(self._task.problems) > 1
        if best_us is not None and not per_item:
            best_us *= max(1, self._task.problems[0].batch)
        self._c.watch(Progress(str(self._task), done, total, best_us, phase, self._c.selector, per_item))
