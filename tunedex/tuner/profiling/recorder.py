"""What runs inside a program that is profiled: it sees torch's operators as they run, and times them.

A dispatch mode sees each operator below autograd and autocast, on the tensors that really meet, with its arguments.
It is the one mechanism that tells by data flow which result goes where, keeps nothing of what it has seen but sums,
and leaves the program's own use of torch's profiler alone. Its price is some Python for each operator. A mode belongs
to a thread, so every thread that Python starts gets one; autograd's threads inherit that of the caller. What is
compiled by `torch.compile` stays compiled, so of it only calls of library operators are seen.

On a CPU an operator lasts as long as its call. On a CUDA device it lasts from an event recorded before it to one after
it, on its stream, and nothing waits: events are read when what was seen is written. Pairs around each operator, and
not around a chain, keep what runs between the steps of a chain out of its time.

This file and `chains` are copied beside `bootstrap` and loaded from there, in whatever Python and torch the program
has: they import torch and the standard library alone.
"""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import util as processes
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tunedex.tuner.profiling.chains import Chains, Kind, Operator, Value

#: Tensors whose operators run at once.
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class Sum:
    """The calls of one kind of operator: how many, and of how many the time is known."""

    __slots__ = ("calls", "nanoseconds", "started", "timed")

    def __init__(self) -> None:
        self.calls = self.started = self.timed = 0
        self.nanoseconds = 0.0


class Recorder:
    """What a process has run so far, and the file that holds it.

    Bookkeeping that goes wrong ends the recording and not the program.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        self.folder, self.plan = folder, plan
        self.patterns = [{**pattern, "number": number} for number, pattern in enumerate(plan["patterns"])]
        self.infos: dict[Any, Operator] = {}
        self.restart()

    def restart(self) -> None:
        """Begin with nothing, as in a fork, whose parent writes what was before; its CUDA context is not usable."""
        # Entered again where a signal's handler or a finaliser runs operators.
        self.lock = threading.RLock()
        self.error = ""
        self.sums: dict[Kind, Sum] = {}
        self.chains = Chains(self.plan["kinds"], self.plan["values"])
        self.captured = 0
        self._graphs_before = _compiled_graphs()
        self._pending: list[tuple[Sum, Any, Any]] = []
        self._events: list[Any] = []
        self._path = self.folder / f"seen-{os.getpid()}-{time.time_ns()}.json"
        self._next_write_ns = 0

    def info(self, function: Any) -> Operator:
        found = self.infos.get(function)
        if found is None:
            found = self.infos[function] = Operator(function, self.patterns)
        return found

    def sum_of(self, kind: Kind) -> Sum:
        found = self.sums.get(kind)
        if found is None:
            if len(self.sums) >= self.plan["kinds"]:
                kind = _OTHERS
            found = self.sums.setdefault(kind, Sum())
        return found

    def fail(self, error: BaseException) -> None:
        self.error = f"{type(error).__name__}: {error}".partition("\n")[0]
        self.write()

    # Times on a CUDA device.

    def before(self, kind: Kind, device: torch.device, *, capturing: bool) -> tuple[Sum, Any] | None:
        """Count a call that is about to be made on ``device``; with an event where it is to be timed."""
        total = self.sum_of(kind)
        total.calls += 1
        if capturing:
            self.captured += 1
        elif total.started < self.plan["timed_calls"]:
            total.started += 1
            return total, self._event(device)
        return None

    def after(self, begun: tuple[Sum, Any], device: torch.device) -> None:
        """The call is made; its time is read later."""
        self._pending.append((*begun, self._event(device)))

    def _event(self, device: torch.device) -> Any:
        """An event recorded now on the current stream of ``device``."""
        event = self._events.pop() if self._events else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    def _read_events(self, *, wait: bool) -> None:
        if not self._pending or torch.cuda.is_current_stream_capturing():
            return
        left = []
        for total, begin, end in self._pending:
            if wait:
                end.synchronize()
            elif not end.query():
                left.append((total, begin, end))
                continue
            total.nanoseconds += begin.elapsed_time(end) * 1e6
            total.timed += 1
            # A device's events stay on it.
            if torch.cuda.device_count() == 1:
                self._events += (begin, end)
        self._pending = left

    # The file.

    def write_at_times(self, now_ns: int) -> None:
        """Write where it is time to."""
        if now_ns < self._next_write_ns:
            return
        self.write()
        after_ns = time.perf_counter_ns()
        pause_ns = max(self.plan["write_every_s"] * 1e9, (after_ns - now_ns) / self.plan["write_share"])
        self._next_write_ns = after_ns + int(pause_ns)

    def finish(self) -> None:
        """Write for the last time, though a thread may still be at work."""
        with self.lock:
            self.write(wait=True)

    def write(self, *, wait: bool = False) -> None:
        """Write what was seen, whole or not at all; ``wait`` for a CUDA device to end what it has to do."""
        with suppress(RuntimeError):  # a device that an error of the program has left unusable
            self._read_events(wait=wait)
        with suppress(Exception):  # nor is a full disk the program's affair
            beside = self._path.with_suffix(f".{threading.get_ident()}")
            beside.write_text(json.dumps(self.document()), encoding="utf-8")
            beside.replace(self._path)

    def document(self) -> dict[str, Any]:
        """What was seen, as `tunedex.tuner.profiling.profile` reads it."""
        numbers = {kind: number for number, kind in enumerate(self.sums)}
        return {
            "versions": _versions(),
            "devices": {str(device): _device(device) for device in {kind[2] for kind in self.sums} - {None}},
            "operators": [
                {
                    "operator": name,
                    "shapes": [list(shape) for shape, _ in places],
                    "dtypes": [_name(dtype) for _, dtype in places],
                    "device": str(device or ""),
                    "calls": total.calls,
                    "timed": total.timed,
                    "nanoseconds": total.nanoseconds,
                }
                for (name, places, device), total in self.sums.items()
            ],
            "chains": [
                {
                    "pattern": pattern,
                    "operands": {
                        name: (shape, strides, _name(dtype), str(device), address)
                        for name, (shape, strides, dtype, device, address) in operands
                    },
                    "attributes": dict(attributes),
                    "shape": whole,
                    "steps": [numbers.get(kind) for kind in kinds],
                    "calls": count[0],
                    "gradient_calls": count[1],
                }
                for (pattern, operands, attributes, whole, kinds), count in self.chains.counts.items()
                if count[0]
            ],
            "captured_calls": self.captured,
            "compiled_graphs": _compiled_graphs() - self._graphs_before,
            "error": self.error,
        }


#: Where torch tells its compiler what to leave alone; elsewhere the compiler is imported for it.
_FRAMES: Any = torch._C._dynamo.eval_frame
_CAN_SHIELD = all(hasattr(_FRAMES, n) for n in ("_FrameAction", "_FrameExecStrategy", "set_code_exec_strategy"))

#: The kind that is counted for all beyond those that are told apart.
_OTHERS: Kind = ("others", (), None)


class _Watch(TorchDispatchMode):
    """The mode of one thread."""

    #: An operator that calls others is passed on.
    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.values: dict[int, Value] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """With this, `torch.compile` compiles as it does without a mode."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """`_shield` sees to that, and does not import the compiler where the program does not."""
        return not _CAN_SHIELD

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        recorder, kwargs = self.recorder, kwargs or {}
        info = recorder.infos.get(func) or recorder.info(func)
        if types and not _PLAIN.issuperset(types):
            # One that wraps others runs operators on them, with this mode in force, where this handler steps aside.
            # Others, as fake tensors, only have their operators passed on.
            return NotImplemented if any(hasattr(t, "__tensor_flatten__") for t in types) else func(*args, **kwargs)
        if info.skipped or recorder.error:
            return func(*args, **kwargs)
        tensors = [*_tensors(args), *_tensors(kwargs.values())] if kwargs else list(_tensors(args))
        kind = _kind(info, tensors)
        if kind is None:
            return func(*args, **kwargs)
        if kind[2] is not None and kind[2].type == "cuda":
            return self._on_cuda(func, args, kwargs, info, tensors, kind, kind[2])
        begin_ns = time.perf_counter_ns()
        result = func(*args, **kwargs)
        end_ns = time.perf_counter_ns()
        with recorder.lock:
            try:
                total = recorder.sum_of(kind)
                total.calls += 1
                total.timed += 1
                total.nanoseconds += end_ns - begin_ns
                if info.places or self.values:
                    bound = info.bound(args, kwargs) if info.places else {}
                    recorder.chains.follow(self.values, info, bound, tensors, result, kind)
                recorder.write_at_times(end_ns)
            except Exception as error:  # noqa: BLE001 - what is wrong here is not the program's
                recorder.fail(error)
        return result

    def _on_cuda(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        info: Operator,
        tensors: Sequence[torch.Tensor],
        kind: Kind,
        device: torch.device,
    ) -> Any:
        """The same on a device that runs behind: each kind is timed by events, on its first calls."""
        recorder = self.recorder
        capturing = torch.cuda.is_current_stream_capturing()
        begun = None
        with recorder.lock:
            try:
                begun = recorder.before(kind, device, capturing=capturing)
            except Exception as error:  # noqa: BLE001 - what is wrong here is not the program's
                recorder.fail(error)
        result = func(*args, **kwargs)
        with recorder.lock:
            try:
                if begun:
                    recorder.after(begun, device)
                if info.places or self.values:
                    bound = info.bound(args, kwargs) if info.places else {}
                    recorder.chains.follow(self.values, info, bound, tensors, result, kind)
                if not capturing:
                    recorder.write_at_times(time.perf_counter_ns())
            except Exception as error:  # noqa: BLE001 - what is wrong here is not the program's
                recorder.fail(error)
        return result


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, torch.Tensor))


def _kind(info: Operator, tensors: Sequence[torch.Tensor]) -> Kind | None:
    """The operator with the shapes and dtypes that it meets, and the device that it runs on (None where it has no
    tensor to tell); None for one that runs nowhere, or on what has no shape, as a nested tensor."""
    device = None
    for tensor in tensors:
        device = tensor.device
        if device.type != "cpu":
            break
    if device is not None and device.type not in ("cpu", "cuda"):
        return None
    try:
        return info.name, tuple([(tensor.shape, tensor.dtype) for tensor in tensors]), device
    except RuntimeError:
        return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def _versions() -> dict[str, str]:
    found = {"python": ".".join(platform.python_version_tuple()[:2]), "cuda": torch.version.cuda or ""}
    for package in ("torch", "triton", "numba"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


@functools.cache
def _device(device: torch.device) -> dict[str, Any]:
    """What tells a device from others, as `tunedex.core.cuda.cuda_device` takes it, and its UUID."""
    if device.type != "cuda":
        return {}
    properties: Any = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "compute_capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "shared_memory_bytes": properties.shared_memory_per_block_optin,
        "uuid": str(getattr(properties, "uuid", "")),
    }


def _compiled_graphs() -> int:
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", {})
    return int(counters["stats"]["unique_graphs"]) if "stats" in counters else 0


def _shield() -> None:
    """Keep `torch.compile` from compiling this file's functions, which run inside compiled ones as well."""
    skip = _FRAMES._FrameAction.SKIP
    for function in (_Watch.__torch_dispatch__, _Watch._on_cuda):
        _FRAMES.set_code_exec_strategy(function.__code__, _FRAMES._FrameExecStrategy(skip, skip))


def _in_threads(enter: Callable[[], _Watch]) -> None:
    """Let every thread that is started from now on have a mode of its own."""
    thread: Any = threading.Thread
    run = thread._bootstrap_inner

    @functools.wraps(run)
    def watched(self: threading.Thread) -> None:
        with enter():
            run(self)

    thread._bootstrap_inner = watched


def begin(folder: str) -> None:
    """Record from here on, by the plan in ``folder``."""
    plan = json.loads((Path(folder) / "plan.json").read_text(encoding="utf-8"))
    recorder = Recorder(Path(folder), plan)
    if _CAN_SHIELD:
        _shield()
    _Watch(recorder).__enter__()
    _in_threads(lambda: _Watch(recorder))
    atexit.register(recorder.finish)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=recorder.restart)
    # A child of multiprocessing that was forked ends without atexit.
    processes.register_after_fork(recorder, lambda forked: processes.Finalize(None, forked.finish, exitpriority=0))
