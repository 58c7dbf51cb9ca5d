"""What a search asks for points: an Optuna study in memory whose trials are points, or a random order of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from tunedex.tuner.search.listed import ListedSampler

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Study(Protocol):
    """Points by number, each asked for once. A value is the logarithm of a time, None a failure."""

    @property
    def gain(self) -> float | None:
        """How much the point asked for last is expected to improve on the best; None where nobody says."""

    def ask(self) -> int | None:
        """A point that the study has not seen; it is under way until it is told. None where all are seen."""

    def start(self, point: int) -> None:
        """Have ``point`` under way, which the study was not asked for."""

    def tell(self, point: int, value: float | None) -> None:
        """Answer a point that is under way."""

    def add(self, point: int, value: float | None) -> None:
        """Have ``point`` answered, which was never under way here."""


class Shuffled:
    """Every point once, in an order of its seed, whatever is found."""

    gain: float | None = None

    def __init__(self, count: int, seed: int) -> None:
        self._order = iter(np.random.default_rng(seed).permutation(count).tolist())
        self._seen: set[int] = set()

    def ask(self) -> int | None:
        point = next((point for point in self._order if point not in self._seen), None)
        if point is not None:
            self._seen.add(point)
        return point

    def start(self, point: int) -> None:
        self._seen.add(point)

    def tell(self, point: int, value: float | None) -> None:
        pass

    def add(self, point: int, value: float | None) -> None:
        self._seen.add(point)


class PointStudy:
    """Asks ``sampler``, which knows all points, by the interface of `Study`."""

    def __init__(self, sampler: ListedSampler) -> None:
        self._sampler = sampler
        self._encoding = sampler.encoding
        self._study = optuna.create_study(sampler=sampler)
        self._numbers: dict[int, int] = {}

    @property
    def gain(self) -> float | None:
        return self._sampler.gain

    def ask(self) -> int | None:
        if len(self._numbers) == len(self._sampler.points):
            return None
        trial = self._study.ask()
        point = self._encoding.place(trial.relative_params)
        assert point is not None  # a sampler of listed points proposes nothing else
        for name, distribution in self._encoding.distributions(point).items():
            _suggest(trial, name, distribution)
        self._numbers[point] = trial.number
        return point

    def start(self, point: int) -> None:
        self._add(point, TrialState.RUNNING, None)

    def tell(self, point: int, value: float | None) -> None:
        if value is None:
            self._study.tell(self._numbers[point], state=TrialState.FAIL)
        else:
            self._study.tell(self._numbers[point], value)

    def add(self, point: int, value: float | None) -> None:
        self._add(point, TrialState.FAIL if value is None else TrialState.COMPLETE, value)

    def _add(self, point: int, state: TrialState, value: float | None) -> None:
        parameters: Mapping[str, object] = self._encoding.parameters(point)
        distributions = self._encoding.distributions(point)
        trial = create_trial(state=state, params=dict(parameters), distributions=distributions, value=value)
        self._numbers[point] = len(self._study.get_trials(deepcopy=False))
        self._study.add_trial(trial)


def _suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> None:
    """Have ``trial`` take the value of a parameter that its sampler has chosen."""
    if isinstance(distribution, IntDistribution):
        trial.suggest_int(name, distribution.low, distribution.high)
    elif isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(name, distribution.choices)
