"""Every candidate of a search by number: the spaces of a task one after the other, and their implementations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tunedex.core.config import Config, Value
from tunedex.core.problem import Problem
from tunedex.tuner.search.points import ABSENT, Parameter, Points
from tunedex.tuner.space import Branch, Space


@dataclass(frozen=True)
class Candidate:
    """One point of a search: a config, and the problem (one of a task's batches) to try it on."""

    problem: Problem
    config: Config


class Listing:
    """The candidates of ``spaces``, of one a batch: made when they are looked at."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._parts = [(space.problem, branch) for space in spaces for branch in space.branches]
        self._begins = [0, *accumulate(len(branch) for _, branch in self._parts)]
        self._several_batches = len(spaces) > 1
        self._several_implementations = len({branch.implementation for _, branch in self._parts}) > 1

    def __len__(self) -> int:
        return self._begins[-1]

    def __getitem__(self, point: int) -> Candidate:
        number = int(np.searchsorted(self._begins, point, "right")) - 1
        problem, branch = self._parts[number]
        return Candidate(problem, branch[point - self._begins[number]])

    def point(self, candidate: Candidate) -> int | None:
        """The number of ``candidate``; None where no space has it."""
        for begin, (problem, branch) in zip(self._begins, self._parts, strict=False):
            if problem == candidate.problem and (place := branch.place(candidate.config)) is not None:
                return begin + place
        return None

    def points(self) -> Points:
        """The candidates as points: batch and implementation are parameters where there are several, and each
        implementation has parameters of its own."""
        values: dict[str, dict[Value, None]] = {}
        for problem, branch in self._parts:
            for name, value in self._shared(problem, branch).items():
                values.setdefault(name, {})[value] = None
            for column, tunable in enumerate(branch.tunables):
                occurring = np.flatnonzero(np.bincount(branch.codes[:, column])).tolist()
                own = values.setdefault(f"{branch.implementation}.{tunable.name}", {})
                own |= dict.fromkeys(tunable.values[code] for code in occurring)
        parameters = tuple(Parameter.of(name, tuple(found)) for name, found in values.items())
        codes = np.full((len(self), len(parameters)), ABSENT, dtype=np.int32)
        column_of = {parameter.name: column for column, parameter in enumerate(parameters)}
        for begin, (problem, branch) in zip(self._begins, self._parts, strict=False):
            rows = codes[begin : begin + len(branch)]
            for name, value in self._shared(problem, branch).items():
                rows[:, column_of[name]] = parameters[column_of[name]].values.index(value)
            for place, tunable in enumerate(branch.tunables):
                column = column_of[f"{branch.implementation}.{tunable.name}"]
                code_of = {value: code for code, value in enumerate(parameters[column].values)}
                codes_of = np.array([code_of.get(value, ABSENT) for value in tunable.values], dtype=np.int32)
                rows[:, column] = codes_of[branch.codes[:, place]]
        return Points(parameters, codes)

    def _shared(self, problem: Problem, branch: Branch) -> dict[str, Value]:
        """The parameters that every implementation has."""
        shared: dict[str, Value] = {"batch": problem.batch} if self._several_batches else {}
        return shared | ({"implementation": branch.implementation} if self._several_implementations else {})
