"""A child process that owns one object, runs its methods, and can be killed.

Whatever a config does to the child (crash, hang, exit, abort, freeze, eat memory) costs the call under way and
nothing else: the caller gets a `ProcessFailure` and the next call starts a fresh child. The child leads a process
group of its own, and what it starts, compilers for instance, ends with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import multiprocessing.resource_tracker
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tunedex.core.display import one_line
from tunedex.core.errors import TunedexError
from tunedex.core.measurement import FailureKind
from tunedex.tuner.child import Ends, RemoteError, serve
from tunedex.tuner.machine import Residents, memory_bytes, memory_kills, stat_fields
from tunedex.tuner.pulse import Pulse, phase
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.tail import Tail

__all__ = ["ChildProcess", "ProcessFailure", "RemoteError", "phase"]

_START = "start"
_RESIDENTS = Residents(fresh_s=SETTINGS.worker.beat_s)


class ProcessFailure(TunedexError):
    """The child did not answer: ``kind`` says why. ``exit_code`` is its own, negative for a signal, None where the
    parent ended it."""

    def __init__(self, message: str, *, kind: FailureKind = FailureKind.CRASH, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.exit_code = exit_code

    @property
    def timed_out(self) -> bool:
        return self.kind is FailureKind.TIMEOUT


@dataclass
class _Running:
    """A child that runs, with the parent's ends of what ties them."""

    process: BaseProcess
    calls: Connection
    lifeline: Connection
    pulse: Pulse
    tail: Tail
    #: How many calls it has answered.
    answered: int = 0
    #: How many processes the kernel had killed for want of memory when the call under way began.
    kills_before: int = 0

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def kill(self) -> None:
        """Kill the child and what it started, from whichever thread."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it leads no group yet, or is gone
            with contextlib.suppress(ProcessLookupError, ValueError):
                self.process.kill()

    def exit_code(self) -> int | None:
        """How it ended; None while it runs. It stays a zombie, so that its number names no other group yet."""
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # already collected, by another child's start
            return self.process.exitcode
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    @property
    def stopped(self) -> bool:
        return stat_fields(self.pid)[:1] in (["T"], ["t"])


class ChildProcess:
    """A spawned child that owns ``factory(*arguments)``. One caller at a time; `retire` may be called from any thread.

    Args:
        factory: what makes the object; it and ``arguments`` travel pickled.
        start_s: longest time that starting the child and making the object may take.
        heartbeat_s: a child whose heartbeat stops for so long during a call is killed.
        memory_bytes: a child that holds more, with what it started, is killed; by default a share of the machine's.
        clock: gives seconds.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        *arguments: Any,
        start_s: float,
        heartbeat_s: float = SETTINGS.timeouts.heartbeat_s,
        memory_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._made = pickle.dumps((factory, arguments))
        self._start_s = start_s
        self._heartbeat_s = heartbeat_s
        self._memory_bytes = memory_bytes or _memory_share()
        self._clock = clock
        self._context = multiprocessing.get_context("spawn")
        self._running: _Running | None = None
        self._retired = False
        self.starts = 0

    def call(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """The result of ``method(*arguments)`` on the child's object, starting the child if none runs.

        Raises:
            ProcessFailure: the child died, froze, took longer than ``timeout_s`` or too much memory; it is gone
                afterwards.
            TunedexError: what the method raised, where it is one of ours.
            RemoteError: what the method raised, where it is not.
        """
        running = self._running or self._start()
        running.kills_before = memory_kills()
        running.tail.mark()
        try:
            running.calls.send((method, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise self._died(running, method) from None
        answer = self._receive(running, method, timeout_s)
        running.answered += 1
        return answer

    def start(self) -> None:
        """Start the child unless one runs, so that the next call need not.

        Raises:
            ProcessFailure: it died or took longer than ``start_s``, or the object is retired.
            RemoteError: its object cannot be made.
        """
        if self._running is None:
            self._start()

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def answered(self) -> int:
        """How many calls the child that runs has given a result of."""
        return self._running.answered if self._running else 0

    @property
    def held_bytes(self) -> int:
        """The memory that the child holds, with what it started; 0 where none runs."""
        return _RESIDENTS.bytes_of(self._running.pid) if self._running else 0

    def close(self) -> None:
        """Kill the child and what it started, if one runs."""
        running, self._running = self._running, None
        if running is None:
            return
        running.kill()
        running.process.join(SETTINGS.worker.kill_s)
        if running.process.is_alive():
            _leave_behind(running.process)
        running.tail.end()
        running.calls.close()
        running.lifeline.close()

    def retire(self) -> None:
        """Kill the child for good, from whichever thread: a call under way fails, and none starts another child."""
        self._retired = True
        running = self._running
        if running is not None:
            running.kill()

    def _start(self) -> _Running:
        if self._retired:
            raise ProcessFailure("retired")
        try:
            running = self._running = self._spawned()
        except (OSError, RuntimeError) as error:  # no more files, memory, processes or threads
            raise ProcessFailure(f"a worker cannot be started: {one_line(error)}") from error
        self.starts += 1
        try:
            if self._retired:  # meanwhile
                raise ProcessFailure("retired")
            self._receive(running, _START, self._start_s)
        except BaseException:
            self.close()
            raise
        return running

    def _spawned(self) -> _Running:
        """A child that has not answered yet. Where none can be had, nothing stays open."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            calls, answers = self._context.Pipe()
            ours.callback(calls.close)
            theirs.callback(answers.close)
            life, lifeline = self._context.Pipe(duplex=False)
            ours.callback(lifeline.close)
            theirs.callback(life.close)
            pulse, tail = Pulse(self._context), Tail(SETTINGS.worker.tail_bytes)
            ours.callback(tail.end)
            ends = Ends(answers, tail.writer, life, pulse)
            process = self._context.Process(
                target=serve, args=(ends, self._made, SETTINGS.worker.beat_s), daemon=True, name="tunedex-worker"
            )
            # The tracker that the first child brings along would unblock the signal again.
            multiprocessing.resource_tracker.ensure_running()
            # Blocked until the child leads a group of its own, for Ctrl-C reaches all of the parent's: that decides.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            ours.pop_all()
            return _Running(process, calls, lifeline, pulse, tail, kills_before=memory_kills())

    def _receive(self, running: _Running, method: str, timeout_s: float) -> Any:
        try:
            self._wait(running, method, timeout_s)
            ok, value = running.calls.recv()
        except (EOFError, ConnectionResetError):
            raise self._died(running, method) from None
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception) or isinstance(error, TunedexError):
                raise
            words = f"{type(error).__name__}: {one_line(error)}"  # unpickling runs the value's own code
            raise ProcessFailure(f"{_what(method, running)}: the answer cannot be read: {words}") from error
        if ok:
            return value
        raise value

    def _wait(self, running: _Running, method: str, timeout_s: float) -> None:
        """Wait for the answer, and see meanwhile that the child lives, beats, and keeps its memory within bounds.

        Raises:
            EOFError: it is dead, and something that it started keeps its end of the pipe open.
            ProcessFailure: it is to be killed.
        """
        beat_s = SETTINGS.worker.beat_s
        waited = silent = 0.0
        beats, before = running.pulse.beats, self._clock()
        while not running.calls.poll(max(0.0, min(beat_s, timeout_s - waited))):
            now = self._clock()
            # Time in which this process did not run either says nothing about the child: the machine slept, or a
            # scheduler had stopped them all.
            passed, before = min(now - before, 2 * beat_s), now
            waited += passed
            beats, before_beats = running.pulse.beats, beats
            silent = 0.0 if beats != before_beats else silent + passed
            if running.exit_code() is not None:
                if running.calls.poll():  # its last words
                    return
                raise EOFError
            held = _RESIDENTS.bytes_of(running.pid)
            what = _what(method, running)
            if held > self._memory_bytes:
                most = f"more than the {self._memory_bytes / 1e9:.3g} GB that it may"
                raise ProcessFailure(
                    f"{what}: the worker took {held / 1e9:.3g} GB of memory, {most}", kind=FailureKind.OOM
                )
            # Making a CUDA context takes long and keeps Python's lock; a start is bounded by its own time.
            frozen = method != _START and silent > self._heartbeat_s
            if running.stopped and (frozen or waited >= timeout_s):
                raise ProcessFailure(f"{what}: the worker was stopped by a signal")
            if frozen:
                words = f"the worker gave no sign of life for {self._heartbeat_s:g} s"
                raise ProcessFailure(f"{what}: {words}", kind=FailureKind.TIMEOUT)
            if waited >= timeout_s:
                raise ProcessFailure(f"{what} took longer than {timeout_s:g} s", kind=FailureKind.TIMEOUT)

    def _died(self, running: _Running, method: str) -> ProcessFailure:
        end = time.monotonic() + SETTINGS.worker.kill_s
        while (code := running.exit_code()) is None and time.monotonic() < end:
            time.sleep(0.005)  # its pipes close a moment before it ends
        killed_for_memory = code == -signal.SIGKILL and memory_kills() > running.kills_before
        what = _what(method, running)
        self.close()
        words = running.tail.end()
        if killed_for_memory:
            how = "was killed by the kernel, which was out of memory"
        elif code is not None and code < 0:
            how = f"was killed by {_signal_name(-code)}"
        else:
            how = f"exited with {code}" if code is not None else "closed its pipe"
        kind = FailureKind.OOM if killed_for_memory else FailureKind.CRASH
        return ProcessFailure(f"{what}: the worker {how}{': ' + words if words else ''}", kind=kind, exit_code=code)


def _what(method: str, running: _Running) -> str:
    """The call under way, with the phase that the child has said it is in."""
    return f"{method} ({found})" if (found := running.pulse.phase) else method


def _leave_behind(process: BaseProcess) -> None:
    """Wait no more, at this program's end either, for a killed process that a device which hangs keeps from ending.

    Multiprocessing joins every child that it knows at exit, and, from Python 3.12.8 on, its resource tracker, which
    lives as long as anybody holds the other end of its pipe; there is no public way to have either forgotten.
    """
    children: set[BaseProcess] = multiprocessing.process._children  # type: ignore[attr-defined]
    children.discard(process)
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None  # the next child brings along another


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have none
        return f"signal {number}"


def _memory_share() -> int:
    return int(SETTINGS.worker.memory_share * memory_bytes())
