"""Optuna's own samplers, as somebody uses them who knows the parameters and not which configs there are.

An ordered parameter is an integer in the study, the place of its value, and any other one a category. A config that
the space lacks is pruned with a violated constraint, which Optuna's TPE takes for worse than everything that ran; the
samplers that look at completed trials alone are told a penalty instead, and so is each of them of a config that fails.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, QMCSampler, TPESampler
from optuna.trial import TrialState, create_trial

from tunedex.core.errors import CannotRun
from tunedex.tuner.search.points import ABSENT, Points
from tunedex.tuner.settings import SETTINGS

#: Each by the name that ``--sampler`` gives it. TPE is multivariate as Optuna 5 has it.
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


class OptunaGuesser:
    """The sampler of that name on ``points``, by the interface of `Guesser`.

    Raises:
        CannotRun: the sampler needs a package that is not installed.
    """

    def __init__(self, name: str, points: Points, seed: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            try:
                sampler = OPTUNA_SAMPLERS[name](seed)
            except ImportError as error:
                missing = getattr(error.__cause__ or error, "name", None) or "a package"
                raise CannotRun(f"Optuna's sampler {name} needs {missing}, which is not installed") from error
        self._study = optuna.create_study(sampler=sampler)
        self._constrained = name in _CONSTRAINED
        self._names = [parameter.name for parameter in points.parameters]
        self._distributions = _distributions(points)
        self._codes = [tuple(map(int, codes)) for codes in points.codes]
        self._places = {codes: place for place, codes in enumerate(self._codes)}
        self._trial: optuna.Trial | None = None
        self._worst = -math.inf

    def ask(self) -> int | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._trial = self._study.ask(self._distributions)
        return self._places.get(tuple(self._trial.params[name] for name in self._names))

    def tell(self, value: float | None, *, feasible: bool = True) -> None:
        trial = self._trial
        if trial is None:
            raise RuntimeError("nothing was asked")
        if not feasible and self._constrained:
            trial.set_constraint("feasible", _VIOLATED)
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, self._told(value))
        self._trial = None

    def add(self, point: int, value: float | None) -> None:
        params = dict(zip(self._names, self._codes[point], strict=True))
        self._study.add_trial(create_trial(params=params, distributions=self._distributions, value=self._told(value)))

    def _told(self, value: float | None) -> float:
        """What the study minimises; a failure is worse than everything that ran."""
        if value is not None:
            self._worst = max(self._worst, value)
            return value
        return (self._worst if math.isfinite(self._worst) else 0.0) + math.log(SETTINGS.failure_penalty)


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
