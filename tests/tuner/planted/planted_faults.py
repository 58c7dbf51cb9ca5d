"""A kernel whose configs fail in every way that there is a name for, between others that do nothing wrong.

Some fail where they run, some where they are compiled, which for a CUDA device is a process of its own. On a CUDA
device the illegal access, the hang, the refused and the too large program are real Triton kernels.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import torch
from planted import Library, PlantedKernel

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.measurement import FailureKind, Resources
from tunedex.core.problem import Problem
from tunedex.core.signature import BATCH, DefaultRule, Dimension, Operand, Signature
from tunedex.kernels.base import CompileError, Implementation, Launch, OverLimit, Tensors, Tunable

FLOOD_BYTES = 100_000_000
COMPILER_FLOOD_BYTES = 10_000_000


class Odd(BaseException):
    """What a compiler may raise that is no `Exception`."""


#: How each config ends while it runs; None: it is measured.
RUNNING: Mapping[str, FailureKind | None] = {
    "none": None,
    "innocent_1": None,
    "innocent_2": None,
    "innocent_3": None,
    "flood": None,
    "illegal_access": FailureKind.ILLEGAL_ACCESS,
    "hang": FailureKind.TIMEOUT,
    "hang_with_lock": FailureKind.TIMEOUT,
    "wrong_last": FailureKind.WRONG_RESULT,
    "abort": FailureKind.CRASH,
    "exit_0": FailureKind.CRASH,
    "exit_3": FailureKind.CRASH,
    "segfault": FailureKind.CRASH,
    "stop": FailureKind.CRASH,
    "leave": FailureKind.CRASH,
    "memory": FailureKind.OOM,
    "untimed": FailureKind.INVALID_TIMING,
}

#: How each config ends while it is compiled.
COMPILING: Mapping[str, FailureKind | None] = {
    "compile_error": FailureKind.COMPILE_ERROR,
    "over_limit": FailureKind.OUT_OF_RESOURCES,
}

#: The same, of those that only a compiling process of its own is to stand.
COMPILING_APART: Mapping[str, FailureKind | None] = {
    "compile_flood": None,
    "compile_no_space": None,
    "compile_raise": FailureKind.COMPILE_ERROR,
    "compile_no_memory": FailureKind.OOM,
    "compile_odd": FailureKind.COMPILE_ERROR,
    "compile_leave": FailureKind.COMPILE_ERROR,
    "compile_abort": FailureKind.CRASH,
    "compile_exit": FailureKind.CRASH,
    "compile_segfault": FailureKind.CRASH,
    "compile_hang": FailureKind.TIMEOUT,
    "compile_memory": FailureKind.OOM,
}


#: Stands for what an illegal access does to a CUDA context, on a device that has none: every later call fails.
_broken = False


def faults(device: Device) -> dict[str, FailureKind | None]:
    """How each config of a sweep on ``device`` is to end."""
    return {**RUNNING, **COMPILING, **(COMPILING_APART if device.kind == "cuda" else {})}


def problem(device: Device) -> str:
    """A ragged problem, as an argument of ``--problem``; so large that a launch cannot be as fast as no launch."""
    rows, cols = (16_381, 1_021) if device.kind == "cuda" else (1_535, 1_021)
    return f"faults:rows={rows},cols={cols},dtype=float32"


def _flood(stream: int, count: int) -> None:
    chunk = b"x" * 99_999 + b"\n"
    for _ in range(count // len(chunk)):
        os.write(stream, chunk)


def _raise(error: BaseException) -> NoReturn:
    raise error


def _spin() -> None:
    while True:
        pass


def _eat() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(b"x" * 2**26))
        time.sleep(0.02)


#: What ends or holds up a process, on whatever device.
_PROCESS: Mapping[str, Callable[[], object]] = {
    "hang": _spin,
    # Unlike `ctypes.CDLL` this keeps Python's lock.
    "hang_with_lock": lambda: ctypes.PyDLL(None).sleep(600),
    "abort": os.abort,
    "exit_0": lambda: os._exit(0),
    "exit_3": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "leave": lambda: _raise(SystemExit(0)),
    "compile_flood": lambda: _flood(2, COMPILER_FLOOD_BYTES),
    "compile_raise": lambda: _raise(type("Refused", (Exception,), {})("no reason")),
    "compile_no_memory": lambda: _raise(RuntimeError("planted: Out of memory")),
    # The machine's fault and not the config's.
    "compile_no_space": lambda: _raise(OSError(28, "No space left on device")),
    "compile_odd": lambda: _raise(Odd("nothing usual")),
    "compile_leave": lambda: _raise(SystemExit(0)),
    "compile_abort": os.abort,
    "compile_exit": lambda: os._exit(0),
    "compile_segfault": lambda: ctypes.string_at(0),
    "compile_hang": _spin,
    "compile_memory": _eat,
}


class Faulty(Implementation):
    name = "triton"
    kinds = frozenset({"cpu", "cuda"})

    def tunables(self, problem: Problem, device: Device) -> Sequence[Tunable]:
        return (Tunable("fault", tuple(faults(device)), "what goes wrong"),)

    def compile(self, problem: Problem, config: Config, device: Device) -> Resources:
        fault = str(config.values["fault"])
        if fault in COMPILING_APART:
            _PROCESS[fault]()
        if fault not in COMPILING:
            return Resources()
        if device.kind == "cuda":
            import planted_triton

            return planted_triton.compile_fault(fault, device)
        if fault == "over_limit":
            raise OverLimit("bytes of shared memory", 200_000, 100_000)
        raise CompileError("planted: of no use")

    def bind(self, problem: Problem, config: Config, device: Device) -> Launch:
        if device.kind == "cpu":
            self.compile(problem, config, device)
        return _Faulty(str(config.values["fault"]), device)


class _Faulty:
    """out = 2 x, and one fault besides."""

    def __init__(self, fault: str, device: Device) -> None:
        self._fault = fault
        self._cuda = device.kind == "cuda"
        self._flooded = False
        self._written: dict[int, int] = {}

    def __call__(self, operands: Tensors, outputs: Tensors) -> None:
        global _broken
        x, out = operands["x"], outputs["out"]
        _broken = _broken or (self._fault == "illegal_access" and not self._cuda)
        if _broken:
            raise RuntimeError("planted: an illegal memory access was encountered")
        if self._cuda and self._fault in ("illegal_access", "hang"):
            import planted_triton

            planted_triton.run_fault(self._fault, out)
        elif self._fault in _PROCESS and self._fault not in COMPILING_APART:
            _PROCESS[self._fault]()
        if self._fault == "memory":
            torch.empty(2**46, dtype=torch.uint8, device=out.device)
        if self._fault == "flood" and not self._flooded:
            _flood(1, FLOOD_BYTES)
            self._flooded = True
        if self._fault == "untimed" and self._written.get(out.data_ptr()) == out._version:
            # Nobody has filled the output since: this call is not looked at. A graph wants at least one launch.
            if self._cuda:
                torch.mul(x[0, 0], 2, out=out[0, 0])
        else:
            torch.mul(x, 2, out=out)
        self._written[out.data_ptr()] = out._version
        if self._fault == "wrong_last":
            out[..., -1, -1] *= 1.2


class FaultsKernel(PlantedKernel):
    signature = Signature(
        kernel="faults",
        version="000000000001",
        formula="out = 2 x",
        dimensions=(BATCH, Dimension("rows"), Dimension("cols")),
        operands=(Operand("x", ("float32",)),),
        defaults=(
            DefaultRule("cpu", {"implementation": "triton", "fault": "none"}),
            DefaultRule("cuda", {"implementation": "triton", "fault": "none"}),
        ),
    )
    implementations = (Faulty(), Library())


KERNEL = FaultsKernel()
