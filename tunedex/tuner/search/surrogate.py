"""The sampler `auto`: a Gaussian process of the logarithm of the time proposes the point that promises most.

What promises most is what is expected to improve most on the best so far (J. Mockus et al., "The application of
Bayesian methods for seeking the extremum", 1978), over every unseen point. Times beyond a factor of the best so far
count as that factor, and failures as well, so that the process models the good end of the space and does not spend its
length scales on telling bad from worse. Points under way count as told what is expected of them, so that those which
are proposed meanwhile lie elsewhere.

What other devices or shapes measured of the same points, hints, is one more thing that the process knows of a point:
how far its time goes with that it learns like anything else. The search then starts with what was best there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from threadpoolctl import ThreadpoolController

from tunedex.tuner.search.gaussian_process import Features, GaussianProcess
from tunedex.tuner.search.hints import Hint
from tunedex.tuner.search.listed import ListedSampler, Seen
from tunedex.tuner.search.points import Points
from tunedex.tuner.settings import SETTINGS, Surrogate

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

_THREADS = ThreadpoolController()


class SurrogateSampler(ListedSampler):
    """Proposes points far from one another first, then those of which most is expected.

    Args:
        points: the space.
        seed: the same seed and the same results give the same proposals.
        hints: what each device or shape that is known says of the points that were tried there.
    """

    def __init__(
        self,
        points: Points,
        seed: int,
        settings: Surrogate = SETTINGS.surrogate,
        *,
        hints: Sequence[Hint] = (),
    ) -> None:
        super().__init__(points)
        self._settings = settings
        self._random = np.random.default_rng(seed)
        with _one_core():
            hinted = _hinted(Features(points), hints, settings)
        self._features = Features(points, hinted)
        self._process = GaussianProcess(self._features, settings)
        #: The order in which hints have the points, the best first; empty where there are none.
        self._ranking = np.zeros(0, dtype=np.int64) if hinted is None else hinted.argsort(kind="stable")
        self._left = np.ones(len(points), dtype=bool)
        #: The points that the process was fitted to, and after how many it is fitted again.
        self._fitted: list[int] = []
        self._next_fit = 0
        self._pool: Places = np.zeros(0, dtype=np.int64)

    def choose(self, seen: Seen) -> int:
        self.gain = None
        with _one_core():
            return self._choose(seen)

    def _choose(self, seen: Seen) -> int:
        self._left[:] = True
        self._left[[*seen.told, *seen.running]] = False
        measured = seen.measured
        if len(self._ranking):
            hinted = self._hinted(every=len(measured) < 2)
            if hinted is not None:
                return hinted
        elif len(measured) < 2 or len(seen) < self._settings.first_points:
            return self._apart(seen)
        best = min(measured.values())
        worst = best + self._settings.clip
        values = {point: worst if value is None else min(value, worst) for point, value in seen.told.items()}
        if len(values) >= self._next_fit:
            self._fit(values)
        fitted = set(self._fitted)
        known = self._fitted + [point for point in values if point not in fitted]
        self._process.condition([*known, *seen.running])
        mean, deviation = self._process.predict(np.array([values[point] for point in known]))
        gain = expected_improvement(mean, deviation, best)
        gain[~self._left[self._pool]] = -1.0
        found = int(gain.argmax())
        self.gain = max(0.0, float(gain[found]))
        return int(self._pool[found]) if gain[found] >= 0 else int(self._random.choice(np.flatnonzero(self._left)))

    def _hinted(self, *, every: bool) -> int | None:
        """The best unseen point of the first by the hints, or of all of them; None where there is none."""
        ranking = self._ranking if every else self._ranking[: self._settings.hinted_points]
        unseen = ranking[self._left[ranking]]
        return int(unseen[0]) if len(unseen) else None

    def _fit(self, values: dict[int, float]) -> None:
        settings = self._settings
        chosen = sorted(values, key=lambda point: values[point])
        if len(chosen) > settings.most_fitted:
            fastest, rest = chosen[: settings.most_fitted // 2], chosen[settings.most_fitted // 2 :]
            drawn = self._random.choice(rest, settings.most_fitted - len(fastest), replace=False)
            keep = {*fastest, *drawn.tolist()}
        else:
            keep = set(chosen)
        self._fitted = [point for point in values if point in keep]
        self._next_fit = len(values) + min(settings.fit_every, max(2, len(values) // 4))
        self._pool = self._candidates(chosen[: settings.leaders])
        self._process.fit(self._fitted, np.array([values[point] for point in self._fitted]), self._pool)

    def _candidates(self, leaders: list[int]) -> Places:
        """Every point of a small space; of a large one, those one step from the ``leaders`` and others at random."""
        most = self._settings.most_points
        if len(self.points) <= most:
            return np.arange(len(self.points))
        codes = self.points.codes
        near = [np.flatnonzero((codes != codes[leader]).sum(axis=1) <= 1) for leader in leaders]
        drawn = self._random.choice(len(self.points), most, replace=False)
        return np.unique(np.concatenate([*near, drawn]))

    def _apart(self, seen: Seen) -> int:
        """Of some unseen points drawn at random, the one farthest from all that are seen."""
        unseen = np.flatnonzero(self._left)
        drawn = self._random.choice(unseen, min(len(unseen), self._settings.drawn_points), replace=False)
        others = self._features.at([*seen.told, *seen.running])
        if not len(others):
            return int(drawn[0])
        distances = ((self._features.at(drawn)[:, None, :] - others[None, :, :]) ** 2).sum(axis=2)
        return int(drawn[distances.min(axis=1).argmax()])


def _one_core() -> AbstractContextManager[Any]:
    """The linear algebra of the block takes one thread: the other cores are compiling, and threads that share a busy
    core wait for one another."""
    return _THREADS.limit(limits=1, user_api="blas")


def _hinted(features: Features, hints: Sequence[Hint], settings: Surrogate) -> Floats | None:
    """The mean over ``hints``, by their weights, of how much above its best each point is, as a share of the clip: 1 at
    most, and where it failed; where a hint says nothing of a point, what a process that learnt from the hint predicts.
    None where no hint says anything."""
    hints = [hint for hint in hints if any(value is not None for value in hint.times.values())]
    if not hints:
        return None
    every = np.arange(len(features))
    above = []
    for hint in hints:
        best = min(value for value in hint.times.values() if value is not None)
        told = {place: settings.clip if value is None else value - best for place, value in hint.times.items()}
        row = np.zeros(len(every))
        if len(told) < len(every):
            fastest = sorted(told, key=lambda place: told[place])[: settings.hint_fitted]
            process = GaussianProcess(features, settings)
            values = np.minimum([told[place] for place in fastest], settings.clip)
            process.fit(fastest, values, every)
            row = process.predict(values)[0]
        row[list(told)] = list(told.values())
        above.append(np.clip(row, 0, settings.clip))
    mean: Floats = np.average(above, axis=0, weights=[hint.weight for hint in hints]) / settings.clip
    return mean


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """How far below ``best`` a normal variable is expected to lie, counting 0 where it lies above."""
    z = (best - mean) / deviation
    improvement: Floats = deviation * (z * ndtr(z) + np.exp(-z * z / 2) / np.sqrt(2 * np.pi))
    return improvement
