"""Compiling ahead: child processes that fill the compilers' caches while the device measures."""

from __future__ import annotations

import logging
import reprlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.display import one_line
from tunedex.core.errors import TunedexError
from tunedex.core.measurement import Failure, FailureKind, Resources
from tunedex.core.problem import Problem
from tunedex.kernels.registry import get_kernel
from tunedex.tuner.failures import failure_of
from tunedex.tuner.imports import import_compilers
from tunedex.tuner.machine import free_memory_bytes, usable_cores
from tunedex.tuner.process import ChildProcess, ProcessFailure, RemoteError
from tunedex.tuner.settings import SETTINGS, Timeouts

_log = logging.getLogger(__name__)

#: How the words begin of what ended a compiling process.
COMPILING = "compiling: "

#: How often a config is handed to a compiling process before it is left to the worker.
_ATTEMPTS = 2


class HostFault(TunedexError):
    """A config cannot be compiled here now, and the machine is at fault: a full disk, no more files."""


class Compiler:
    """What runs inside a compiling process."""

    def __init__(self) -> None:
        import_compilers()

    def compile(self, problem: Problem, config: Config, device: Device) -> Resources | Failure:
        """Compile ``config`` for ``device``, which need not be present.

        Raises:
            HostFault: nothing is known of the config.
        """
        implementation = get_kernel(problem.kernel).implementation(config.implementation)
        try:
            needed = implementation.compile(problem, config, device)
            if not isinstance(needed, Resources):
                raise TypeError(f"compile() gives {reprlib.repr(needed)}, which is no Resources")
            needed.check()
            return needed
        except OSError as error:
            raise HostFault(f"{type(error).__name__}: {one_line(error)}") from error
        except Exception as error:  # noqa: BLE001 - any failure of a candidate is that candidate's failure
            return failure_of(error, otherwise=FailureKind.COMPILE_ERROR)


@dataclass(frozen=True)
class PoolStats:
    """What a pool has done: ``compiled`` configs, of which ``failed`` have no result; ``compile_s``, the seconds that
    each took, summed; ``wall_s``, from the first that was handed in to the last that ended."""

    compiled: int = 0
    failed: int = 0
    compile_s: float = 0.0
    wall_s: float = 0.0

    @property
    def speedup(self) -> float | None:
        """How many times faster than one after another; None before anything is compiled."""
        return self.compile_s / self.wall_s if self.wall_s else None


class MemoryGate:
    """Lets a compilation begin when there is memory for it, and in any case when no other runs."""

    def __init__(self, needed_bytes: int) -> None:
        self._needed_bytes = needed_bytes
        self._changed = threading.Condition()
        self._inside: dict[int, float] = {}
        self._closed = False

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Wait for memory; it counts as taken until the block ends."""
        me = threading.get_ident()
        with self._changed:
            while self._inside and not self._closed and not self._room():
                self._changed.wait(SETTINGS.memory_poll_s)
            self._inside[me] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._inside[me]
                self._changed.notify_all()

    def close(self) -> None:
        """Let everybody pass."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _room(self) -> bool:
        # What has just begun has not taken its memory yet.
        recent = time.monotonic() - SETTINGS.memory_settles_s
        coming = sum(1 for begun in self._inside.values() if begun > recent)
        return free_memory_bytes() >= (1 + coming) * self._needed_bytes


class CompilePool:
    """Compiles in several child processes; one that dies, hangs or eats memory costs its own config only, and one that
    cannot be started, or finds the disk full, not even that: the worker compiles the config then.

    There are at most as many as the cores keep busy beside the measuring, and they start when the pool is made; before
    each compilation begins, the memory that is free then is looked at.
    """

    def __init__(
        self,
        device: Device,
        timeouts: Timeouts = SETTINGS.timeouts,
        memory_bytes: int = SETTINGS.compiler_limit_bytes,
        processes: int | None = None,
    ) -> None:
        self._device = device
        self._timeout_s = timeouts.compile_s
        self.processes = processes or pool_size()
        self._gate = MemoryGate(SETTINGS.compiler_bytes)
        self._idle: SimpleQueue[ChildProcess] = SimpleQueue()
        self._children = [
            ChildProcess(
                Compiler, start_s=timeouts.start_s, heartbeat_s=timeouts.heartbeat_s, memory_bytes=memory_bytes
            )
            for _ in range(self.processes)
        ]
        self._threads = ThreadPoolExecutor(self.processes, thread_name_prefix="compile")
        self._starting = [self._threads.submit(self._start, child) for child in self._children]
        self._counting = threading.Lock()
        self._stats = PoolStats()
        self._begun_at: float | None = None
        self._told = False

    def submit(self, problem: Problem, config: Config) -> Future[Resources | Failure]:
        with self._counting:
            self._begun_at = self._begun_at or time.monotonic()
        return self._threads.submit(self._compile, problem, config)

    def ready(self) -> None:
        """Wait until every process has started, or failed to; one that failed is started again for its next config."""
        wait(self._starting)

    @property
    def started(self) -> int:
        """How many processes have been started, those included that have ended since."""
        return sum(child.starts for child in self._children)

    def stats(self) -> PoolStats:
        with self._counting:
            return self._stats

    def close(self) -> None:
        """Kill every compiling process; what was still to be compiled is not."""
        for child in self._children:
            child.retire()
        self._gate.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for child in self._children:
            child.close()

    def _start(self, child: ChildProcess) -> None:
        try:
            with suppress(ProcessFailure, RemoteError):
                child.start()
        finally:
            self._idle.put(child)

    def _compile(self, problem: Problem, config: Config) -> Resources | Failure:
        child = self._idle.get()
        try:
            with self._gate.passed():
                return self._compile_in(child, problem, config)
        finally:
            self._idle.put(child)

    def _compile_in(self, child: ChildProcess, problem: Problem, config: Config) -> Resources | Failure:
        if child.answered >= SETTINGS.compiler_renewed_configs or child.held_bytes > SETTINGS.compiler_renewed_bytes:
            child.close()
        begin = time.monotonic()
        for _ in range(_ATTEMPTS):
            try:
                child.start()
                begin = time.monotonic()  # a process starts once for many configs
                result = self._call(child, problem, config)
            except (HostFault, ProcessFailure, RemoteError) as error:
                fault = error
            else:
                self._count(begin, failed=isinstance(result, Failure))
                return result
        self._count(begin, failed=True)
        self._warn(fault)
        return Resources()

    def _call(self, child: ChildProcess, problem: Problem, config: Config) -> Resources | Failure:
        """
        Raises:
            HostFault: the machine is at fault.
        """
        try:
            result: Resources | Failure = child.call(
                "compile", problem, config, self._device, timeout_s=self._timeout_s
            )
        except HostFault:
            raise
        except ProcessFailure as failure:
            return Failure(failure.kind, f"{COMPILING}{failure}")
        except TunedexError as error:  # what is no `Exception` there, or cannot be sent
            return Failure(FailureKind.COMPILE_ERROR, str(error))
        return result

    def _warn(self, fault: TunedexError) -> None:
        """Say once why configs are left to the worker."""
        with self._counting:
            told, self._told = self._told, True
        if not told:
            _log.warning("compiling ahead fails, so workers compile while they measure: %s", fault)

    def _count(self, begin: float, *, failed: bool) -> None:
        end = time.monotonic()
        with self._counting:
            before = self._stats
            self._stats = PoolStats(
                compiled=before.compiled + 1,
                failed=before.failed + failed,
                compile_s=before.compile_s + end - begin,
                wall_s=end - (self._begun_at or begin),
            )


def compiled(pool: CompilePool | None, problem: Problem, config: Config) -> Future[Resources | Failure]:
    """``config`` compiled by ``pool``; where there is none, nothing is to be compiled ahead."""
    if pool is not None:
        return pool.submit(problem, config)
    done: Future[Resources | Failure] = Future()
    done.set_result(Resources())
    return done


@contextmanager
def compile_pool(
    device: Device, timeouts: Timeouts = SETTINGS.timeouts, devices: int = 1
) -> Iterator[CompilePool | None]:
    """A pool for a device whose compilers can run ahead, or for so many ``devices`` of its key; None for the CPU, whose
    compiler runs where it measures."""
    if device.kind != "cuda":
        yield None
        return
    pool = CompilePool(device, timeouts, processes=pool_size(devices))
    try:
        yield pool
    finally:
        pool.close()


def pool_size(devices: int = 1) -> int:
    """Processes to compile in: a core is left to the measuring on each device, and memory is not overcommitted."""
    return max(1, min(usable_cores() - devices, free_memory_bytes() // SETTINGS.compiler_bytes))
