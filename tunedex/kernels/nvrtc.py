"""CUDA C++ kernels: compiled by NVRTC for any target with no GPU, kept on disk, launched on torch's current stream.

A source is a file of ``tunedex/kernels/cuda`` that defines one ``extern "C"`` kernel of its own file name. Its
choices come in as macros, so each config is a program of its own with everything unrolled. The sources include
only headers of that folder: NVRTC then needs no CUDA toolkit, and compiles several times faster.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tunedex.core.device import Device
from tunedex.core.errors import DeviceError
from tunedex.core.files import write_whole
from tunedex.core.folders import cache_folder
from tunedex.core.measurement import Resources
from tunedex.kernels.base import CompileError

SOURCES = Path(__file__).with_name("cuda")

#: The types that a kernel's parameters have.
POINTER, INT64, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float

_LOCK = threading.Lock()


def missing_nvrtc() -> str | None:
    """What is not installed here; None where NVRTC and its Python bindings are."""
    try:
        _nvrtc()
    except CompileError as error:
        return str(error)
    return None


def compile_cubin(source: str, macros: Mapping[str, int | str], target: int) -> bytes:
    """The machine code of ``cuda/<source>.cu`` with ``macros`` defined, for compute capability ``target`` (90 is 9.0).

    Raises:
        CompileError: NVRTC is not there, or refuses the program; the message is its first error.
    """
    nvrtc = _nvrtc()
    options = [
        f"--gpu-architecture=sm_{target}",
        "--std=c++17",
        *(f"--define-macro={name}={value}" for name, value in sorted(macros.items())),
    ]
    text, headers = _text(source), _headers()
    digest = hashlib.sha256()
    for part in (text, *headers.values(), *options, ".".join(map(str, _version()))):
        digest.update(part.encode() + b"\0")
    path = cache_folder() / "nvrtc" / f"{source}-{digest.hexdigest()[:32]}.cubin"
    kept = _read(path)
    if kept is not None:
        return kept
    cubin = _compile(nvrtc, source, text, headers, options)
    _write(path, cubin)
    return cubin


def compile_resources(source: str, macros: Mapping[str, int | str], device: Device) -> Resources:
    """Compile as `compile_cubin` for ``device`` and tell what a block needs.

    Raises:
        CompileError: as `compile_cubin`; `OverLimit` where the device has too little shared memory.
    """
    from tunedex.kernels.offline import check_limits, resources_of_cubin

    resources = resources_of_cubin(compile_cubin(source, macros, device.target))
    check_limits(resources, device)
    return resources


class CudaKernel:
    """A compiled kernel on whichever device is current when it is launched.

    Args:
        source: the file's and the kernel's name.
        macros: the program's choices.
        target: the compute capability of the devices it will run on.
        types: the ctypes types of the kernel's parameters, in order.
    """

    def __init__(self, source: str, macros: Mapping[str, int | str], target: int, types: Sequence[type]) -> None:
        self._source, self._macros, self._target = source, dict(macros), target
        self._types = tuple(types)
        self._function: Any = None

    def launch(self, blocks: int, threads: int, stream: int, arguments: Sequence[int | float]) -> None:
        """Start ``blocks`` blocks of ``threads`` threads on the CUDA stream of that handle; tensors by their addresses.

        Raises:
            CompileError: the first launch compiles, and the compiler refuses.
            DeviceError: the driver refuses.
        """
        if self._function is None:
            self._function = _load(compile_cubin(self._source, self._macros, self._target), self._source)
        driver = _driver()
        (status,) = driver.cuLaunchKernel(
            self._function, blocks, 1, 1, threads, 1, 1, 0, stream, (tuple(arguments), self._types), 0
        )
        _succeeded(status, f"launching {self._source}")


def current_stream(device: Any) -> int:
    """The handle of torch's current stream on ``device``."""
    import torch

    return torch.cuda.current_stream(device).cuda_stream


@cache
def _nvrtc() -> Any:
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        raise CompileError("cuda-bindings is not installed")
    from cuda.bindings import nvrtc

    try:
        status, *_ = nvrtc.nvrtcVersion()
    except (RuntimeError, OSError, ImportError) as error:
        raise CompileError(f"NVRTC does not load: {str(error).splitlines()[0]}") from error
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC does not answer: {status.name}")
    return nvrtc


@cache
def _version() -> tuple[int, int]:
    _, major, minor = _nvrtc().nvrtcVersion()
    return major, minor


@cache
def _driver() -> Any:
    from cuda.bindings import driver

    return driver


@cache
def _text(source: str) -> str:
    return (SOURCES / f"{source}.cu").read_text(encoding="utf-8")


@cache
def _headers() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.cuh"))}


def _compile(nvrtc: Any, source: str, text: str, headers: Mapping[str, str], options: Sequence[str]) -> bytes:
    status, program = nvrtc.nvrtcCreateProgram(
        text.encode(),
        f"{source}.cu".encode(),
        len(headers),
        [header.encode() for header in headers.values()],
        [name.encode() for name in headers],
    )
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC takes no program: {status.name}")
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(_complaint(nvrtc, program) or status.name)
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        cubin = bytearray(size)
        (status,) = nvrtc.nvrtcGetCUBIN(program, cubin)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC gives no machine code: {status.name}")
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _complaint(nvrtc: Any, program: Any) -> str:
    """The first line of the compiler's log that is an error, else its first line."""
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    lines = [line.strip() for line in log.decode(errors="replace").strip("\0 \n").splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "")


def _load(cubin: bytes, name: str) -> Any:
    """The kernel ``name`` of ``cubin`` as a function that every device's context takes."""
    driver = _driver()
    with _LOCK:
        status, library = driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0)
        _succeeded(status, f"loading {name}")
        status, kernel = driver.cuLibraryGetKernel(library, name.encode())
        _succeeded(status, f"finding {name}")
    return driver.CUfunction(int(kernel))


def _succeeded(status: Any, doing: str) -> None:
    if int(status) != 0:
        raise DeviceError(f"{doing}: the driver answers {status.name}")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes() or None
    except OSError:
        return None


def _write(path: Path, content: bytes) -> None:
    """Keep ``content`` at ``path``, whole or not at all. A folder that cannot be written costs a compilation each
    time, and nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except (OSError, RuntimeError):  # RuntimeError: the home folder is not known
        return
