"""The measuring process of one device, as a sweep holds it: replaced when it is not to be trusted, and for each final.

A final runs in a process that searched nothing. Starting one takes seconds, so on a GPU the next stands by while the
search goes on; on a CPU, where a start would disturb what is measured, it is started when it is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from tunedex.core.config import Config
from tunedex.core.errors import CannotRun, TunedexError
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy, Resources
from tunedex.core.problem import Problem
from tunedex.db.records import Ceilings
from tunedex.tuner.bench import Busy, FinalTime
from tunedex.tuner.failures import SpoiltProblem, spoils_process
from tunedex.tuner.faults import NotOpened
from tunedex.tuner.load import Idle
from tunedex.tuner.nvml import Sample
from tunedex.tuner.process import ProcessFailure, RemoteError
from tunedex.tuner.settings import SETTINGS, Timeouts
from tunedex.tuner.spent import Ledger


class BenchProcess(Protocol):
    """A process that holds a `Bench`; `ChildProcess` is one."""

    @property
    def running(self) -> bool: ...

    def start(self) -> None: ...

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any: ...

    def close(self) -> None: ...

    def retire(self) -> None: ...


class DeviceLost(CannotRun):
    """No measuring process can be started on the device, or none can do on it what another could."""


class Stopped(TunedexError):
    """The worker was stopped, by Ctrl-C for instance."""


@dataclass(frozen=True)
class FinalTimes:
    """What a final gave: a time or a failure of each config, in order, and the device's state after each round."""

    times: tuple[FinalTime | Failure, ...]
    states: tuple[Sample, ...]


class Worker:
    """Measures on one device, in a process that may be another at each call. One caller; `stop` from any thread.

    Args:
        make: what makes a process that does not run yet.
        standby: whether the next process is started while this one works.
        look: reads the state of the device where the measuring process cannot any more.
    """

    def __init__(
        self,
        make: Callable[[], BenchProcess],
        timeouts: Timeouts,
        ledger: Ledger,
        *,
        standby: bool,
        look: Callable[[], Sample] = Sample,
    ) -> None:
        self._made = _Processes(make)
        self._timeouts = timeouts
        self._ledger = ledger
        self._standby = Standby(self._made) if standby else None
        self._look = look
        self._process = self._made.new()
        #: What is open, under which bound on the error and which policy, and what opens it again.
        self._opened: tuple[Problem, float | None, Policy] | None = None
        self._open_again: Callable[[], None] = self._start
        self._idle: Idle | None = None
        #: How many configs the process has searched.
        self._searched = 0
        #: Which process it is, counted from 0: times of different processes differ by more than within one.
        self.generation = 0

    def ceilings(self, peaks: Iterable[str]) -> Ceilings:
        """The device's ceilings, measured now.

        Raises:
            DeviceLost: no process can be started, or it does not survive this.
        """
        self._start()
        try:
            measured: Ceilings = self._process.call("ceilings", set(peaks), timeout_s=self._timeouts.ceilings_s)
            self._idle = self._process.call("idle", timeout_s=self._timeouts.ceilings_s)
        except (ProcessFailure, RemoteError) as failure:
            self._failed()
            raise DeviceLost(f"the device cannot be measured on: {failure}") from failure
        return measured

    def prepare(self) -> None:
        """Have the process for the next final started meanwhile, if one is to stand by."""
        if self._standby is not None:
            self._standby.prepare()

    def open(
        self,
        problem: Problem,
        max_error: float | None,
        floor_us: float,
        ceilings: Ceilings,
        policy: Policy | None = None,
    ) -> None:
        """Make ``problem`` the one that is measured, unless it is already, under this bound and this policy; see
        `Bench.open`.

        Raises:
            NotOpened: it cannot be.
            DeviceLost: no process can be started.
        """
        if self._searched >= SETTINGS.worker.most_configs:
            self.renew()
        if self._opened is not None and self._process.running:
            opened, bound, under = self._opened
            if (opened, bound) == (problem, max_error) and policy in (None, under):
                return

        def open_() -> None:
            self._open(problem, max_error, floor_us, ceilings, policy)

        self._open_again = open_
        try:
            open_()
        except ProcessFailure as failure:
            if failure.timed_out:
                raise NotOpened(f"cannot be set up: {failure}") from failure
            try:  # it may have died while it stood by
                open_()
            except ProcessFailure as again:
                raise NotOpened(f"cannot be set up: {again}") from again

    def measure(
        self, config: Config, resources: Resources, best_us: Mapping[bool, float], timeout_s: float
    ) -> tuple[Measurement | Failure, Sample]:
        """See `Bench.measure`. Whatever the config does to the process is its failure, unless nobody can go on then.

        Raises:
            DeviceLost: the process is not to be trusted any more, and no other one can be started or opens the problem:
                that is no config's doing.
        """
        self._searched += 1
        outcome: Measurement | Failure
        state: Sample | None = None
        with self._ledger.of("measure"):
            try:
                outcome, state = self._process.call("measure", config, resources, best_us, timeout_s=timeout_s)
            except ProcessFailure as failure:
                outcome = Failure(failure.kind, str(failure))
            except TunedexError as error:  # whatever was raised there, also where it is one of ours
                outcome = Failure(FailureKind.CRASH, str(error))
        state = self._look() if state is None else state
        if isinstance(outcome, SpoiltProblem):
            self._opened = None
        if isinstance(outcome, Failure) and (spoils_process(outcome) or not self._process.running):
            self._failed()
            self._reopen(outcome)
        return outcome, state

    def final(
        self, configs: Sequence[Config], seconds: float, against: Sequence[Config], round_us: float = 0.0
    ) -> FinalTimes | None:
        """See `Bench.final`; None where the process fails, by whose fault it does not say. ``round_us`` is how long one
        call of each of ``configs`` takes together."""
        timeout_s = self._timeouts.final_s + self._timeouts.final_calls * round_us / 1e6
        try:
            times, states = self._process.call("final", configs, seconds, against, timeout_s=timeout_s)
        except TunedexError:
            self._failed()
            return None
        if any(spoils_process(time) for time in times):
            self._failed()
        return FinalTimes(tuple(times), tuple(states))

    @property
    def searched(self) -> bool:
        """Whether the process at hand has measured a config, which may have kept what it took."""
        return bool(self._searched)

    def renew(self) -> None:
        """Go on in a process that searched nothing. Nothing is done where this one did not."""
        if self._searched:
            self._book()
            self._replace()

    def check(self) -> None:
        """
        Raises:
            Stopped: the worker was stopped.
        """
        if self._made.stopping.is_set():
            raise Stopped("the worker was stopped")

    def stop(self) -> None:
        """Have the call under way, and every later one, raise `Stopped`; from whichever thread."""
        self._made.stop()

    def close(self) -> None:
        """End every process."""
        self._book()
        self._made.stop()
        if self._standby is not None:
            self._standby.close()
        self._made.close()

    def _open(self, problem: Problem, max_error: float | None, *arguments: Any) -> None:
        self._start()
        self._opened = None
        with self._ledger.of("open"):
            try:
                policy = self._process.call(
                    "open", problem, max_error, *arguments, self._idle, timeout_s=self._timeouts.open_s
                )
            except ProcessFailure:
                self._failed()
                raise
            except TunedexError as error:  # the kernel's own, of ours too: its `problem_of` may raise `BadInput`
                self._failed()
                raise NotOpened(f"cannot be set up: {error}") from error
        self._opened = (problem, max_error, policy)

    def _start(self) -> None:
        pauses_s = iter(SETTINGS.worker.start_pauses_s)
        with self._ledger.of("start"):
            while not self._process.running:
                try:
                    self._process.start()
                except (ProcessFailure, RemoteError) as failure:
                    self._failed()
                    # The machine may be short of memory, its disk slow, the device under a reset.
                    if (pause_s := next(pauses_s, None)) is None:
                        raise DeviceLost(f"no measuring process can be started: {failure}") from failure
                    self._made.stopping.wait(pause_s)
                    self.check()

    def _failed(self) -> None:
        """Give up the process; the next call finds another.

        Raises:
            Stopped: it failed because the worker was stopped.
        """
        self.check()
        self._replace()

    def _reopen(self, after: Failure) -> None:
        """Open again what was open, in a process that takes the place of one that a config has ended, as ``after``
        says.

        Raises:
            DeviceLost: it cannot be.
        """
        for stood_by in (True, False):
            try:
                self._open_again()
            except (ProcessFailure, NotOpened) as failure:
                if not stood_by:  # one that did was started before, and may have been lost with the device
                    raise DeviceLost(f"{failure}; it could before a config failed: {after.detail}") from failure
            else:
                return

    def _book(self) -> None:
        """Book what the process has spent on verifying. One that was killed takes that with it."""
        if self._searched and self._process.running and not self._made.stopping.is_set():
            with suppress(ProcessFailure, RemoteError):
                busy: Busy = self._process.call("busy", timeout_s=self._timeouts.open_s)
                self._ledger.verified(busy.verify_s)

    def _replace(self) -> None:
        # Two at once would hold the device's memory twice while one of them is timed.
        self._made.end(self._process)
        self._process = (self._standby.take() if self._standby else None) or self._made.new()
        self._opened = None
        self._searched = 0
        self.generation += 1


class Standby:
    """Starts one process in the background and keeps it until it is taken."""

    def __init__(self, made: _Processes) -> None:
        self._made = made
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="standby")
        self._coming: Future[BenchProcess] | None = None

    def prepare(self) -> None:
        """Start one, unless one is kept or under way."""
        if self._coming is None:
            self._coming = self._threads.submit(self._started)

    def take(self) -> BenchProcess | None:
        """The process that was prepared, waited for if it is still starting; None where none was, or it failed."""
        coming, self._coming = self._coming, None
        if coming is None:
            return None
        try:
            return coming.result()
        except (ProcessFailure, RemoteError):
            return None

    def close(self) -> None:
        """Wait for the thread. The process is its maker's to end."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _started(self) -> BenchProcess:
        process = self._made.new()
        try:
            process.start()
        except BaseException:
            self._made.end(process)
            raise
        return process


class _Processes:
    """Makes processes, and ends those that it has made and that have not been ended before."""

    def __init__(self, make: Callable[[], BenchProcess]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._all: list[BenchProcess] = []
        self.stopping = threading.Event()

    def new(self) -> BenchProcess:
        process = self._make()
        with self._lock:
            self._all.append(process)
            if self.stopping.is_set():
                process.retire()
        return process

    def end(self, process: BenchProcess) -> None:
        """End ``process``, one of these, and forget it."""
        process.close()
        with self._lock:
            self._all = [each for each in self._all if each is not process]

    def stop(self) -> None:
        with self._lock:
            self.stopping.set()
            for process in self._all:
                process.retire()

    def close(self) -> None:
        with self._lock:
            for process in self._all:
                process.close()
