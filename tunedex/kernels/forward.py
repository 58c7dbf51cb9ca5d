"""Rows of another version of a kernel, as this version reads them, and what a call then runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from tunedex.core.config import Config
from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.kernels.base import Kernel

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


def to_try(kernel: Kernel, problem: Problem, device: Device, rows: Sequence[Row]) -> list[Config]:
    """What to run for ``problem``, the best first and each once: ``rows`` in their order as this version of ``kernel``
    spells them, then its own default, which whoever published ``rows`` may not know.

    Of the rows of another version, which nobody has verified with this one, only those in its space are taken. That
    there are any is said once in a process.
    """
    version = kernel.signature.version
    for other in sorted({row.kernel_version for row in rows} - {version}):
        _say_once(kernel.name, other, version)
    configs = [
        row.config
        for row in mapped_forward(kernel, rows)
        if row.kernel_version == version or _in_space(kernel, problem, device, row.config)
    ]
    default = kernel.signature.default(problem, device)
    return list(dict.fromkeys([*configs, default] if default else configs))


def _in_space(kernel: Kernel, problem: Problem, device: Device, config: Config) -> bool:
    implementation = next((i for i in kernel.implementations if i.name == config.implementation), None)
    if implementation is None or device.kind not in implementation.kinds:
        return False
    tunables = {tunable.name: tunable.values for tunable in implementation.tunables(problem, device)}
    return (
        config.values.keys() == tunables.keys()
        and all(value in tunables[name] for name, value in config.values.items())
        and all(constraint.holds(config.values) for constraint in implementation.constraints(problem, device))
    )


@cache
def _say_once(kernel: str, measured: str, installed: str) -> None:
    log.warning(
        "%s has configs that were measured with its version %s, and this is %s: those that it still has are run, the "
        "others are passed over; `tuner verify` measures them anew",
        kernel,
        measured,
        installed,
    )
