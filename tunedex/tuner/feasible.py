"""The feasible combinations of one implementation's tunables, found tunable by tunable.

Combinations are rows of codes, the places of their values. A constraint is asked as soon as the tunables that it reads
have values, once for each combination of these; what it said is looked up from then on. So nothing is visited that an
earlier choice rules out, and a space costs what it holds and not what its product would.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunedex.core.config import Value
from tunedex.kernels.base import Constraint
from tunedex.tuner.codes import Codes
from tunedex.tuner.settings import SETTINGS

Numbers = NDArray[np.int64]

_BREAKS, _HOLDS, _RAISES = np.int8(0), np.int8(1), np.int8(2)
#: Combinations that are extended at once; what is under way of a larger space stays as small as that.
_BLOCK = 2**16
#: Combinations are counted in 64 bits.
_MOST_COMBINATIONS = 2**62


def feasible(
    tunables: Mapping[str, Sequence[Value]],
    constraints: Sequence[Constraint],
    most: int = SETTINGS.searching.most_configs,
) -> Codes:
    """Every combination of the values of ``tunables`` for which all ``constraints`` hold: combinations x tunables, in
    the order of a nested loop whose innermost tunable is the last.

    Raises:
        ValueError: there are more than ``most``.
        BaseException: whatever a constraint raises for one of them.
    """
    found: list[Codes] = []
    count = 0
    for block in _blocks(tunables, constraints):
        count += len(block)
        if count > most:
            raise ValueError(f"more than {most} configs are left by its constraints")
        found.append(block)
    return np.concatenate(found) if found else np.zeros((0, len(tunables)), dtype=np.int32)


def emptying(tunables: Mapping[str, Sequence[Value]], constraints: Sequence[Constraint]) -> Constraint | None:
    """The first of ``constraints`` that together with those before it leaves nothing; None where something is left."""
    for count, constraint in enumerate(constraints, 1):
        if next(_blocks(tunables, constraints[:count]), None) is None:
            return constraint
    return None


def _blocks(tunables: Mapping[str, Sequence[Value]], constraints: Sequence[Constraint]) -> Iterator[Codes]:
    """What is feasible, part by part and in order; no part is empty."""
    conditions = [_Condition(constraint, tunables) for constraint in constraints]
    counts = [len(values) for values in tunables.values()]

    def extended(block: Codes) -> Iterator[Codes]:
        depth = block.shape[1]
        for condition in conditions:
            if condition.deepest == depth - 1:
                block = block[condition.verdicts(block) != _BREAKS]
        if depth == len(counts):
            for condition in conditions:
                condition.check(block)
            if len(block):
                yield block
            return
        values = np.arange(counts[depth], dtype=np.int32)
        step = max(1, _BLOCK // max(1, len(values)))
        for begin in range(0, len(block), step):
            part = block[begin : begin + step]
            yield from extended(np.column_stack([np.repeat(part, len(values), axis=0), np.tile(values, len(part))]))

    return extended(np.zeros((1, 0), dtype=np.int32))


class _Unread(BaseException):
    """A constraint reads a tunable that has no value yet."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Reading(Mapping[str, Any]):
    """The values of some tunables, as a constraint reads them. ``unread`` is the first without one that it read."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.values_now: dict[str, Value] = {}
        self.unread: str | None = None

    def __getitem__(self, name: str) -> Any:
        if name in self.values_now:
            return self.values_now[name]
        if name not in self._names:
            raise KeyError(name)
        self.unread = self.unread or name
        raise _Unread(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Condition:
    """A constraint, and what it says of the combinations that it was asked of."""

    def __init__(self, constraint: Constraint, tunables: Mapping[str, Sequence[Value]]) -> None:
        self._holds = constraint.holds
        self._names = list(tunables)
        self._values = list(tunables.values())
        self._reading = _Reading(self._names)
        self._error: BaseException | None = None
        self._read([])

    def _read(self, columns: list[int]) -> None:
        """Ask by the tunables of these ``columns`` from now on. What was said of fewer is forgotten."""
        counts = [len(self._values[column]) for column in columns]
        if np.prod(counts, dtype=object) > _MOST_COMBINATIONS:
            raise ValueError(f"a constraint reads {len(columns)} tunables with more combinations than can be counted")
        self._columns = columns
        self._strides = np.array([int(np.prod(counts[place + 1 :])) for place in range(len(counts))], dtype=np.int64)
        self._known: Numbers = np.zeros(0, dtype=np.int64)
        self._said: NDArray[np.int8] = np.zeros(0, dtype=np.int8)

    @property
    def deepest(self) -> int:
        """The last tunable that it is known to read; -1 where it reads none."""
        return max(self._columns, default=-1)

    def verdicts(self, block: Codes) -> NDArray[np.int8]:
        """What it says of each row of ``block``, that it holds where it reads a tunable that the rows lack."""
        while self.deepest < block.shape[1]:
            numbers: Numbers = block[:, self._columns].astype(np.int64) @ self._strides
            new, rows = np.unique(numbers, return_index=True)
            unknown = ~np.isin(new, self._known)
            said = [self._ask(block[row]) for row in rows[unknown]]
            if self._reading.unread is not None:
                self._read([*self._columns, self._names.index(self._reading.unread)])
                self._reading.unread = None
                continue
            known, say = np.append(self._known, new[unknown]), np.append(self._said, np.array(said, dtype=np.int8))
            order = known.argsort()
            self._known, self._said = known[order], say[order]
            found: NDArray[np.int8] = self._said[np.searchsorted(self._known, numbers)]
            return found
        return np.full(len(block), _HOLDS)

    def _ask(self, row: Codes) -> np.int8:
        if self._reading.unread is not None:
            return _RAISES  # all is asked again
        self._reading.values_now = {self._names[column]: self._values[column][row[column]] for column in self._columns}
        try:
            return _HOLDS if self._holds(self._reading) else _BREAKS
        except (_Unread, KeyboardInterrupt) as stop:
            if isinstance(stop, KeyboardInterrupt):
                raise
            return _RAISES
        except BaseException as error:  # noqa: BLE001 - it counts only where no other constraint breaks
            self._error = self._error or error
            return _RAISES

    def check(self, block: Codes) -> None:
        """
        Raises:
            BaseException: what the constraint raised for a row of ``block``.
        """
        if self._error is not None and (self.verdicts(block) == _RAISES).any():
            raise self._error
