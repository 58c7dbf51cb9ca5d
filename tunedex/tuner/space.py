"""The feasible configs of one problem on one device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import overload

from tunedex.core.canonical import canonical_json
from tunedex.core.config import LIBRARY, Config
from tunedex.core.device import Device
from tunedex.core.display import one_line
from tunedex.core.problem import Problem
from tunedex.kernels.base import Implementation, Kernel, Tunable
from tunedex.tuner.codes import Codes, RowIndex
from tunedex.tuner.feasible import emptying, feasible

#: Names that a config gives a meaning.
_RESERVED_NAMES = frozenset({"implementation"})


@dataclass(frozen=True, eq=False)
class Branch(Sequence[Config]):
    """The part of a space that one implementation has: its configs, which are made when they are looked at.

    ``tunables`` have each value once, and ``codes`` holds the places of a config's values: configs x tunables.
    """

    implementation: str
    tunables: tuple[Tunable, ...]
    codes: Codes

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, index: int) -> Config: ...

    @overload
    def __getitem__(self, index: slice) -> list[Config]: ...

    def __getitem__(self, index: int | slice) -> Config | list[Config]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        pairs = zip(self.tunables, self.codes[index].tolist(), strict=True)
        return Config(self.implementation, {tunable.name: tunable.values[code] for tunable, code in pairs})

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config) and self.place(config) is not None

    def place(self, config: Config) -> int | None:
        """Where ``config`` is among the branch's; None where it is not."""
        if config.implementation != self.implementation or len(config.values) != len(self.tunables):
            return None
        codes = []
        for tunable, known in zip(self.tunables, self._known, strict=True):
            code = known.get(canonical_json(config.values[tunable.name])) if tunable.name in config.values else None
            if code is None:
                return None
            codes.append(code)
        return self._rows.place(codes)

    @cached_property
    def _known(self) -> list[dict[str, int]]:
        """The place of each value by its canonical form, by which configs are equal."""
        return [{canonical_json(value): code for code, value in enumerate(t.values)} for t in self.tunables]

    @cached_property
    def _rows(self) -> RowIndex:
        return RowIndex(self.codes)


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
        return sum(map(len, self.branches))

    def __iter__(self) -> Iterator[Config]:
        return itertools.chain.from_iterable(self.branches)

    def __contains__(self, config: Config) -> bool:
        return any(config in branch for branch in self.branches)

    @property
    def default(self) -> Config | None:
        """The kernel's default, if it can run here; it need not be a point of the space."""
        config = self.kernel.signature.default(self.problem, self.device)
        return config if config and any(b.implementation == config.implementation for b in self.branches) else None

    @property
    def size(self) -> int:
        """How many configs can be tried: those of the space, and the default."""
        default = self.default
        return len(self) + (default is not None and default not in self)

    @property
    def emptied_by(self) -> str:
        """What leaves no config at all, implementation by implementation; "" where there is one."""
        return "" if len(self) else "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())

    @property
    def library(self) -> tuple[Config, ...]:
        """The configs of the vendor's library call, which is always a candidate."""
        return tuple(config for branch in self.branches if branch.implementation == LIBRARY for config in branch)


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
        if not tunable.values:
            return f"tunable {tunable.name} has no value"
    tunables = tuple(replace(tunable, values=tuple(dict.fromkeys(tunable.values))) for tunable in tunables)
    values = {tunable.name: tunable.values for tunable in tunables}
    constraints = implementation.constraints(problem, device)
    codes = feasible(values, constraints)
    if not len(codes) and (constraint := emptying(values, constraints)):
        return f"no config is left by the constraint: {constraint.words}"
    return Branch(implementation.name, tunables, codes)
