"""One task's calls of the measuring process, whatever its configs do to that process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import Failure, FailureKind, Measurement, Resources
from tunedex.core.problem import Problem
from tunedex.db import Store
from tunedex.db.records import Ceilings, Stage, Trial
from tunedex.tuner.bench import FinalTime
from tunedex.tuner.ceilings import shortest_us
from tunedex.tuner.compiling import CompilePool
from tunedex.tuner.nvml import Sample
from tunedex.tuner.process import ProcessFailure, RemoteError
from tunedex.tuner.report import Effort, Progress
from tunedex.tuner.settings import SETTINGS, Timeouts
from tunedex.tuner.spent import Part, Spent
from tunedex.tuner.tasks import Task
from tunedex.tuner.worker import Worker

#: Failures after which the measuring process is not to be trusted: what sticks to it would be held against others.
STICKY = frozenset({FailureKind.ILLEGAL_ACCESS, FailureKind.CRASH, FailureKind.TIMEOUT})


@dataclass(frozen=True)
class Context:
    """What the tasks of a device's sweep share. ``environment`` is a key, ``sweep`` the number in the store."""

    store: Store
    device: Device
    environment: str
    effort: Effort
    sweep: int
    ceilings: Ceilings
    bench: Worker
    pool: CompilePool | None
    watch: Callable[[Progress], None]
    spent: Spent
    timeouts: Timeouts = SETTINGS.timeouts


class Measurer:
    """``faults`` says by problem key what could not be set up at all."""

    def __init__(self, context: Context, task: Task) -> None:
        self._c = context
        self._task = task
        self._opened: str | None = None
        #: Whether the process has measured anything since it started.
        self._used = False
        self.faults: dict[str, str] = {}

    def measure(
        self, problem: Problem, config: Config, compiled: Resources, best_us: Mapping[bool, float]
    ) -> tuple[Measurement | Failure, Sample] | None:
        """See `Bench.measure`; None where ``problem`` cannot be set up."""
        if not self._open(problem):
            return None
        self._used = True
        outcome: Measurement | Failure
        state = Sample()
        with self._c.spent.on(Part.MEASURE):
            try:
                outcome, state = self._c.bench.call(
                    "measure", config, compiled, best_us, timeout_s=self._c.timeouts.trial_s
                )
            except ProcessFailure as failure:
                outcome = Failure(failure.kind, str(failure))
            except RemoteError as error:
                outcome = Failure(FailureKind.CRASH, str(error))
        if isinstance(outcome, Failure) and outcome.kind in STICKY:
            self.distrust()
        return outcome, state

    def final(self, problem: Problem, configs: Sequence[Config]) -> tuple[list[FinalTime | Failure], Sample] | None:
        """See `Bench.final`, in a process that has searched nothing; None where the process fails, by whose fault it
        does not say."""
        with self._c.spent.on(Part.FINAL):
            if self._used:
                self._c.bench.renew()
                self._opened, self._used = None, False
            if not self._open(problem):
                return None
            try:
                called: tuple[list[FinalTime | Failure], Sample] = self._c.bench.call(
                    "final", configs, timeout_s=self._c.timeouts.final_s
                )
            except (ProcessFailure, RemoteError):
                self.distrust()
                return None
        return called

    def distrust(self) -> None:
        """Give up the measuring process; the next call starts a fresh one."""
        self._c.bench.discard()
        self._opened, self._used = None, False

    def trial(
        self,
        problem: Problem,
        config: Config,
        outcome: Measurement | Failure,
        stage: Stage,
        state: Sample,
        warm_us: float | None = None,
    ) -> Trial:
        """What the store keeps of a measurement of this sweep."""
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

    def _open(self, problem: Problem) -> bool:
        """Make ``problem`` the measuring process's, if it is not; False, and a fault, where that cannot be."""
        if self._opened == problem.key and self._c.bench.running:
            return True
        floor_us = shortest_us(self._task.kernel, problem, self._c.ceilings)
        try:
            with self._c.spent.on(Part.START):
                self._c.bench.start()
            with self._c.spent.on(Part.OPEN):
                arguments = (problem, self._task.max_error, floor_us, self._c.ceilings)
                self._c.bench.call("open", *arguments, timeout_s=self._c.timeouts.open_s)
        except (ProcessFailure, RemoteError) as failure:
            # No config is at fault: the inputs or the reference could not be made.
            self.distrust()
            self.faults[problem.key] = f"cannot be set up: {failure}"
            return False
        self._opened = problem.key
        return True
