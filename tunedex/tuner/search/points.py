"""The points of a search as one table of numbers, which every sampler reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tunedex.core.config import Value
from tunedex.tuner.codes import Codes

#: The code of a parameter that a point lacks.
ABSENT = -1


@dataclass(frozen=True)
class Parameter:
    """One column: a name and its distinct values, in ascending order where they are numbers."""

    name: str
    values: tuple[Value, ...]

    @classmethod
    def of(cls, name: str, values: tuple[Value, ...]) -> Parameter:
        """The parameter of distinct ``values`` in any order."""
        parameter = cls(name, values)
        return cls(name, tuple(sorted(values))) if parameter.ordered else parameter

    @property
    def ordered(self) -> bool:
        """Whether all values are numbers; a truth value is none."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


@dataclass(frozen=True)
class Points:
    """All points of a space: for each parameter, which of its values a point has."""

    parameters: tuple[Parameter, ...]
    codes: Codes

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Value]]) -> Points:
        """The table of ``rows``, each the values of one point by name; points may lack parameters of others."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns, codes = [], np.full((len(rows), len(names)), ABSENT, dtype=np.int32)
        for column, name in enumerate(names):
            values = tuple(dict.fromkeys(row[name] for row in rows if name in row))
            parameter = Parameter.of(name, values)
            place = {value: code for code, value in enumerate(parameter.values)}
            codes[:, column] = [place[row[name]] if name in row else ABSENT for row in rows]
            columns.append(parameter)
        return cls(tuple(columns), codes)

    def __len__(self) -> int:
        return len(self.codes)

    def values(self, point: int) -> dict[str, Value]:
        """The values of ``point`` by parameter name."""
        pairs = zip(self.parameters, self.codes[point], strict=True)
        return {parameter.name: parameter.values[code] for parameter, code in pairs if code != ABSENT}
