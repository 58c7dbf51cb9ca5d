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
from tunedex.tuner.failures import STICKY
from tunedex.tuner.faults import NotOpened
from tunedex.tuner.nvml import Sample
from tunedex.tuner.process import ProcessFailure, RemoteError
from tunedex.tuner.settings import Timeouts
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
    """No measuring process can be started on the device."""


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
    """

    def __init__(self, make: Callable[[], BenchProcess], timeouts: Timeouts, ledger: Ledger, *, standby: bool) -> None:
        self._made = _Processes(make)
        self._timeouts = timeouts
        self._ledger = ledger
        self._standby = Standby(self._made.new) if standby else None
        self._process = self._made.new()
        self._opened: str | None = None
        self._searched = False
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
        """Make ``problem`` the one that is measured, if it is not; see `Bench.open`.

        Raises:
            NotOpened: it cannot be.
            DeviceLost: no process can be started.
        """
        if self._opened == problem.key and self._process.running:
            return
        try:
            self._open(problem, max_error, floor_us, ceilings, policy)
        except ProcessFailure as failure:
            if failure.timed_out:
                raise NotOpened(f"cannot be set up: {failure}") from failure
            try:  # it may have died while it stood by
                self._open(problem, max_error, floor_us, ceilings, policy)
            except ProcessFailure as again:
                raise NotOpened(f"cannot be set up: {again}") from again
        self._opened = problem.key

    def measure(
        self, config: Config, resources: Resources, best_us: Mapping[bool, float], timeout_s: float
    ) -> tuple[Measurement | Failure, Sample]:
        """See `Bench.measure`. Whatever the config does to the process is its failure."""
        self._searched = True
        outcome: Measurement | Failure
        state = Sample()
        with self._ledger.of("measure"):
            try:
                outcome, state = self._process.call("measure", config, resources, best_us, timeout_s=timeout_s)
            except ProcessFailure as failure:
                outcome = Failure(failure.kind, str(failure))
            except TunedexError as error:  # whatever was raised there, also where it is one of ours
                outcome = Failure(FailureKind.CRASH, str(error))
            if (isinstance(outcome, Failure) and outcome.kind in STICKY) or not self._process.running:
                self._failed()
        return outcome, state

    def final(self, configs: Sequence[Config], seconds: float, against: Sequence[Config]) -> FinalTimes | None:
        """See `Bench.final`; None where the process fails, by whose fault it does not say."""
        try:
            times, states = self._process.call("final", configs, seconds, against, timeout_s=self._timeouts.final_s)
        except TunedexError:
            self._failed()
            return None
        if any(isinstance(time, Failure) and time.kind in STICKY for time in times):
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
        if self._made.stopped:
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

    def _open(self, problem: Problem, *arguments: Any) -> None:
        self._start()
        with self._ledger.of("open"):
            try:
                self._process.call("open", problem, *arguments, timeout_s=self._timeouts.open_s)
            except ProcessFailure:
                self._failed()
                raise
            except TunedexError as error:  # the kernel's own, of ours too: its `problem_of` may raise `BadInput`
                self._failed()
                raise NotOpened(f"cannot be set up: {error}") from error

    def _start(self) -> None:
        if self._process.running:
            return
        with self._ledger.of("start"):
            try:
                self._process.start()
            except (ProcessFailure, RemoteError) as failure:
                self._failed()
                raise DeviceLost(f"no measuring process can be started: {failure}") from failure

    def _failed(self) -> None:
        """Give up the process; the next call finds another.

        Raises:
            Stopped: it failed because the worker was stopped.
        """
        self.check()
        self._replace()

    def _book(self) -> None:
        """Book what the process has spent on verifying. One that was killed takes that with it."""
        if self._searched and self._process.running and not self._made.stopped:
            with suppress(ProcessFailure, RemoteError):
                busy: Busy = self._process.call("busy", timeout_s=self._timeouts.open_s)
                self._ledger.verified(busy.verify_s)

    def _replace(self) -> None:
        # Two at once would hold the device's memory twice while one of them is timed.
        self._process.close()
        self._process = (self._standby.take() if self._standby else None) or self._made.new()
        self._opened = None
        self._searched = False
        self.generation += 1


class Standby:
    """Starts one process in the background and keeps it until it is taken."""

    def __init__(self, new: Callable[[], BenchProcess]) -> None:
        self._new = new
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
        process = self._new()
        process.start()
        return process


class _Processes:
    """Makes processes, and ends all that it has made."""

    def __init__(self, make: Callable[[], BenchProcess]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._all: list[BenchProcess] = []
        self.stopped = False

    def new(self) -> BenchProcess:
        process = self._make()
        with self._lock:
            self._all.append(process)
            if self.stopped:
                process.retire()
        return process

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            for process in self._all:
                process.retire()

    def close(self) -> None:
        with self._lock:
            for process in self._all:
                process.close()
