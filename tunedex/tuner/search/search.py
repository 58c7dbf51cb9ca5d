"""The search: which configs to try next, asked of an Optuna study that lives in memory.

The study is rebuilt from the trial table, so that a killed sweep goes on where it stopped. Ordered tunables are
integer indices in it, unordered ones categories; which implementation and which batch are parameters like them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tunedex.core.config import Config, Value
from tunedex.core.problem import Problem
from tunedex.tuner.search.points import Points
from tunedex.tuner.search.proposer import Sampler, learner
from tunedex.tuner.search.study import PointStudy
from tunedex.tuner.space import Space


@dataclass(frozen=True)
class Candidate:
    """One point of a search: a config, and the problem (one of a task's batches) to try it on."""

    problem: Problem
    config: Config


class Search:
    """Proposes candidates of ``spaces`` (one a batch), never one twice.

    Args:
        spaces: the space of each of the task's problems.
        sampler: ``auto`` and ``tpe`` learn from the times; ``random`` and ``brute-force`` take the space in a seeded
            order, and so does ``auto`` where ``trials`` covers the space.
        trials: how many candidates the search may propose, those recalled included, of all spaces together; None is
            without bound. The default, the library call and ``winners`` are proposed in any case.
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
        self._shuffled = self._in_order(random.Random(seed))
        self._running: set[Candidate] = set()
        self._told: dict[Candidate, float | None] = {}
        self._proposed = 0
        served = [winner for winner in winners if winner in self._unseen]
        self._first = list(dict.fromkeys([*self._anchors(spaces), *served]))
        self.anchors = frozenset(self._first)
        #: How many candidates there are; the default need not be a point of the space.
        self.size = len(self._unseen | dict.fromkeys(self._first))
        trials = self.size if trials is None else trials
        self._trials = max(trials, len(self._first))
        #: How many of them are to be proposed.
        self.wanted = min(self._trials, self.size)
        self._study: PointStudy | None = None
        self._points: dict[Candidate, int] = {}
        learns = sampler is Sampler.TPE or (sampler is Sampler.AUTO and self.size > trials)
        if learns and self._unseen:
            rows = _rows(spaces)
            self._points = {candidate: point for point, candidate in enumerate(rows)}
            self._candidates = list(rows)
            points = Points.of(list(rows.values()))
            self._study = PointStudy(learner(sampler, points, seed=seed, trials=trials))

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
        self._told[candidate] = time_us
        if candidate in self._running:
            self._running.remove(candidate)
            if self._study is not None and candidate in self._points:
                self._study.tell(self._points[candidate], _value(time_us))

    def recall(self, candidate: Candidate, time_us: float | None) -> None:
        """Report a candidate of an earlier run. It counts as proposed, unless the space has lost it since."""
        if candidate not in self._unseen and candidate not in self._first:
            return
        self._unseen.pop(candidate, None)
        self._first = [first for first in self._first if first != candidate]
        self._told[candidate] = time_us
        self._proposed += 1
        if self._study is not None and candidate in self._points:
            self._study.add(self._points[candidate], _value(time_us))

    def _next(self) -> Candidate | None:
        if self._first:
            candidate = self._first.pop(0)
            if self._study is not None and candidate in self._points:
                self._study.start(self._points[candidate])
        elif not self._unseen:
            return None
        elif self._study is None:
            candidate = next(self._shuffled)
        else:
            point = self._study.ask()
            assert point is not None  # what is unseen here is unseen there
            candidate = self._candidates[point]
        self._unseen.pop(candidate, None)
        self._running.add(candidate)
        return candidate

    def _in_order(self, generator: random.Random) -> Iterator[Candidate]:
        """What is unseen, in a random order."""
        candidates = list(self._unseen)
        generator.shuffle(candidates)
        return (candidate for candidate in candidates if candidate in self._unseen)

    @staticmethod
    def _anchors(spaces: Sequence[Space]) -> Iterable[Candidate]:
        """What every search tries first: the default, and the library call with each of its tunables."""
        for space in spaces:
            defaults = [space.default] if space.default else []
            for config in dict.fromkeys([*defaults, *space.library]):
                yield Candidate(space.problem, config)


def _value(time_us: float | None) -> float | None:
    """What a study minimises: the logarithm of the time."""
    return None if time_us is None else math.log(time_us)


def _rows(spaces: Sequence[Space]) -> dict[Candidate, dict[str, Value]]:
    """Every candidate of ``spaces`` as the values of one point: batch and implementation are parameters where there are
    several, and each implementation has parameters of its own."""
    several = len({branch.implementation for space in spaces for branch in space.branches}) > 1
    rows: dict[Candidate, dict[str, Value]] = {}
    for space in spaces:
        for branch in space.branches:
            shared: dict[str, Value] = {"batch": space.problem.batch} if len(spaces) > 1 else {}
            if several:
                shared["implementation"] = branch.implementation
            names = {tunable.name: f"{branch.implementation}.{tunable.name}" for tunable in branch.tunables}
            for config in branch.configs:
                values = {names[tunable.name]: config.values[tunable.name] for tunable in branch.tunables}
                rows[Candidate(space.problem, config)] = shared | values
    return rows
