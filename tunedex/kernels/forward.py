"""Published rows as the installed version of a kernel reads them, and which of their configs a call runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tunedex.core.candidates import Candidates, Match
from tunedex.core.canonical import canonical_json
from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.errors import BadInput
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.kernels.base import Implementation, Kernel

log = logging.getLogger("tunedex.ops")


def mapped_forward(kernel: Kernel, rows: Sequence[Row]) -> list[Row]:
    """``rows`` with their configs as this version of ``kernel`` spells them, less those that it has no spelling for."""
    out = []
    for row in rows:
        config: Config | None = row.config
        if row.kernel_version != kernel.signature.version:
            config = kernel.map_forward(row.config, row.kernel_version)
        if config is not None:
            out.append(replace(row, config=config))
    return out


def to_try(kernel: Kernel, problem: Problem, device: Device, found: Candidates) -> list[Config]:
    """What to run for ``problem``, the best first and each once: the rows that were ``found`` in their order as this
    version of ``kernel`` spells them, then its own default, which whoever published them may not know.

    Of the rows that nobody has verified with this version, on this problem and on this device, only those that
    `runnable` takes are here. That there are any of another version is said once in a process.
    """
    version = kernel.signature.version
    for other in sorted({row.kernel_version for row in found.rows} - {version}):
        _say_once(kernel.name, other, version)
    configs = [
        row.config
        for row in mapped_forward(kernel, found.rows)
        if (row.kernel_version == version and found.match is Match.EXACT) or _takes(kernel, problem, device, row.config)
    ]
    default = kernel.signature.default(problem, device)
    return list(dict.fromkeys([*configs, default] if default else configs))


def runnable(kernel: Kernel, problem: Problem, device: Device, config: Config) -> tuple[Implementation, Config]:
    """The implementation that runs ``config``, and ``config`` as this version of ``kernel`` spells it: with the very
    values of its space, or its default. A config comes from somebody's document, and what a kernel does with a value
    that it never offered is nobody's guess.

    Raises:
        BadInput: ``config`` is not in the kernel's space for ``problem`` on ``device``, or nothing here runs it.
    """
    implementation = next((i for i in kernel.implementations if i.name == config.implementation), None)
    if implementation is None:
        raise BadInput(f"{kernel.name} has no implementation {config.implementation}")
    if device.kind not in implementation.kinds:
        raise BadInput(f"{implementation.name} does not run on {device.kind}")
    if refusal := implementation.missing() or implementation.takes(problem, device):
        raise BadInput(refusal)
    default = kernel.signature.default(problem, device)  # it need not be a point of the space
    return implementation, default if config == default else _in_space(implementation, problem, device, config)


def _in_space(implementation: Implementation, problem: Problem, device: Device, config: Config) -> Config:
    """``config`` with the values as ``implementation`` offers them: a document may hold 4.0 where that is 4."""
    tunables = {tunable.name: tunable.values for tunable in implementation.tunables(problem, device)}
    if apart := sorted(config.values.keys() ^ tunables.keys()):
        raise BadInput(f"{apart[0]} is {'missing' if apart[0] in tunables else 'no tunable'} here")
    values: dict[str, Value] = {}
    for name, offered in tunables.items():
        wanted = config.values[name]
        same = [value for value in offered if canonical_json(value) == canonical_json(wanted)]
        if not same:
            raise BadInput(f"{name}={wanted} is none of {', '.join(map(str, offered))}")
        values[name] = same[0]
    for constraint in implementation.constraints(problem, device):
        if not constraint.holds(values):
            raise BadInput(f"it breaks the constraint: {constraint.words}")
    return Config(implementation.name, values)


def _takes(kernel: Kernel, problem: Problem, device: Device, config: Config) -> bool:
    try:
        runnable(kernel, problem, device, config)
    except BadInput:
        return False
    return True


@cache
def _say_once(kernel: str, measured: str, installed: str) -> None:
    log.warning(
        "%s has configs that were measured with its version %s, and this is %s: those that it still has are run, the "
        "others are passed over; `tuner verify` measures them anew",
        kernel,
        measured,
        installed,
    )
