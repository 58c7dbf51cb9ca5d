"""What a sweep works on: tasks from presets and from the command line's problems."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunedex.core.device import Device
from tunedex.core.display import bytes_words, one_line
from tunedex.core.errors import BadInput, CannotRun
from tunedex.core.limits import Limits
from tunedex.core.problem import Problem
from tunedex.core.question import parse_parameters, with_work
from tunedex.kernels.base import Kernel
from tunedex.kernels.registry import all_kernels, get_kernel
from tunedex.tuner.costs import bytes_of
from tunedex.tuner.settings import SETTINGS

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """One search: a problem, or one problem at several batches that the search chooses between."""

    kernel: Kernel
    problems: tuple[Problem, ...]
    max_error: float | None = None

    def __str__(self) -> str:
        text = str(self.problems[0])
        return f"{text},batch=auto" if len(self.problems) > 1 else text


@dataclass(frozen=True)
class Preset:
    """The effort for the problems that each kernel names for a preset: configs a task, and seconds a device."""

    trials: int
    budget_s: float


PRESETS: Mapping[str, Preset] = {"quick": Preset(trials=96, budget_s=160.0)}


def preset_named(name: str) -> Preset:
    """The preset of that name.

    Raises:
        BadInput: there is none.
    """
    if name not in PRESETS:
        raise BadInput(f"preset {name!r} is unknown; known are {', '.join(PRESETS)}", field="preset")
    return PRESETS[name]


def tasks_for(
    device: Device,
    kernels: Sequence[str],
    problems: Sequence[str],
    seen: Sequence[Problem] = (),
    *,
    tell: Callable[[str], None] = _log.warning,
) -> list[Task]:
    """The tasks for ``device``: the named ``problems`` and those ``seen`` that are of ``kernels`` (all where empty);
    where neither is given, the preset problems of ``kernels``. ``tell`` is told in one line of each kernel that is left
    out, since its own code does not name them.

    Raises:
        CannotRun: no kernel names its preset problems.
        BadInput: a kernel or a problem is wrong or too large for ``device``, or nothing that was seen is of ``kernels``
            and fits it.
    """
    chosen = [get_kernel(name) for name in kernels] or list(all_kernels().values())
    if not problems and not seen:
        return _of_presets(chosen, device, tell)
    tasks = [parse_task(text, device) for text in problems]
    for task in tasks:
        if task.kernel not in chosen:
            names = ", ".join(kernel.name for kernel in chosen)
            raise BadInput(
                f"problem {str(task)!r} is of none of the kernels that --kernels allows: {names}", field="problem"
            )
    tasks += [Task(kernel, (problem,)) for problem in seen if (kernel := get_kernel(problem.kernel)) in chosen]
    if not tasks:
        raise BadInput("--problems holds no problem of the kernels that --kernels allows", field="problems")
    too_large = {task: why for task in tasks if (why := _too_large(task, device))}
    named = tasks[: len(problems)]
    for task, why in too_large.items():
        if task in named or len(too_large) == len(set(tasks)):
            raise BadInput(why, field="problem")
        _log.warning("left out: %s", why)  # a file may be of a larger device
    return [task for task in dict.fromkeys(tasks) if task not in too_large]


def quick_tasks(kernel: Kernel, device: Device) -> list[Task]:
    """The tasks that ``kernel`` names for the quick preset on ``device``.

    Raises:
        CannotRun: its own code fails, or names what is no problem of it.
    """
    try:
        return [_task(kernel, parameters, device) for parameters in kernel.quick(device)]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        words = f"{type(error).__name__}: {one_line(error)}"
        raise CannotRun(f"kernel {kernel.name} names no problems of the quick preset: {words}") from error


def _of_presets(kernels: Sequence[Kernel], device: Device, tell: Callable[[str], None]) -> list[Task]:
    tasks: list[Task] = []
    faults: list[CannotRun] = []
    for kernel in kernels:
        try:
            tasks += quick_tasks(kernel, device)
        except CannotRun as fault:
            faults.append(fault)
    if faults and len(faults) == len(kernels):
        raise faults[0]
    for each in faults:
        tell(f"left out: {each}")
    return tasks


def _too_large(task: Task, device: Device) -> str:
    """Why not even operands and outputs of ``task``'s smallest problem fit ``device``'s memory; "" where they do."""
    needed_bytes = min(bytes_of(task.kernel, problem) for problem in task.problems)
    if needed_bytes <= device.memory_bytes or not device.memory_bytes:
        return ""
    needs = f"problem {str(task)!r} needs {bytes_words(needed_bytes)} for operands and outputs"
    return f"{needs}, this device has {bytes_words(device.memory_bytes)}"


def parse_task(text: str, device: Device) -> Task:
    """Read ``KERNEL:name=value,...``, as in ``softmax:batch=auto,rows=1024,cols=4096,dtype=float32``.

    Raises:
        BadInput: the kernel or a parameter is wrong, or a dimension is zero.
    """
    name, colon, rest = text.partition(":")
    if not colon or not rest.strip():
        raise BadInput(f"problem {text!r} is not KERNEL:name=value,...", field="problem")
    kernel = get_kernel(name.strip())
    return _task(kernel, parse_parameters(rest.split(",")), device)


def _task(kernel: Kernel, parameters: Mapping[str, Any], device: Device) -> Task:
    limits, given = Limits.apart(parameters)
    if limits != Limits(max_error=limits.max_error):
        raise BadInput("a sweep takes no limit but max_error: it measures, and callers choose", field="problem")
    auto = given.get("batch") == "auto"
    if auto:
        given["batch"] = 1
    problem = with_work(kernel.signature.problem(given))
    if not auto:
        return Task(kernel, (problem,), limits.max_error)
    room = device.memory_bytes * SETTINGS.batch_memory_share
    batches = [problem.at_batch(batch) for batch in SETTINGS.batches]
    fitting = tuple(item for item in batches if item.batch == 1 or bytes_of(kernel, item) <= room)
    return Task(kernel, fitting, limits.max_error)
