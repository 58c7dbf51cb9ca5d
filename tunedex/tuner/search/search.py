"""The search: which configs to try next, asked of an Optuna study that lives in memory.

The study is rebuilt from the trial table, so that a killed sweep goes on where it stopped. Ordered tunables are
integer indices in it, unordered ones categories; which implementation and which batch are parameters like them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from tunedex.tuner.search.hints import Hint
from tunedex.tuner.search.listing import Candidate, Listing
from tunedex.tuner.search.samplers import Sampler, study_of
from tunedex.tuner.search.sources import Source
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.space import Space


class Ended(StrEnum):
    """What ended a search: its trials, its space, the sweep's budget, or that little more was expected of others."""

    TRIALS = "trials"
    SPACE = "space"
    BUDGET = "budget"
    GAIN = "gain"


class Search:
    """Proposes candidates of ``spaces`` (one a batch), never one twice.

    Args:
        spaces: the space of each of the task's problems.
        sampler: how; ``auto`` takes the space in a seeded order, as ``random`` does, where ``trials`` covers it.
        trials: how many candidates the search may propose, those recalled included, of all spaces together; None is
            without bound. The default, the library call and ``winners`` are proposed in any case.
        seed: the same seed and the same times give the same proposals.
        winners: what is served now; those that no space has are left out.
        sources: what ``auto`` starts from, of other shapes and devices.
        stops: whether ``auto`` ends where it expects too little of any other config.
    """

    def __init__(
        self,
        spaces: Sequence[Space],
        *,
        sampler: Sampler,
        trials: int | None,
        seed: int,
        winners: Sequence[Candidate] = (),
        sources: Sequence[Source] = (),
        stops: bool = False,
    ) -> None:
        self._listing = Listing(spaces)
        #: What is under way, with its number; None for a default that no space has.
        self._running: dict[Candidate, int | None] = {}
        self._told: dict[Candidate, float | None] = {}
        self._proposed = 0
        served = [winner for winner in winners if self._listing.point(winner) is not None]
        self._first = list(dict.fromkeys([*self._anchors(spaces), *served]))
        self.anchors = frozenset(self._first)
        #: How many candidates there are; the default need not be a point of the space.
        self.size = sum(space.size for space in spaces)
        trials = self.size if trials is None else trials
        self._trials = max(trials, len(self._first))
        #: How many of them are to be proposed.
        self.wanted = min(self._trials, self.size)
        if sampler is Sampler.AUTO and self.size <= trials:
            sampler = Sampler.RANDOM
        self._study = study_of(sampler, self._listing.points(), seed=seed, hints=list(self._hints(sources)))
        self._stops = stops
        #: How many proposals in a row were of little worth.
        self._idle = 0
        self._best = math.inf

    @property
    def told(self) -> Mapping[Candidate, float | None]:
        """Every candidate told so far, with its time an item in microseconds, None for a failure."""
        return self._told

    @property
    def known_alone(self) -> bool:
        """Whether nothing but `anchors` was tried, and something was, where there is more."""
        return bool(self._told) and self.anchors.issuperset(self._told) and self.size > len(self.anchors)

    @property
    def ended(self) -> Ended:
        """Why there is nothing more to ask for, where there is not."""
        if self.settled and len(self._told) < self.wanted:
            return Ended.GAIN
        return Ended.SPACE if self.wanted >= self.size else Ended.TRIALS

    @property
    def settled(self) -> bool:
        """Whether what is still expected of the best unseen candidate is less than times differ by chance. It is asked
        for nothing more then, unless what is under way comes as a surprise."""
        return self._stops and self._idle >= SETTINGS.surrogate.patience

    def ask(self, count: int, *, anchors_only: bool = False) -> list[Candidate]:
        """Up to ``count`` candidates never proposed before; fewer when the trials or the space run out.

        ``anchors_only`` gives only what must be measured in any case: `anchors`, the default, the library call and the
        winners.
        """
        out: list[Candidate] = []
        while len(out) < count and self._proposed < self._trials and (self._first or not anchors_only):
            if self.settled and not self._first:
                break
            candidate = self._next()
            if candidate is None:
                break
            self._proposed += 1
            out.append(candidate)
        return out

    def tell(self, candidate: Candidate, time_us: float | None) -> None:
        """Report the time of ``candidate`` in microseconds for one item of its batch; None for a failure."""
        self._learn(candidate, time_us)
        if candidate in self._running:
            point = self._running.pop(candidate)
            if point is not None:
                self._study.tell(point, _value(time_us))

    def recall(self, candidate: Candidate, time_us: float | None) -> None:
        """Report a candidate of an earlier run. It counts as proposed, unless the space has lost it since."""
        point = self._listing.point(candidate)
        if candidate in self._told or candidate in self._running:
            return
        if point is None and candidate not in self._first:
            return
        self._first = [first for first in self._first if first != candidate]
        self._learn(candidate, time_us)
        self._proposed += 1
        if point is not None:
            self._study.add(point, _value(time_us))

    def _learn(self, candidate: Candidate, time_us: float | None) -> None:
        self._told[candidate] = time_us
        if time_us is not None:
            if time_us < self._best * (1 - SETTINGS.surrogate.least_gain):
                self._idle = 0
            self._best = min(self._best, time_us)

    def _next(self) -> Candidate | None:
        point: int | None
        if self._first:
            candidate = self._first.pop(0)
            point = self._listing.point(candidate)
            if point is not None:
                self._study.start(point)
        else:
            point = self._study.ask()
            if point is None:
                return None
            gain = self._study.gain
            self._idle = self._idle + 1 if gain is not None and gain < SETTINGS.surrogate.least_gain else 0
            candidate = self._listing[point]
        self._running[candidate] = point
        return candidate

    def _hints(self, sources: Sequence[Source]) -> Iterable[Hint]:
        """What ``sources`` say of the points."""
        for source in sources:
            places = ((self._listing.point(candidate), time_us) for candidate, time_us in source.times.items())
            yield Hint({place: _value(time) for place, time in places if place is not None}, source.weight)

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
