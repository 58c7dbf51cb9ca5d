"""The tree-structured Parzen estimator on a space whose points are all known.

It is that of J. Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NIPS 2011, section 4, in its
multivariate form: trials are split into the good and the others, and a density of each is estimated as a mean of
kernels around them, a product over the parameters. Since the points are known, the ratio of the two densities is
computed for every one that is unseen, and the largest wins; nothing is drawn from a density, so nothing is proposed
twice or against a constraint. Trials under way count with the others, so that those which are proposed meanwhile lie
elsewhere. The kernel of a parameter without an order is that of J. Aitchison and C. G. G. Aitken, Biometrika 63 (1976);
of one with an order, it falls by a constant factor from one value to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tunedex.tuner.search.listed import ListedSampler, Seen
from tunedex.tuner.search.points import Parameter, Points
from tunedex.tuner.settings import SETTINGS, Searching

Places = NDArray[np.int64]


class ListedTPE(ListedSampler):
    """Proposes the unseen point that is likeliest to be among the good ones.

    Args:
        points: the space.
        startup: trials before the densities decide; those are drawn at random.
        seed: the same seed and the same results give the same proposals.
    """

    def __init__(self, points: Points, startup: int, seed: int, settings: Searching = SETTINGS.searching) -> None:
        super().__init__(points)
        self._startup = startup
        self._settings = settings
        self._random = np.random.default_rng(seed)
        self._tables = [_table(parameter, settings) for parameter in points.parameters]

    def choose(self, seen: Seen) -> int:
        left = np.ones(len(self.points), dtype=bool)
        left[[*seen.told, *seen.running]] = False
        unseen = np.flatnonzero(left)
        told = sorted(seen.measured, key=lambda point: (seen.measured[point], point))
        settings = self._settings
        if len(seen) < self._startup or len(told) <= settings.least_good:
            return int(self._random.choice(unseen))
        good = told[: max(settings.least_good, math.ceil(settings.good_share * len(told)))]
        others = sorted({*seen.told, *seen.running} - set(good))
        if unseen.size > settings.most_points:
            unseen = np.sort(self._random.choice(unseen, settings.most_points, replace=False))
        ratio = self._density(unseen, good) / self._density(unseen, others)
        return int(unseen[ratio.argmax()])

    def _density(self, points: Places, centres: Sequence[int]) -> NDArray[np.float64]:
        """The mean of the kernels around ``centres`` and of one that is even, at ``points``. A code of -1, that
        of a point without the parameter, finds the last row and column of a table."""
        around = np.ones((points.size, len(centres)))
        even = np.ones(points.size)
        for column, table in enumerate(self._tables):
            codes = self.points.codes[:, column]
            around *= table[:, codes[list(centres)]][codes[points]]
            even *= table[codes[points], -1]
        density: NDArray[np.float64] = (around.sum(axis=1) + even) / (len(centres) + 1)
        return density


def _table(parameter: Parameter, settings: Searching) -> NDArray[np.float64]:
    """The kernel around each value of ``parameter``, a column that sums to 1. The last column is for a centre that has
    no value, and the last row for a point that has none."""
    count = len(parameter.values)
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    if parameter.ordered:
        kernel = settings.step_factor**apart
    else:
        kernel = np.where(apart == 0, 1 - settings.other_share, settings.other_share / max(1, count - 1))
    table = np.ones((count + 1, count + 1))
    table[:-1, :-1] = kernel / kernel.sum(axis=0)
    table[:-1, -1] = 1 / count
    return table
