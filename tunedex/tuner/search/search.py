"""The search: which configs to try next, asked of an Optuna study that lives in memory.

The study is rebuilt from the trial table, so that a killed sweep goes on where it stopped. Ordered tunables are
integer indices in it, unordered ones categories; which implementation and which batch are parameters like them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from tunedex.core.config import Config, Value
from tunedex.core.problem import Problem
from tunedex.kernels.base import Tunable
from tunedex.tuner.search.listed import ListedSampler, Point, parameters_key
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.space import Branch, Space

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Sampler(StrEnum):
    """How configs are proposed."""

    AUTO = "auto"
    TPE = "tpe"
    RANDOM = "random"
    BRUTE_FORCE = "brute-force"


@dataclass(frozen=True)
class Candidate:
    """One point of a search: a config, and the problem (one of a task's batches) to try it on."""

    problem: Problem
    config: Config


class Search:
    """Proposes candidates of ``spaces`` (one a batch), never one twice.

    Args:
        spaces: the space of each of the task's problems.
        sampler: ``tpe`` learns from the times; ``random`` and ``brute-force`` take the space in a seeded order;
            ``auto`` is ``brute-force`` where ``trials`` covers the space, else ``tpe``.
        trials: how many candidates the search may propose, those recalled included; None is without bound. The default,
            the library call and ``winners`` are proposed in any case.
        seed: the same seed and the same times give the same proposals.
        winners: what is served now; those that no space has are left out.
    """

    def __init__(
        self,
        spaces: Sequence[Space],
        *,
        sampler: Sampler,
        trials: int | None,
        seed: int,
        winners: Sequence[Candidate] = (),
    ) -> None:
        self._unseen: dict[Candidate, None] = dict.fromkeys(
            Candidate(space.problem, config) for space in spaces for config in space
        )
        self._random = random.Random(seed)
        self._running: dict[Candidate, int | None] = {}
        self._told: dict[Candidate, float | None] = {}
        self._proposed = 0
        served = [winner for winner in winners if winner in self._unseen]
        self._first = list(dict.fromkeys([*self._anchors(spaces), *served]))
        self.anchors = frozenset(self._first)
        #: How many candidates there are; the default need not be a point of the space.
        self.size = len(self._unseen | dict.fromkeys(self._first))
        trials = self.size if trials is None else trials
        self._trials = max(trials, len(self._first))
        learns = sampler is Sampler.TPE or (sampler is Sampler.AUTO and self.size > trials)
        self._points: dict[Candidate, Point] = _points(spaces) if learns else {}
        self._candidates = {parameters_key(point.parameters): candidate for candidate, point in self._points.items()}
        self._study: optuna.Study | None = None
        if learns:
            settings = SETTINGS.searching
            startup = max(settings.least_startup, math.ceil(settings.startup_share * trials))
            self._study = optuna.create_study(sampler=ListedSampler(list(self._points.values()), startup, seed))

    @property
    def told(self) -> Mapping[Candidate, float | None]:
        """Every candidate told so far, with its time an item in microseconds, None for a failure."""
        return self._told

    def ask(self, count: int, *, anchors_only: bool = False) -> list[Candidate]:
        """Up to ``count`` candidates never proposed before; fewer when the trials or the space run out.

        ``anchors_only`` gives only what must be measured in any case: `anchors`, the default, the library call and the
        winners.
        """
        out: list[Candidate] = []
        while len(out) < count and self._proposed < self._trials and (self._first or not anchors_only):
            candidate = self._next()
            if candidate is None:
                break
            self._proposed += 1
            out.append(candidate)
        return out

    def tell(self, candidate: Candidate, time_us: float | None) -> None:
        """Report the time of ``candidate`` in microseconds for one item of its batch; None for a failure."""
        number = self._running.pop(candidate, None)
        self._told[candidate] = time_us
        if self._study is not None and number is not None:
            self._study.tell(number, self._value(time_us))

    def recall(self, candidate: Candidate, time_us: float | None) -> None:
        """Report a candidate of an earlier run. It counts as proposed, unless the space has lost it since."""
        if candidate not in self._unseen and candidate not in self._first:
            return
        self._unseen.pop(candidate, None)
        self._first = [first for first in self._first if first != candidate]
        self._told[candidate] = time_us
        self._proposed += 1
        self._add_trial(candidate, TrialState.COMPLETE, self._value(time_us))

    def _next(self) -> Candidate | None:
        if self._first:
            return self._take(self._first.pop(0), None)
        if not self._unseen:
            return None
        if self._study is None:
            return self._take(self._random.choice(list(self._unseen)), None)
        trial = self._study.ask()
        candidate = self._candidates[parameters_key(trial.relative_params)]
        for name, distribution in self._points[candidate].distributions.items():
            _suggest(trial, name, distribution)
        return self._take(candidate, trial.number)

    def _take(self, candidate: Candidate, number: int | None) -> Candidate:
        """Let ``candidate`` run, as the study's trial of that number, or as one of its own that no sampler is asked."""
        self._unseen.pop(candidate, None)
        if number is None:
            number = self._add_trial(candidate, TrialState.RUNNING)
        self._running[candidate] = number
        return candidate

    @staticmethod
    def _anchors(spaces: Sequence[Space]) -> Iterable[Candidate]:
        """What every search tries first: the default, and the library call with each of its tunables."""
        for space in spaces:
            defaults = [space.default] if space.default else []
            for config in dict.fromkeys([*defaults, *space.library]):
                yield Candidate(space.problem, config)

    def _value(self, time_us: float | None) -> float:
        """What the study minimises: the logarithm of the time. A failure is worse than everything that ran."""
        if time_us is not None:
            return math.log(time_us)
        known = [value for value in self._told.values() if value is not None]
        return math.log(max(known, default=1e6) * SETTINGS.failure_penalty)

    def _add_trial(self, candidate: Candidate, state: TrialState, value: float | None = None) -> int | None:
        """Tell the study of a trial that it was not asked for; its number. None where the candidate is no point of the
        space, as a default may be, or where nothing learns."""
        if self._study is None or candidate not in self._points:
            return None
        point = self._points[candidate]
        trial = create_trial(
            state=state, params=dict(point.parameters), distributions=dict(point.distributions), value=value
        )
        self._study.add_trial(trial)
        return len(self._study.get_trials(deepcopy=False)) - 1


def _points(spaces: Sequence[Space]) -> dict[Candidate, Point]:
    """Every candidate of ``spaces`` as a point of one study: batch and implementation are parameters where there are
    several, and each implementation has parameters of its own."""
    names = list(dict.fromkeys(branch.implementation for space in spaces for branch in space.branches))
    points: dict[Candidate, Point] = {}
    for batch, space in enumerate(spaces):
        for branch in space.branches:
            shared: dict[str, Any] = {}
            distributions: dict[str, BaseDistribution] = {}
            if len(spaces) > 1:
                shared["batch"] = batch
                distributions["batch"] = IntDistribution(0, len(spaces) - 1)
            if len(names) > 1:
                shared["implementation"] = branch.implementation
                distributions["implementation"] = CategoricalDistribution(names)
            parameters = {tunable.name: _parameter(branch, tunable) for tunable in branch.tunables}
            distributions |= {parameters[tunable.name]: _distribution(tunable) for tunable in branch.tunables}
            for config in branch.configs:
                values = {parameters[t.name]: _encoded(t, config.values[t.name]) for t in branch.tunables}
                points[Candidate(space.problem, config)] = Point(shared | values, distributions)
    return points


def _ordered(tunable: Tunable) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in tunable.values)


def _parameter(branch: Branch, tunable: Tunable) -> str:
    """The study's name for a tunable. Categories must stay the same within a study, so they are part of the name."""
    name = f"{branch.implementation}.{tunable.name}"
    return name if _ordered(tunable) else f"{name}={'|'.join(map(str, tunable.values))}"


def _encoded(tunable: Tunable, value: Value) -> Value:
    return tunable.values.index(value) if _ordered(tunable) else value


def _distribution(tunable: Tunable) -> BaseDistribution:
    if _ordered(tunable):
        return IntDistribution(0, len(tunable.values) - 1)
    return CategoricalDistribution(tunable.values)


def _suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> None:
    """Have ``trial`` take the value of a parameter that its sampler has chosen."""
    if isinstance(distribution, IntDistribution):
        trial.suggest_int(name, distribution.low, distribution.high)
    elif isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(name, distribution.choices)
