"""The search: which configs to try next, asked of an Optuna study that lives in memory.

The study is rebuilt from the trial table, so that a killed sweep goes on where it stopped. Ordered tunables are
suggested as integer indices, unordered ones as categories. What a sampler proposes twice, or against a
constraint, is answered with the config closest to it that is new.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import Trial as OptunaTrial
from optuna.trial import TrialState, create_trial

from tunedex.core.config import Config, Value
from tunedex.core.problem import Problem
from tunedex.kernels.base import Tunable
from tunedex.tuner.nearest import Nearest, ordered
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
        sampler: ``auto`` runs the whole space in a seeded order where ``trials`` covers it, else TPE;
            ``brute-force`` runs it in that order up to ``trials``.
        trials: how many candidates the search may propose, those recalled included; None is without bound. The default
            and the library call are proposed in any case.
        seed: the same seed and the same times give the same proposals.
    """

    def __init__(self, spaces: Sequence[Space], *, sampler: Sampler, trials: int | None, seed: int) -> None:
        self._spaces = {space.problem.key: space for space in spaces}
        self._problems = [space.problem for space in spaces]
        self._unseen: dict[Candidate, None] = dict.fromkeys(
            Candidate(space.problem, config) for space in spaces for config in space
        )
        self._random = random.Random(seed)
        self._nearest = Nearest(seed)
        self._running: dict[Candidate, int | None] = {}
        self._told: dict[Candidate, float | None] = {}
        self._proposed = 0
        self._first = list(self._anchors(spaces))
        self.anchors = frozenset(self._first)
        #: How many candidates there are; the default need not be a point of the space.
        self.size = len(self._unseen | dict.fromkeys(self._first))
        trials = self.size if trials is None else trials
        self._trials = max(trials, len(self._first))
        whole = sampler is Sampler.BRUTE_FORCE or (sampler is Sampler.AUTO and self.size <= trials)
        self._study = None if whole else _study(sampler, trials, seed)
        if self._study is not None:
            for space in spaces:
                for branch in space.branches:
                    points = (config.values for config in branch.configs)
                    self._nearest.add((space.problem.key, branch.implementation), branch.tunables, points)

    @property
    def told(self) -> Mapping[Candidate, float | None]:
        """Every candidate told so far, with its time an item in microseconds, None for a failure."""
        return self._told

    def ask(self, count: int, *, anchors_only: bool = False) -> list[Candidate]:
        """Up to ``count`` candidates never proposed before; fewer when the trials or the space run out.

        ``anchors_only`` gives only what must be measured in any case: `anchors`, the default and the library call.
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
        self._see(candidate)
        self._first = [first for first in self._first if first != candidate]
        self._told[candidate] = time_us
        self._proposed += 1
        space = self._spaces[candidate.problem.key]
        if self._study is not None and candidate.config in space:
            parameters, distributions = self._encode(candidate)
            self._study.add_trial(
                create_trial(params=parameters, distributions=distributions, value=self._value(time_us))
            )

    def _next(self) -> Candidate | None:
        if self._first:
            return self._take(self._first.pop(0), None)
        if not self._unseen:
            return None
        if self._study is not None:
            trial = self._study.ask()
            candidate = self._suggest(trial)
            if candidate in self._unseen:
                return self._take(candidate, trial.number)
            # It is known, or never to be: asking again mostly gives the like.
            self._study.tell(trial, state=TrialState.FAIL)
            values = self._nearest.closest(_part(candidate), candidate.config.values)
            if values is not None:
                return self._take(replace(candidate, config=Config(candidate.config.implementation, values)), None)
        return self._take(self._random.choice(list(self._unseen)), None)

    def _take(self, candidate: Candidate, number: int | None) -> Candidate:
        """Let ``candidate`` run, as the study's trial of that number, or as one of its own that no sampler is asked."""
        self._see(candidate)
        if number is None and self._study is not None and candidate.config in self._spaces[candidate.problem.key]:
            parameters, distributions = self._encode(candidate)
            running = create_trial(state=TrialState.RUNNING, params=parameters, distributions=distributions)
            number = len(self._study.get_trials(deepcopy=False))
            self._study.add_trial(running)
        self._running[candidate] = number
        return candidate

    def _see(self, candidate: Candidate) -> None:
        self._unseen.pop(candidate, None)
        self._nearest.see(_part(candidate), candidate.config.values)

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

    def _suggest(self, trial: OptunaTrial) -> Candidate:
        problem = self._problems[0]
        if len(self._problems) > 1:
            problem = self._problems[trial.suggest_int("batch", 0, len(self._problems) - 1)]
        branches = self._spaces[problem.key].branches
        name = branches[0].implementation
        names = self._implementations()
        if len(names) > 1:
            name = trial.suggest_categorical("implementation", names)
        branch = next((b for b in branches if b.implementation == name), branches[0])
        values = {tunable.name: _suggest(trial, _parameter(branch, tunable), tunable) for tunable in branch.tunables}
        return Candidate(problem, Config(branch.implementation, values))

    def _encode(self, candidate: Candidate) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
        parameters: dict[str, Any] = {}
        distributions: dict[str, BaseDistribution] = {}
        if len(self._problems) > 1:
            parameters["batch"] = self._problems.index(candidate.problem)
            distributions["batch"] = IntDistribution(0, len(self._problems) - 1)
        names = self._implementations()
        if len(names) > 1:
            parameters["implementation"] = candidate.config.implementation
            distributions["implementation"] = CategoricalDistribution(names)
        branch = self._branch(candidate)
        for tunable in branch.tunables:
            name = _parameter(branch, tunable)
            value = candidate.config.values[tunable.name]
            parameters[name] = tunable.values.index(value) if ordered(tunable) else value
            distributions[name] = _distribution(tunable)
        return parameters, distributions

    def _branch(self, candidate: Candidate) -> Branch:
        branches = self._spaces[candidate.problem.key].branches
        return next(b for b in branches if b.implementation == candidate.config.implementation)

    def _implementations(self) -> list[str]:
        """Every implementation that one of the spaces has, in a fixed order."""
        return list(dict.fromkeys(b.implementation for space in self._spaces.values() for b in space.branches))


def _part(candidate: Candidate) -> tuple[str, str]:
    return candidate.problem.key, candidate.config.implementation


def _parameter(branch: Branch, tunable: Tunable) -> str:
    """The study's name for a tunable. Categories must stay the same within a study, so they are part of the name."""
    name = f"{branch.implementation}.{tunable.name}"
    return name if ordered(tunable) else f"{name}={'|'.join(map(str, tunable.values))}"


def _distribution(tunable: Tunable) -> BaseDistribution:
    if ordered(tunable):
        return IntDistribution(0, len(tunable.values) - 1)
    return CategoricalDistribution(tunable.values)


def _suggest(trial: OptunaTrial, name: str, tunable: Tunable) -> Value:
    if ordered(tunable):
        return tunable.values[trial.suggest_int(name, 0, len(tunable.values) - 1)]
    value = trial.suggest_categorical(name, tunable.values)
    assert value is not None
    return value


def _study(sampler: Sampler, trials: int, seed: int) -> optuna.Study:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        chosen: BaseSampler
        if sampler is Sampler.RANDOM:
            chosen = RandomSampler(seed=seed)
        else:
            chosen = TPESampler(
                n_startup_trials=max(8, trials // 4), multivariate=True, group=True, constant_liar=True, seed=seed
            )
        return optuna.create_study(direction="minimize", sampler=chosen)
