"""The feasible configs of one problem on one device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tunedex.core.canonical import canonical_json
from tunedex.core.config import Config, Value
from tunedex.core.device import Device
from tunedex.core.display import one_line
from tunedex.core.problem import Problem
from tunedex.kernels.base import Implementation, Kernel, Tunable

#: Names that a config gives a meaning.
_RESERVED_NAMES = frozenset({"implementation"})


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
            try:
                found = _refusal(implementation, problem, device) or _branch(implementation, problem, device)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - one implementation's fault, SystemExit too: it alone pays
                found = f"its space cannot be told: {type(error).__name__}: {one_line(error)}"
            if isinstance(found, Branch):
                branches.append(found)
            else:
                refused[implementation.name] = found
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
    def candidates(self) -> frozenset[Config]:
        """Everything that can be tried: the space, and the default."""
        return frozenset(self) | ({self.default} if self.default else set())

    @property
    def emptied_by(self) -> str:
        """What leaves no config at all, implementation by implementation; "" where there is one."""
        return "" if len(self) else "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())

    @property
    def library(self) -> tuple[Config, ...]:
        """The configs of the vendor's library call, which is always a candidate."""
        return tuple(config for config in self if config.library)


def _refusal(implementation: Implementation, problem: Problem, device: Device) -> str | None:
    if device.kind not in implementation.kinds:
        return f"runs on {' and '.join(sorted(implementation.kinds))} only"
    return implementation.missing() or implementation.takes(problem, device)


def _branch(implementation: Implementation, problem: Problem, device: Device) -> Branch | str:
    """The branch, or which tunable or constraint leaves it empty."""
    tunables = tuple(implementation.tunables(problem, device))
    names = [tunable.name for tunable in tunables]
    if wrong := next((name for name in names if names.count(name) > 1 or name in _RESERVED_NAMES), None):
        return f"tunable {wrong} is declared twice, or has a meaning already"
    for tunable in tunables:
        canonical_json({tunable.name: tunable.values})  # what has no canonical form has no key
        for value in tunable.values:
            Config(implementation.name, {tunable.name: value}).check()
    points: list[dict[str, Value]] = [
        dict(zip(names, values, strict=True))
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
