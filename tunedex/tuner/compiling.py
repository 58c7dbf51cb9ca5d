"""Compiling ahead: child processes that fill the compilers' caches while the device measures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.host import cores
from tunedex.core.measurement import Failure, FailureKind, Resources
from tunedex.core.problem import Problem
from tunedex.kernels.base import CompileError, OverLimit
from tunedex.kernels.registry import get_kernel
from tunedex.tuner.process import ChildProcess, ProcessFailure
from tunedex.tuner.settings import SETTINGS


class Compiler:
    """What runs inside a compiling process."""

    def compile(self, problem: Problem, config: Config, device: Device) -> Resources | Failure:
        """Compile ``config`` for ``device``, which need not be present."""
        implementation = get_kernel(problem.kernel).implementation(config.implementation)
        try:
            return implementation.compile(problem, config, device)
        except OverLimit as error:
            return Failure(FailureKind.OUT_OF_RESOURCES, " ".join(str(error).split()))
        except CompileError as error:
            return Failure(FailureKind.COMPILE_ERROR, " ".join(str(error).split()))


class CompilePool:
    """Compiles in several child processes; one that dies or hangs costs its own config only."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.processes = pool_size()
        self._idle: SimpleQueue[ChildProcess] = SimpleQueue()
        self._children = [ChildProcess(Compiler, start_s=SETTINGS.timeouts.start_s) for _ in range(self.processes)]
        for child in self._children:
            self._idle.put(child)
        self._threads = ThreadPoolExecutor(self.processes, thread_name_prefix="compile")

    def submit(self, problem: Problem, config: Config) -> Future[Resources | Failure]:
        return self._threads.submit(self._compile, problem, config)

    def close(self) -> None:
        """Kill every compiling process; what was still to be compiled is not."""
        for child in self._children:
            child.retire()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for child in self._children:
            child.close()

    def _compile(self, problem: Problem, config: Config) -> Resources | Failure:
        child = self._idle.get()
        try:
            result: Resources | Failure = child.call(
                "compile", problem, config, self._device, timeout_s=SETTINGS.timeouts.compile_s
            )
            return result
        except ProcessFailure as failure:
            kind = FailureKind.TIMEOUT if failure.timed_out else FailureKind.CRASH
            return Failure(kind, f"compiling: {failure}")
        except Exception as error:  # noqa: BLE001 - any failure of a candidate is that candidate's failure
            return Failure(FailureKind.COMPILE_ERROR, " ".join(str(error).split())[:500])
        finally:
            self._idle.put(child)


@contextmanager
def compile_pool(device: Device) -> Iterator[CompilePool | None]:
    """A pool for a device whose compilers can run ahead; None for the CPU, whose compiler runs where it measures."""
    if device.kind != "cuda":
        yield None
        return
    pool = CompilePool(device)
    try:
        yield pool
    finally:
        pool.close()


def pool_size() -> int:
    """Processes to compile in: a core is left to the measuring, and memory is not overcommitted."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**33
    return max(1, min(cores() - 1, free // SETTINGS.compiler_bytes))
