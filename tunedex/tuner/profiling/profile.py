"""What a program's processes saw, read as problems: which kernel a chain of operators is, on which problem, and its
share of the time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tunedex.core import host
from tunedex.core.cuda import cuda_device
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput, TunedexError
from tunedex.core.problem import Problem
from tunedex.core.question import with_work
from tunedex.kernels.base import Kernel
from tunedex.kernels.registry import builtin_kernels
from tunedex.kernels.tensors import arranged
from tunedex.tuner.devices import detect, environment_of
from tunedex.tuner.nvml import bare_uuid
from tunedex.tuner.problem_file import FORMAT, VERSION
from tunedex.tuner.profiling.program import Recording
from tunedex.tuner.profiling.remembered import Remembered
from tunedex.tuner.settings import SETTINGS

#: Operators of this namespace are Tunedex's own.
_OURS = "tunedex::"
#: Tensors of an operator that its line names.
_SHOWN = 3


@dataclass(frozen=True)
class Hot:
    """A problem of the program: its calls, those of them that want a gradient, and their time in milliseconds."""

    problem: Problem
    calls: int
    gradient_calls: int
    total_ms: float


@dataclass(frozen=True)
class Uncovered:
    """An operator on tensors of these shapes and dtypes, as far as it is part of no problem."""

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    calls: int
    total_ms: float

    def __str__(self) -> str:
        tensors = [f"{dtype}[{_sizes(shape)}]" for dtype, shape in zip(self.dtypes, self.shapes, strict=True)]
        shown = tensors[:_SHOWN] + ["..."] * (len(tensors) > _SHOWN)
        return " ".join([self.operator, *shown])


@dataclass(frozen=True)
class Profile:
    """A profiled program.

    ``torch_s`` is the time in all torch operators, in seconds, added over threads and processes; shares are of it.
    ``device`` is where most of it went, None where no operator was seen; ``problems`` and ``operators`` are what ran
    there, most time first. ``notes`` are lines for whoever reads the numbers.
    """

    exit_code: int
    wall_s: float
    processes: int = 0
    device: Device | None = None
    environment: Environment | None = None
    torch_s: float = 0.0
    problems: tuple[Hot, ...] = ()
    operators: tuple[Uncovered, ...] = ()
    notes: tuple[str, ...] = ()

    def share(self, total_ms: float) -> float:
        """The share of the time in torch's operators that ``total_ms`` is."""
        return total_ms / 1e3 / self.torch_s if self.torch_s else 0.0

    def wall_share(self, total_ms: float) -> float:
        """The share of the program's whole time; over 1 where threads or processes ran side by side."""
        return total_ms / 1e3 / self.wall_s if self.wall_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The problem file, without its date and command, and without what tells one board from another."""
        return {
            "tunedex": FORMAT,
            "version": VERSION,
            "device": replace(self.device, attributes={}).to_dict() if self.device else None,
            "environment": self.environment.to_dict() if self.environment else None,
            "exit_code": self.exit_code,
            "wall_s": self.wall_s,
            "torch_s": self.torch_s,
            "processes": self.processes,
            "problems": [
                {
                    **hot.problem.to_dict(),
                    "calls": hot.calls,
                    "gradient_calls": hot.gradient_calls,
                    "total_ms": hot.total_ms,
                    "share": self.share(hot.total_ms),
                    "wall_share": self.wall_share(hot.total_ms),
                }
                for hot in self.problems
            ],
            "operators": [
                {
                    "operator": each.operator,
                    "shapes": [list(shape) for shape in each.shapes],
                    "dtypes": list(each.dtypes),
                    "calls": each.calls,
                    "total_ms": each.total_ms,
                    "share": self.share(each.total_ms),
                }
                for each in self.operators
            ],
            "notes": list(self.notes),
        }


def profile_of(recording: Recording) -> Profile:
    """Read what was recorded."""
    seen = [_Process(document, recording) for document in recording.documents]
    seen = [process for process in seen if process.operators]
    plain = Profile(recording.exit_code, recording.wall_s, len(seen))
    if not seen:
        return plain
    times: Counter[Device] = Counter()
    for process in seen:
        times.update(process.times())
    (device, _), *others = times.most_common()
    ours = [process for process in seen if device in process.devices.values()]
    problems = _together(hot for process in ours for hot in process.problems(device))
    operators = _summed(each for process in ours for each in process.uncovered(device))
    covered = sum(each.total_ms for each in operators if each.operator.startswith(_OURS))
    profile = replace(
        plain,
        device=device,
        environment=_environment(device, ours[0].document["versions"]),
        torch_s=sum(times.values()) / 1e9,
        problems=problems,
        operators=tuple(e for e in operators if not e.operator.startswith(_OURS))[: SETTINGS.profiling.reported],
    )
    return replace(profile, notes=tuple(_notes(profile, seen, [each for each, _ in others], covered)))


def _notes(profile: Profile, seen: Sequence[_Process], others: Sequence[Device], covered_ms: float) -> Iterator[str]:
    if covered_ms:
        yield f"{profile.share(covered_ms):.1%} of the time is in tunedex.ops already"
    if gradients := sum(hot.gradient_calls for hot in profile.problems):
        yield f"calls that want a gradient, which tunedex.ops leaves to torch: {gradients}"
    if compiled := sum(process.document["compiled_graphs"] for process in seen):
        yield f"graphs of torch.compile, in which nothing is seen or timed: {compiled}"
    if captured := sum(process.document["captured_calls"] for process in seen):
        yield f"operators captured in a CUDA graph, whose replays are not seen or timed: {captured}"
    if others:
        yield f"what ran on {', '.join(other.key for other in others)} is left out"
    yield from sorted({fault for process in seen for fault in process.faults})


class _Process:
    """One process's document, with its devices joined with those of this host."""

    def __init__(self, document: Mapping[str, Any], recording: Recording) -> None:
        self.document, self.recording = document, recording
        self.operators: Sequence[Mapping[str, Any]] = document["operators"]
        #: By torch's name for it; an operator that makes a tensor from nothing tells none, and counts as the CPU's.
        self.devices = {"": host.cpu()}
        self.devices |= {name: _device(described) for name, described in document["devices"].items()}
        #: By the number of a chain, the problem that it is.
        self.found: dict[int, Problem] = {}
        self.faults = {f"recording ended early: {document['error']}"} if document["error"] else set[str]()
        for number, chain in enumerate(document["chains"]):
            kernel, _ = recording.patterns[chain["pattern"]]
            try:
                problem = _problem(kernel, chain)
            except Exception as error:  # noqa: BLE001 - a kernel may be anybody's, and the program has run
                self.faults.add(f"{kernel.name} fails on what was seen: {type(error).__name__}: {error}")
                continue
            if problem:
                self.found[number] = problem

    def times(self) -> Counter[Device]:
        """Nanoseconds by device."""
        times: Counter[Device] = Counter()
        for number, operator in enumerate(self.operators):
            times[self._device_of(operator)] += self._mean_ns(number) * operator["calls"]
        return times

    def problems(self, device: Device) -> Iterator[Hot]:
        for number, problem in self.found.items():
            chain = self.document["chains"][number]
            if self._device_of(self.operators[chain["steps"][0]]) == device:
                mean_ns = sum(self._mean_ns(step) for step in chain["steps"])
                yield Hot(problem, chain["calls"], chain["gradient_calls"], mean_ns * chain["calls"] / 1e6)

    def uncovered(self, device: Device) -> Iterator[Uncovered]:
        chained: Counter[int] = Counter()
        for number in self.found:
            chain = self.document["chains"][number]
            for step in chain["steps"]:
                chained[step] += chain["calls"]
        for number, operator in enumerate(self.operators):
            calls = operator["calls"] - chained[number]
            if calls > 0 and self._device_of(operator) == device:
                yield Uncovered(
                    operator["operator"],
                    tuple(tuple(shape) for shape in operator["shapes"]),
                    tuple(operator["dtypes"]),
                    calls,
                    self._mean_ns(number) * calls / 1e6,
                )

    def _device_of(self, operator: Mapping[str, Any]) -> Device:
        return self.devices[operator["device"]]

    def _mean_ns(self, number: int) -> float:
        operator = self.operators[number]
        return operator["nanoseconds"] / operator["timed"] if operator["timed"] else 0.0


def _problem(kernel: Kernel, chain: Mapping[str, Any]) -> Problem | None:
    """The problem that a call of ``kernel`` in the chain's place is; None where the kernel refuses it, or where one of
    its steps is among those that are not told apart."""
    if None in chain["steps"]:
        return None
    operands: Mapping[str, torch.Tensor] = {
        name: Remembered(shape, strides, getattr(torch, dtype), device, address)
        for name, (shape, strides, dtype, device, address) in chain["operands"].items()
    }
    try:
        if kernel.name in builtin_kernels():
            # As a call of tunedex.ops: on x as it was before it was flattened, which the result's shape tells.
            x = operands["x"]
            shape = (*chain["shape"][:-1], x.shape[-1])
            if math.prod(shape) != x.numel():
                return None
            operands = arranged(kernel.name, {**operands, "x": x.reshape(shape)})
        return with_work(kernel.problem_of(operands, chain["attributes"]))
    except BadInput:
        return None


def _device(described: Mapping[str, Any]) -> Device:
    """The device of this host that a process described, else the device by its description alone."""
    if not described:
        return host.cpu()
    limits = {name: value for name, value in described.items() if name != "uuid"}
    limits["compute_capability"] = tuple(limits["compute_capability"])
    try:
        for found in detect("cuda"):
            if described["uuid"] and bare_uuid(found.device.attributes.get("uuid")) == bare_uuid(described["uuid"]):
                return found.device
    except TunedexError:
        pass  # it may have been another host's, or be hidden here
    return cuda_device(**limits)


def _environment(device: Device, versions: Mapping[str, str]) -> Environment:
    """This host's environment, with the versions that the program has."""
    here = environment_of(device)
    names = [name for name in ("torch", "triton", "numba", "cuda", "python") if getattr(here, name)]
    known = {name: versions.get(name, "") for name in names}
    return replace(here, **known)


def _together(found: Iterator[Hot]) -> tuple[Hot, ...]:
    """One entry a problem, most time first."""
    entries: dict[Problem, Hot] = {}
    for hot in found:
        before = entries.get(hot.problem)
        if before:
            hot = Hot(
                hot.problem,
                before.calls + hot.calls,
                before.gradient_calls + hot.gradient_calls,
                before.total_ms + hot.total_ms,
            )
        entries[hot.problem] = hot
    return tuple(sorted(entries.values(), key=lambda hot: -hot.total_ms))


def _summed(found: Iterator[Uncovered]) -> list[Uncovered]:
    """One entry an operator and its shapes, most time first."""
    entries: dict[tuple[Any, ...], Uncovered] = {}
    for each in found:
        key = (each.operator, each.shapes, each.dtypes)
        before = entries.get(key)
        if before:
            each = replace(each, calls=before.calls + each.calls, total_ms=before.total_ms + each.total_ms)
        entries[key] = each
    return sorted(entries.values(), key=lambda each: -each.total_ms)


def _sizes(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))
