"""Optuna samplers for spaces whose points are all known: each of them is proposed at most once, and nothing else is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from tunedex.tuner.codes import RowIndex
from tunedex.tuner.search.points import ABSENT, Parameter, Points


@dataclass
class Seen:
    """What a study has of the points: those that were told in the order of their trials, with the logarithm of their
    times or None for a failure, and those that are under way."""

    told: dict[int, float | None] = field(default_factory=dict)
    running: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.told) + len(self.running)

    @property
    def measured(self) -> dict[int, float]:
        """Those that did not fail."""
        return {point: value for point, value in self.told.items() if value is not None}


class Encoding:
    """Points as the parameters of an Optuna study: an ordered one is an integer, the place of its value; any other is a
    category, and what its categories are is part of its name, since a study never changes them."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._names = [_name(parameter) for parameter in points.parameters]
        self._distributions = [_distribution(parameter) for parameter in points.parameters]
        self._rows = RowIndex(points.codes)
        self._column = {name: column for column, name in enumerate(self._names)}
        self._codes_of = [
            {value: code for code, value in enumerate(parameter.values)} for parameter in points.parameters
        ]

    def parameters(self, point: int) -> dict[str, Any]:
        """What a trial of ``point`` has as parameters."""
        return {
            self._names[column]: code if parameter.ordered else parameter.values[code]
            for column, (parameter, code) in enumerate(self._coded(point))
            if code != ABSENT
        }

    def distributions(self, point: int) -> dict[str, BaseDistribution]:
        """The distributions of `parameters`."""
        return {
            self._names[column]: self._distributions[column]
            for column, (_, code) in enumerate(self._coded(point))
            if code != ABSENT
        }

    def place(self, parameters: Mapping[str, Any]) -> int | None:
        """The point that has these parameters; None where none has."""
        codes = [ABSENT] * len(self._names)
        for name, value in parameters.items():
            column = self._column.get(name)
            if column is None:
                return None
            ordered = self._points.parameters[column].ordered
            codes[column] = int(value) if ordered else self._codes_of[column][value]
        return self._rows.place(codes)

    def _coded(self, point: int) -> Sequence[tuple[Parameter, int]]:
        return list(zip(self._points.parameters, self._points.codes[point].tolist(), strict=True))


class ListedSampler(BaseSampler):
    """Proposes one of ``points`` that no trial of its study has, until all are seen; `choose` says which."""

    def __init__(self, points: Points) -> None:
        self.points = points
        self.encoding = Encoding(points)
        #: How much the point chosen last is expected to improve on the best; None where nobody says.
        self.gain: float | None = None
        self._chosen: dict[str, Any] = {}
        self._places: dict[int, int | None] = {}

    @abstractmethod
    def choose(self, seen: Seen) -> int:
        """An unseen point, of which there is at least one."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        seen = self.seen(study)
        if len(seen) == len(self.points):
            self._chosen = {}
            return {}
        point = self.choose(seen)
        self._chosen = self.encoding.parameters(point)
        return self.encoding.distributions(point)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._chosen

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise RuntimeError(f"every point is seen, none is left that has {param_name}")

    def seen(self, study: Study) -> Seen:
        """What the trials of ``study`` have seen."""
        seen = Seen()
        for trial in study.get_trials(deepcopy=False):
            if trial.number not in self._places:
                if not trial.params:
                    continue
                self._places[trial.number] = self.encoding.place(trial.params)
            place = self._places[trial.number]
            if place is None:
                continue
            if trial.state is TrialState.RUNNING:
                seen.running.append(place)
            else:
                seen.told[place] = trial.value if trial.state is TrialState.COMPLETE else None
        return seen


def _name(parameter: Parameter) -> str:
    return parameter.name if parameter.ordered else f"{parameter.name}={'|'.join(map(str, parameter.values))}"


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.ordered:
        return IntDistribution(0, len(parameter.values) - 1)
    return CategoricalDistribution(parameter.values)
