"""The feasible configs of one problem on one device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.problem import Problem
from tunedex.kernels.base import Implementation, Kernel, Tunable


@dataclass(frozen=True)
class Branch:
    """The part of a space that one implementation has."""

    implementation: str
    tunables: tuple[Tunable, ...]
    configs: tuple[Config, ...]


@dataclass(frozen=True)
class Space:
    """All feasible configs, by implementation. ``refused`` says why an implementation has none."""

    kernel: Kernel
    problem: Problem
    device: Device
    branches: tuple[Branch, ...]
    refused: Mapping[str, str]

    @classmethod
    def of(cls, kernel: Kernel, problem: Problem, device: Device) -> Space:
        branches: list[Branch] = []
        refused: dict[str, str] = {}
        for implementation in kernel.implementations:
            reason = _refusal(implementation, problem, device)
            if reason is None:
                branch = _branch(implementation, problem, device)
                if isinstance(branch, Branch):
                    branches.append(branch)
                    continue
                reason = branch
            refused[implementation.name] = reason
        return cls(kernel, problem, device, tuple(branches), refused)

    def __len__(self) -> int:
        return sum(len(branch.configs) for branch in self.branches)

    def __iter__(self) -> Iterator[Config]:
        return itertools.chain.from_iterable(branch.configs for branch in self.branches)

    def __contains__(self, config: Config) -> bool:
        return any(
            config in branch.configs for branch in self.branches if branch.implementation == config.implementation
        )

    @property
    def default(self) -> Config | None:
        """The kernel's default, if it can run here; it need not be a point of the space."""
        config = self.kernel.signature.default(self.problem, self.device)
        return config if config and any(b.implementation == config.implementation for b in self.branches) else None

    @property
    def library(self) -> tuple[Config, ...]:
        """The configs of the vendor's library call, which is always a candidate."""
        return tuple(config for config in self if config.library)


def _refusal(implementation: Implementation, problem: Problem, device: Device) -> str | None:
    if device.kind not in implementation.kinds:
        return f"runs on {' and '.join(sorted(implementation.kinds))} only"
    return implementation.missing() or implementation.takes(problem, device)


def _branch(implementation: Implementation, problem: Problem, device: Device) -> Branch | str:
    """The branch, or which constraint leaves it empty."""
    tunables = tuple(implementation.tunables(problem, device))
    points: list[dict[str, Value]] = [
        dict(zip((t.name for t in tunables), values, strict=True))
        for values in itertools.product(*(dict.fromkeys(t.values) for t in tunables))
    ]
    if not points:
        empty = next(t.name for t in tunables if not t.values)
        return f"tunable {empty} has no value"
    for constraint in implementation.constraints(problem, device):
        points = [point for point in points if constraint.holds(point)]
        if not points:
            return f"no config is left by the constraint: {constraint.words}"
    return Branch(implementation.name, tunables, tuple(Config(implementation.name, point) for point in points))
