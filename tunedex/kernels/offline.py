"""Compiling Triton kernels for any NVIDIA target, with or without a GPU, and reading what a cubin needs.

Triton asks its active driver which device it compiles for. For the length of one compilation a driver stands in
that answers with the wanted target, so the ordinary `JITFunction.warmup` runs: the same signature, the same
specialisation of arguments, the same options, and therefore the same entry of Triton's disk cache that a launch
on the real device looks up later, in whichever process.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, overload

from tunedex.core.device import Device
from tunedex.core.measurement import Resources
from tunedex.kernels.base import CompileError, OverLimit

WARP_SIZE = 32
CUOBJDUMP_TIMEOUT_S = 30.0

#: The active driver is one per process, so one compilation runs at a time and no launch beside it.
_LOCK = threading.Lock()

#: Device indices that no real device has; every target has its own, because `JITFunction` caches by index.
_FIRST_FAKE_INDEX = -1_000_000

_USAGE = re.compile(r"\bREG:(?P<registers>\d+)\s+STACK:(?P<stack>\d+)\s+SHARED:(?P<shared>\d+)\s+LOCAL:(?P<local>\d+)")


class MockTensor:
    """A tensor argument with a dtype and an address class, but no memory.

    Args:
        dtype: a torch dtype's name, for example ``bfloat16``.
        aligned: whether the address is a multiple of 16 bytes, for which Triton specialises.
        shape: needed where a launch reads the shape or the strides.
        pitch: elements from one row to the next, the last dimension's size where 0; otherwise dense.
    """

    def __init__(self, dtype: str, *, aligned: bool = True, shape: tuple[int, ...] = (1,), pitch: int = 0) -> None:
        import torch

        self.dtype = getattr(torch, dtype)
        self.shape = shape
        self._pitch = pitch
        self._address = 0 if aligned else 1

    def data_ptr(self) -> int:
        return self._address

    @overload
    def stride(self) -> tuple[int, ...]: ...
    @overload
    def stride(self, dimension: int) -> int: ...
    def stride(self, dimension: int | None = None) -> int | tuple[int, ...]:
        """Elements from one index to the next, of every dimension or of one."""
        strides = [1]
        for size in (self._pitch or self.shape[-1], *reversed(self.shape[1:-1]))[: len(self.shape) - 1]:
            strides.insert(0, strides[0] * size)
        return tuple(strides) if dimension is None else strides[dimension]


@dataclass(frozen=True)
class _TargetDriver:
    """What Triton asks of its driver while it compiles: the target, a device index and a stream."""

    target: int

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.target, WARP_SIZE)

    def get_current_device(self) -> int:
        return _FIRST_FAKE_INDEX - self.target

    def get_current_stream(self, device: int) -> int:
        return 0


def interpreted() -> bool:
    """Whether ``TRITON_INTERPRET`` makes Triton kernels run in Python on the CPU, so that nothing is compiled."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


@contextlib.contextmanager
def compiling_for(device: Device) -> Iterator[None]:
    """Within the block, Triton in this process compiles for ``device`` and must launch nothing."""
    from triton.runtime import driver

    with _LOCK:
        # The private attribute, because the public one looks for a GPU.
        previous = driver._active
        driver.set_active(_TargetDriver(device.target))
        try:
            yield
        finally:
            driver.set_active(previous)


def compile_triton(device: Device, fn: Any, *args: Any, grid: tuple[int, ...] = (1,), **meta: Any) -> Resources:
    """Compile the ``@triton.jit`` function ``fn`` for ``device`` and fill Triton's disk cache.

    ``args`` and ``meta`` are those of the launch, with a `MockTensor` for each tensor; sizes and strides must be
    those of the launch in what Triton specialises for: the type, being 1, being divisible by 16.

    Raises:
        OverLimit: it compiles, but needs more shared memory than a block has on ``device``.
        CompileError: the compiler refuses it.
    """
    try:
        # Triton prints a refused program on standard output, which belongs to the caller.
        with compiling_for(device), contextlib.redirect_stdout(io.StringIO()):
            compiled = fn.warmup(*args, grid=grid, **meta)
    except Exception as error:  # compilers raise whatever they like
        raise CompileError(telling_line(error)) from error
    found = resources_of_cubin(compiled.asm["cubin"])
    resources = Resources(compiled.metadata.shared, found.registers, found.spill_bytes)
    check_limits(resources, device)
    return resources


def check_limits(resources: Resources, device: Device) -> None:
    """Refuse ``resources`` that no block has on ``device``.

    Raises:
        OverLimit: more shared memory than one block can ask for.
    """
    needed = resources.shared_memory_bytes or 0
    if needed > device.shared_memory_bytes:
        raise OverLimit("bytes of shared memory", needed, device.shared_memory_bytes)


def resources_of_cubin(cubin: bytes) -> Resources:
    """What the kernels in ``cubin`` need, the largest of each: static shared memory, registers and local memory.

    ``spill_bytes`` is a thread's stack frame, which holds spilled registers and arrays indexed at run time. None
    of each where ``cuobjdump`` is absent or does not tell.
    """
    tool = _cuobjdump()
    if tool is None:
        return Resources()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            run = subprocess.run(
                [tool, "-res-usage", file.name],
                capture_output=True,
                text=True,
                timeout=CUOBJDUMP_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return Resources()
    usages = [{name: int(value) for name, value in m.groupdict().items()} for m in _USAGE.finditer(run.stdout)]
    if not usages:
        return Resources()
    return Resources(
        shared_memory_bytes=max(usage["shared"] for usage in usages),
        registers=max(usage["registers"] for usage in usages),
        spill_bytes=max(usage["stack"] + usage["local"] for usage in usages),
    )


@cache
def _cuobjdump() -> str | None:
    """The path of the ``cuobjdump`` that Triton carries or ``TRITON_CUOBJDUMP_PATH`` names; None where absent."""
    try:
        from triton import knobs

        path = knobs.nvidia.cuobjdump.path
    except (ImportError, AttributeError, RuntimeError, OSError, subprocess.SubprocessError):
        return None
    return path if Path(path).is_file() else None


def telling_line(error: BaseException) -> str:
    """The line of a compiler's error that says what is wrong: the innermost cause's first line with "error" in it,
    else its last line; prefixed with the error's type."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(getattr(error, "error_message", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"\berror\s*:", line, re.IGNORECASE)]
    line = (told or lines[-1:] or ["no message"])[0]
    return f"{type(error).__name__}: {line}"
