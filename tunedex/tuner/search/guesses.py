"""Optuna's own samplers, which know the parameters and not which points there are: what they propose are guesses.

An ordered parameter is an integer in the study, the place of its value, and any other one a category. A guess that is
no point is pruned with a violated constraint, which Optuna's TPE takes for worse than everything that ran; the samplers
that look at completed trials alone are told a penalty instead, and so is each of them of a point that fails.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, QMCSampler, TPESampler
from optuna.trial import TrialState, create_trial

from tunedex.tuner.search.points import ABSENT, Points
from tunedex.tuner.search.study import Shuffled
from tunedex.tuner.settings import SETTINGS

#: Each by its name. TPE is multivariate as Optuna 5 has it.
OPTUNA_SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed, multivariate=True),
    "tpe-univariate": lambda seed: TPESampler(seed=seed, multivariate=False),
    "gp": lambda seed: GPSampler(seed=seed),
    "cmaes": lambda seed: CmaEsSampler(seed=seed, with_margin=True),
    "qmc": lambda seed: QMCSampler(seed=seed, scramble=True),
}

#: Those that learn from a violated constraint.
_CONSTRAINED = ("tpe", "tpe-univariate")

_VIOLATED = 1.0


class GuessedStudy:
    """Asks Optuna's sampler ``name`` for ``points``, by the interface of `Study`.

    It is told of a repeat what is known, and of what is no point that it is none, and asked again; after
    `Searching.most_wasted` such guesses in a row a random point is taken.
    """

    gain: float | None = None

    def __init__(self, name: str, points: Points, seed: int) -> None:
        with _quiet():
            self._study = optuna.create_study(sampler=OPTUNA_SAMPLERS[name](seed))
        self._constrained = name in _CONSTRAINED
        self._names = [parameter.name for parameter in points.parameters]
        self._distributions = _distributions(points)
        self._codes = [tuple(codes) for codes in points.codes.tolist()]
        self._places = {codes: place for place, codes in enumerate(self._codes)}
        self._others = Shuffled(len(points), seed)
        #: What is under way, with the trial in which it was guessed; None where it was not.
        self._running: dict[int, optuna.Trial | None] = {}
        self._told: dict[int, float | None] = {}
        self._worst = -math.inf

    def ask(self) -> int | None:
        if len(self._told) + len(self._running) == len(self._codes):
            return None
        for _ in range(SETTINGS.searching.most_wasted):
            with _quiet():
                trial = self._study.ask(self._distributions)
            point = self._places.get(tuple(trial.params[name] for name in self._names))
            if point is not None and point not in self._told and point not in self._running:
                self._running[point] = trial
                return point
            self._waste(trial, point)
        while (other := self._others.ask()) in self._told or other in self._running:
            pass
        if other is not None:
            self.start(other)
        return other

    def start(self, point: int) -> None:
        self._running[point] = None

    def tell(self, point: int, value: float | None) -> None:
        trial = self._running.pop(point)
        if trial is None:
            self.add(point, value)
        else:
            self._told[point] = value
            self._study.tell(trial, self._minimised(value))

    def add(self, point: int, value: float | None) -> None:
        self._told[point] = value
        params = dict(zip(self._names, self._codes[point], strict=True))
        value = self._minimised(value)
        self._study.add_trial(create_trial(params=params, distributions=self._distributions, value=value))

    def _waste(self, trial: optuna.Trial, point: int | None) -> None:
        """Answer a guess that is no point, or one that was proposed before."""
        if point in self._running:
            self._study.tell(trial, state=TrialState.FAIL)
        elif point is None and self._constrained:
            trial.set_constraint("feasible", _VIOLATED)
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, self._minimised(None if point is None else self._told[point]))

    def _minimised(self, value: float | None) -> float:
        """What the study minimises; a failure is worse than everything that ran."""
        if value is not None:
            self._worst = max(self._worst, value)
            return value
        return (self._worst if math.isfinite(self._worst) else 0.0) + math.log(SETTINGS.failure_penalty)


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing is said of what is experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _distributions(points: Points) -> dict[str, BaseDistribution]:
    """By code. That a point lacks a parameter is a value like any other, below those that have an order."""
    found: dict[str, BaseDistribution] = {}
    for column, parameter in enumerate(points.parameters):
        lowest = ABSENT if (points.codes[:, column] == ABSENT).any() else 0
        highest = len(parameter.values) - 1
        found[parameter.name] = (
            IntDistribution(lowest, highest)
            if parameter.ordered
            else CategoricalDistribution(range(lowest, highest + 1))
        )
    return found
