"""After an upgrade: are the winners still right, and still the winners?

The rows published for a device in another environment, or by another version of a kernel, are verified and timed again
in this one: the best, the runners-up, the default and the library call. They go through the same trials, final and
rules as in a sweep, and what they come to is published as a sweep's results are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tunedex.core.channel import Channel
from tunedex.core.config import Config
from tunedex.core.device import Environment
from tunedex.core.display import time_words
from tunedex.core.errors import BadInput
from tunedex.core.measurement import Failure, Measurement
from tunedex.core.problem import Problem
from tunedex.core.row import Row, beats, choose
from tunedex.core.signature import Signature
from tunedex.db import Patience, Store
from tunedex.db.records import Trial
from tunedex.kernels.base import Kernel
from tunedex.kernels.forward import mapped_forward
from tunedex.kernels.registry import all_kernels, get_kernel
from tunedex.tuner.context import Context
from tunedex.tuner.devices import DetectedDevice
from tunedex.tuner.faults import NotOpened, laid_on_the_problem
from tunedex.tuner.report import Effort, Progress
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.sweep import DeviceSweep
from tunedex.tuner.task_run import TaskRun
from tunedex.tuner.tasks import Task


class Outcome(StrEnum):
    """What became of what was served for a problem.

    ``gone`` is a config that the kernel no longer has, or a kernel that is not installed; ``disturbed`` a problem whose
    final does not count, and ``unanswered`` one that could not be measured, so that the old rows of both stay.
    """

    KEPT = "kept"
    FASTER = "faster"
    SLOWER = "slower"
    REPLACED = "replaced"
    REFUSED = "refused"
    GONE = "gone"
    DISTURBED = "disturbed"
    UNANSWERED = "unanswered"


@dataclass(frozen=True)
class Published:
    """The rows of a problem as they are published, by rank, and its kernel; None where that is not installed."""

    problem: Problem
    rows: tuple[Row, ...]
    kernel: Kernel | None

    @property
    def served(self) -> Row:
        """The row that a caller without limits gets; the best of the others where each is bound to some limit."""
        return choose(self.rows) or self.rows[0]

    def is_of(self, environment: str) -> bool:
        """Whether every row was measured in that environment, with the kernel as it is."""
        version = self.kernel.signature.version if self.kernel else ""
        return all((row.environment, row.kernel_version) == (environment, version) for row in self.rows)


@dataclass(frozen=True)
class Rechecked:
    """What one problem came to.

    ``old`` is what was served, ``new`` what is served now (None: still ``old``, or nothing). ``disturbed_by`` says what
    its final was disturbed by, and ``measured_us`` what that measured of ``old``'s config, in microseconds.
    """

    problem: Problem
    outcome: Outcome
    old: Row
    new: Row | None = None
    detail: str = ""
    disturbed_by: str = ""
    measured_us: float | None = None

    @property
    def verified(self) -> bool:
        """Whether what is served now was verified in this environment, or is gone."""
        return not self.disturbed_by and self.outcome is not Outcome.UNANSWERED

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": self.problem.kernel,
            "problem": self.problem.to_dict(),
            "outcome": self.outcome.value,
            "old": _row_document(self.old),
            "new": _row_document(self.new) if self.new else None,
            "detail": self.detail,
            "disturbed_by": self.disturbed_by,
            "measured_us": self.measured_us,
        }


@dataclass
class RecheckReport:
    """What a recheck of one device came to; ``current`` problems needed none, and ``left`` were not reached."""

    detected: DetectedDevice
    environment: Environment
    revision: int = 0
    current: int = 0
    left: int = 0
    results: list[Rechecked] = field(default_factory=list)
    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """Whether every problem is answered in this environment, or no longer served."""
        return not self.interrupted and not self.left and all(result.verified for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": self.detected.device.to_dict(),
            "environment": self.environment.to_dict(),
            "revision": self.revision,
            "complete": self.complete,
            "interrupted": self.interrupted,
            "current": self.current,
            "left": self.left,
            "results": [result.to_dict() for result in self.results],
        }


class Recheck:
    """Rechecks what is published for one device; ``budget_s`` is how long it may take, None without bound."""

    def __init__(
        self,
        store: Store,
        detected: DetectedDevice,
        environment: Environment,
        budget_s: float | None = None,
        watch: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._store = store.patient(Patience(SETTINGS.store_patience_s))
        self._device = detected.device
        self._environment = environment
        self._budget_s = budget_s
        self._sweep = DeviceSweep(store, detected, environment, Effort(None, budget_s), watch)
        self._report = RecheckReport(detected, environment)

    def run(self, kernels: Sequence[str], options: dict[str, Any], *, everything: bool = False) -> RecheckReport:
        """Recheck the problems of ``kernels`` (all where empty) that are not current, for which the final of some was
        disturbed; with ``everything`` also the current ones, those first that were not tried for the longest, so that
        runs which a budget ends get to all in turn. ``options`` are stored
        with the sweep that this counts as. Ctrl-C ends it early, with what is there.

        Raises:
            UnknownKernel: one of ``kernels`` neither is installed nor has published rows.
            CannotRun: another process tunes on the device.
        """
        report = self._report
        start = time.monotonic()
        published = self._published(kernels)
        if everything:
            tried = self._store.last_tried(self._device.key)
            published.sort(key=lambda each: tried.get(each.problem.key, 0))
        environment = self._environment.key
        disturbed = self._store.disturbed(self._device.key, environment)
        unverified = {each for each in published if each.problem.key in disturbed or not each.is_of(environment)}
        stale = [each for each in published if everything or each in unverified]
        report.current = len(published) - len(stale)
        report.revision = self._store.current_revision(self._device.key, Channel.CANDIDATE)
        tasks = {each: task for each in stale if (task := self._task(each))}
        for each in stale:
            if each not in tasks:
                report.results.append(Rechecked(each.problem, Outcome.GONE, each.served, detail=_why_gone(each)))
        report.left = len(tasks)
        if tasks:
            try:
                with self._sweep.session(list(tasks.values()), options, lambda: report.complete) as context:
                    self._recheck_all(tasks, context, start)
            except KeyboardInterrupt:
                report.interrupted = True
        return report

    def _published(self, kernels: Sequence[str]) -> list[Published]:
        """What is published of ``kernels``, by kernel and then the newest first."""
        snapshot = self._store.snapshot(self._device.key, channel=Channel.CANDIDATE)
        installed = all_kernels()
        known = {problem.kernel for problem in snapshot.problems.values()}
        for name in kernels:
            if name not in known:
                get_kernel(name)
        found = [
            Published(problem, tuple(snapshot.rows[key]), installed.get(problem.kernel))
            for key, problem in snapshot.problems.items()
            if not kernels or problem.kernel in kernels
        ]
        found.sort(key=lambda each: (max(row.measured_at for row in each.rows), each.problem.key), reverse=True)
        return sorted(found, key=lambda each: each.problem.kernel)

    def _task(self, published: Published) -> Task | None:
        """The task that re-times ``published``; None where its kernel is not there, or takes no such problem now. A
        problem with rows that err more than the lossless rule allows is held to the bound that it was tuned under."""
        kernel, problem = published.kernel, published.problem
        if kernel is None or not _takes(kernel.signature, problem):
            return None
        if all(row.measurement.lossless for row in published.rows):
            return Task(kernel, (problem,))
        return Task(kernel, (problem,), self._store.loosest_bound(self._device.key, problem.key))

    def _recheck_all(self, tasks: dict[Published, Task], context: Context, start: float) -> None:
        longest_s = 0.0
        for published, task in tasks.items():
            begin = time.monotonic()
            if self._budget_s is not None and begin - start + longest_s > self._budget_s:
                return
            self._report.results.append(self._recheck(published, task, context))
            self._report.left -= 1
            longest_s = max(longest_s, time.monotonic() - begin)

    def _recheck(self, published: Published, task: Task, context: Context) -> Rechecked:
        problem, old = published.problem, published.served
        run = TaskRun(context, task)
        space = run.space(problem)
        try:
            with laid_on_the_problem("what is published cannot be read"):
                rows = mapped_forward(task.kernel, published.rows)
        except NotOpened as fault:
            return Rechecked(problem, Outcome.UNANSWERED, old, detail=str(fault))
        present = [row.config for row in rows if row.config in space or row.config == space.default]
        first = present[: 1 + SETTINGS.recheck.runners_up]
        known = [*([space.default] if space.default else []), *space.library]
        tried = run.try_all(problem, [*first, *known])
        if not any(isinstance(trial.outcome, Measurement) for trial in tried):
            # The others must not be served instead without having been looked at.
            run.try_all(problem, [config for config in present if config not in first])
        result = run.conclude(problem)
        self._report.revision = result.revision or self._report.revision
        if result.fault:
            return Rechecked(problem, Outcome.UNANSWERED, old, detail=result.fault)
        now = self._store.rows_of(self._device.key, problem.key, Channel.CANDIDATE)
        new = choose(now) or next(iter(now), None)
        spelled = next((row.config for row in rows if row.rank == old.rank), None)
        config = spelled if spelled in present else None
        last = run.newest(problem, config) if config is not None else None
        if result.contended:
            return _disturbed(problem, old, last, new, result.disturbed_by)
        outcome, detail = compare(old, config, last, new, self._environment.key)
        return Rechecked(problem, outcome, old, new, detail)


def _disturbed(problem: Problem, old: Row, trial: Trial | None, new: Row | None, disturbed_by: str) -> Rechecked:
    """What a problem came to whose final does not count: a failure does, and takes ``old`` from what is served."""
    found = trial.outcome if trial is not None else None
    new = new if new != old else None
    if refusal := _refusal(old, found):
        return Rechecked(problem, Outcome.REFUSED, old, new, refusal, disturbed_by)
    measured_us = found.time_us if isinstance(found, Measurement) else None
    detail = f"measured {time_words(measured_us)}, which does not count" if measured_us else ""
    return Rechecked(problem, Outcome.DISTURBED, old, new, detail, disturbed_by, measured_us)


def compare(
    old: Row, config: Config | None, trial: Trial | None, new: Row | None, environment: str
) -> tuple[Outcome, str]:
    """What became of ``old``, and why.

    Args:
        old: the row that was served.
        config: its config as the kernel spells it now; None where the kernel has it no longer.
        trial: the newest trial of ``config`` in ``environment``.
        new: the row that is served now.
        environment: the key of this environment.
    """
    if new is not None and new.environment != environment:
        return Outcome.UNANSWERED, "no final could be taken"
    if config is None:
        return Outcome.GONE, f"the kernel has no config {old.config} any more"
    if refusal := _refusal(old, trial.outcome if trial is not None else None):
        return Outcome.REFUSED, refusal
    if new is None:
        return Outcome.UNANSWERED, "no config could be measured"
    if new.config != config:
        return Outcome.REPLACED, ""
    before, after = old.measurement, new.measurement
    if before.policy is not after.policy:
        return Outcome.KEPT, f"timed as {after.policy.value}, before as {before.policy.value}: not compared"
    if beats(after.time_us, before.time_us):
        return Outcome.FASTER, ""
    return (Outcome.SLOWER if beats(before.time_us, after.time_us) else Outcome.KEPT), ""


def _refusal(old: Row, found: Measurement | Failure | None) -> str:
    """Why ``old`` is served no longer, by what its newest trial ``found``; "" where it may be."""
    if isinstance(found, Failure):
        return f"{found.kind.value}: {found.detail}"
    if found is not None and old.measurement.lossless and not found.lossless:
        return f"no longer lossless: its error is {found.error:.3g}"
    return ""


def _takes(signature: Signature, problem: Problem) -> bool:
    """Whether ``problem`` is still one that ``signature`` makes."""
    parameters = {**problem.dims, **problem.attributes, "layout": problem.layout, "alignment": problem.alignment}
    try:
        return signature.problem(parameters | {f"{name}_dtype": d for name, d in problem.dtypes.items()}) == problem
    except BadInput:
        return False


def _why_gone(published: Published) -> str:
    name = published.problem.kernel
    if published.kernel is None:
        return f"kernel {name} is not installed here"
    return f"kernel {name} takes no such problem any more"


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "config": row.config.to_dict(),
        "time_us": row.measurement.time_us,
        "policy": row.measurement.policy.value,
        "environment": row.environment,
        "kernel_version": row.kernel_version,
    }
