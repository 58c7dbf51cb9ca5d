"""What is known of a task's problems: their trials on this device, in this environment, and what was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunedex.core.config import Config
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.db.records import Stage, Trial
from tunedex.kernels.forward import mapped_forward
from tunedex.tuner.compiling import COMPILING
from tunedex.tuner.context import Context
from tunedex.tuner.faults import laid_on_the_problem
from tunedex.tuner.search.listing import Candidate
from tunedex.tuner.search.sources import Source, nearest
from tunedex.tuner.tasks import Task

#: Times of one run of a measuring process agree; those of two may differ by a tenth, whatever the config.
Run = tuple[int, int]

#: Failures for want of memory or time, which other work on the device may have taken.
_WANTING = frozenset({FailureKind.OOM, FailureKind.TIMEOUT, FailureKind.CRASH})


class History:
    """The trials of ``task``'s problems, read once and kept up with what `add` stores."""

    def __init__(self, context: Context, task: Task) -> None:
        self._c = context
        self._task = task
        with context.ledger.of("store"):
            self._trials = {problem.key: self._stored(problem) for problem in task.problems}
        self._best_us: dict[str, dict[bool, float]] = {problem.key: {} for problem in task.problems}
        self._best_per_item_us: float | None = None
        for trials in self._trials.values():
            for trial in trials:
                self._weigh(trial)
        #: Of those that were stored here; a task that another device gave back has trials of its own.
        self._generations: dict[int | None, int] = {}
        self._options: dict[int | None, Mapping[str, Any]] = {}

    def add(self, trials: Sequence[Trial], generation: int = 0) -> list[Trial]:
        """Store ``trials``, all or none, and give them back with their numbers. ``generation`` is of the process that
        they were measured in."""
        with self._c.ledger.of("store"):
            ids = self._c.store.add_trials(trials)
        numbered = [replace(trial, id=id_) for trial, id_ in zip(trials, ids, strict=True)]
        for trial in numbered:
            self._trials[trial.problem.key].append(trial)
            self._weigh(trial)
            self._generations[trial.id] = generation
        return numbered

    def searched(self, problem: Problem) -> list[Trial]:
        """The trials of searching, in the order in which they were stored."""
        return [trial for trial in self._trials[problem.key] if trial.stage is Stage.SEARCH]

    def newest(self, problem: Problem, config: Config) -> Trial | None:
        """The newest trial of ``config``, finals included."""
        return next((trial for trial in reversed(self._trials[problem.key]) if trial.config == config), None)

    def policy(self, problem: Problem) -> Policy | None:
        """The policy that all of ``problem``'s trials are timed under: that of the first; None before it."""
        outcomes = (trial.outcome for trial in self._trials[problem.key])
        return next((outcome.policy for outcome in outcomes if isinstance(outcome, Measurement)), None)

    def measured(self, problem: Problem) -> dict[Config, Measurement]:
        """What searching measured of each config when it last tried it; not of those that failed then."""
        newest = {trial.config: trial.outcome for trial in self.searched(problem)}
        return {config: outcome for config, outcome in newest.items() if isinstance(outcome, Measurement)}

    def runs(self, problem: Problem) -> dict[Config, Run]:
        """Which run of a measuring process the newest time of each config is of, as far as is known: the sweep, and of
        this one the process, or another device's (-1)."""
        return {t.config: (t.sweep or 0, self._generations.get(t.id, -1)) for t in self.searched(problem)}

    def newest_final(self, problem: Problem) -> list[Trial]:
        """The trials of the newest final, if nothing was measured since: only times of one run are compared. Empty
        where other work disturbed it."""
        trials = self._trials[problem.key]
        finals = [trial for trial in trials if trial.stage is Stage.FINAL]
        newest = max((trial.sweep or 0 for trial in finals), default=0)
        finals = [trial for trial in finals if (trial.sweep or 0) == newest]
        measured = [t.id or 0 for t in trials if t.stage is Stage.SEARCH and isinstance(t.outcome, Measurement)]
        seen = max((trial.id or 0 for trial in finals), default=0)
        disturbed = any(trial.contended for trial in finals)
        return finals if seen > max(measured, default=0) and not disturbed else []

    def says_nothing(self, trial: Trial) -> bool:
        """Whether ``trial`` failed in a way that says nothing of its config here: by a bound on its error that this
        task does not set, or for want of what other work on the device may have taken."""
        if not isinstance(trial.outcome, Failure):
            return False
        if trial.outcome.kind is FailureKind.WRONG_RESULT:
            mine = self._task.max_error
            return mine is not None and (trial.max_error is None or trial.max_error < mine)
        return bool(trial.contended) and trial.outcome.kind in _WANTING

    def elsewhere(self) -> list[Source]:
        """What the kernel's trials of other shapes, on other devices and in other environments say, the nearest
        first."""
        store, signature = self._c.store, self._task.kernel.signature
        with self._c.ledger.of("store"):
            tried = store.tried(signature.kernel, signature.version)
        found = []
        for source in nearest(signature, self._c.device, self._c.environment, self._task.problems, tried):
            there = source.tried
            with self._c.ledger.of("store"):
                trials = store.trials_of(
                    there.problem.key,
                    device=there.device,
                    environment=there.environment,
                    kernel_version=signature.version,
                    stage=Stage.SEARCH,
                )
            newest = {trial.config: trial for trial in trials if not self.says_nothing(trial)}
            times = {Candidate(source.near, config): per_item_us(trial) for config, trial in newest.items()}
            if any(time is not None for time in times.values()):
                found.append(replace(source, times=times))
        return found

    def ended_too_soon(self, trial: Trial) -> bool:
        """Whether ``trial`` was ended by a limit on its time that is longer in this sweep, or that is not known."""
        outcome = trial.outcome
        if not isinstance(outcome, Failure) or outcome.kind is not FailureKind.TIMEOUT or trial.sweep == self._c.sweep:
            return False
        name = "compile_s" if outcome.detail.startswith(COMPILING) else "trial_s"
        limit_s = self._limits(trial.sweep).get(name)
        return not isinstance(limit_s, int | float) or limit_s < self._c.timeouts.of_trials[name]

    def best_us(self, problem: Problem) -> dict[bool, float]:
        """The best time so far of the lossless (True) and of the other configs of ``problem``, in microseconds."""
        return dict(self._best_us[problem.key])

    def best_per_item_us(self) -> float | None:
        """The best time so far for one item of a batch, of all the task's problems, in microseconds."""
        return self._best_per_item_us

    def incumbent(self, problem: Problem) -> Sequence[Row]:
        """What is published of ``problem``, configs spelled as the kernel spells them now.

        Raises:
            NotOpened: the kernel's own code that spells them fails.
        """
        with self._c.ledger.of("store"):
            rows = self._c.store.rows_of(self._c.device.key, problem.key, channel="candidate")
        with laid_on_the_problem("what is published cannot be read"):
            mapped = mapped_forward(self._task.kernel, rows)
            for row in mapped:
                row.config.check()
            return mapped

    def _limits(self, sweep: int | None) -> Mapping[str, Any]:
        """The options of the sweep of that number; none where it is not there."""
        if sweep not in self._options:
            with self._c.ledger.of("store"):
                found = self._c.store.sweep(sweep) if sweep is not None else None
            self._options[sweep] = found.options if found else {}
        return self._options[sweep]

    def _weigh(self, trial: Trial) -> None:
        """Keep ``trial``'s time where it is the best so far, which is asked for beside every trial."""
        item_us = per_item_us(trial)
        if item_us is not None:
            self._best_per_item_us = min(item_us, self._best_per_item_us or item_us)
        if isinstance(outcome := trial.outcome, Measurement) and trial.stage is Stage.SEARCH:
            best = self._best_us[trial.problem.key]
            best[outcome.lossless] = min(best.get(outcome.lossless, outcome.time_us), outcome.time_us)

    def _stored(self, problem: Problem) -> list[Trial]:
        return self._c.store.trials_of(
            problem.key,
            device=self._c.device.key,
            environment=self._c.environment,
            kernel_version=self._task.kernel.signature.version,
        )


def per_item_us(trial: Trial) -> float | None:
    """A trial's time for one item of its batch, in microseconds; None for a failure."""
    if isinstance(trial.outcome, Failure):
        return None
    return trial.outcome.time_us / max(1, trial.problem.batch)
