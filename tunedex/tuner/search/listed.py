"""An Optuna sampler for spaces whose points are all known: it proposes each of them at most once.

It is the tree-structured Parzen estimator of J. Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NIPS
2011, section 4, in its multivariate form: trials are split into the good and the others, and a density of each is
estimated as a mean of kernels around them, a product over the parameters. Since the points are known, the ratio of the
two densities is computed for every one that is unseen, and the largest wins; nothing is drawn from a density, so
nothing is proposed twice or against a constraint. Trials under way count with the others, so that those which are
proposed meanwhile lie elsewhere. The kernel of a parameter without an order is that of J. Aitchison and C. G. G.
Aitken, Biometrika 63 (1976); of one with an order, it falls by a constant factor from one value to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from tunedex.tuner.settings import SETTINGS, Searching

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Point:
    """The parameters of a study that one point of a space is, with their distributions."""

    parameters: Mapping[str, Any]
    distributions: Mapping[str, BaseDistribution]


def parameters_key(parameters: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    """What tells the parameters of one point from those of another."""
    return frozenset(parameters.items())


class ListedSampler(BaseSampler):
    """Proposes one of ``points`` that no trial of its study has, until all are seen.

    Args:
        points: the space; their parameters may differ, as those of different implementations do.
        startup: trials before the densities decide; those are drawn at random.
        seed: the same seed and the same results give the same proposals.
    """

    def __init__(self, points: Sequence[Point], startup: int, seed: int, settings: Searching = SETTINGS.searching):
        self._points = points
        self._startup = startup
        self._settings = settings
        self._random = np.random.default_rng(seed)
        self._index = {parameters_key(point.parameters): n for n, point in enumerate(points)}
        self._columns = [_Column.of(name, points, settings) for name in _parameter_names(points)]
        self._chosen: Mapping[str, Any] = {}

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        chosen = self._choose(study)
        if chosen is None:
            self._chosen = {}
            return {}
        self._chosen = chosen.parameters
        return dict(chosen.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return dict(self._chosen)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise RuntimeError(f"every point is seen, none is left that has {param_name}")

    def _choose(self, study: Study) -> Point | None:
        seen: dict[int, float | None] = {}
        for trial in study.get_trials(deepcopy=False):
            place = self._index.get(parameters_key(trial.params))
            if place is not None:
                seen[place] = trial.value if trial.state is TrialState.COMPLETE else None
        left = np.ones(len(self._points), dtype=bool)
        left[list(seen)] = False
        unseen = np.flatnonzero(left)
        if not unseen.size:
            return None
        told = sorted((n for n, value in seen.items() if value is not None), key=lambda n: (seen[n], n))
        settings = self._settings
        if len(seen) < self._startup or len(told) <= settings.least_good:
            return self._points[int(self._random.choice(unseen))]
        good = told[: max(settings.least_good, math.ceil(settings.good_share * len(told)))]
        others = [n for n in seen if n not in good]
        if unseen.size > settings.most_points:
            unseen = np.sort(self._random.choice(unseen, settings.most_points, replace=False))
        ratio = self._density(unseen, good) / self._density(unseen, others)
        return self._points[int(unseen[ratio.argmax()])]

    def _density(self, points: Codes, centres: Sequence[int]) -> NDArray[np.float64]:
        """The mean of the kernels around ``centres`` and of one that is even, at ``points``."""
        around = np.ones((points.size, len(centres)))
        even = np.ones(points.size)
        for column in self._columns:
            around *= column.kernels(points, np.asarray(centres, dtype=np.int64))
            even *= column.even(points)
        return (around.sum(axis=1) + even) / (len(centres) + 1)


@dataclass(frozen=True)
class _Column:
    """One parameter: the place of each point's value among the parameter's values, -1 where the point has none."""

    codes: Codes
    #: The kernel around each value, a column that sums to 1. The last column is for a centre that has no value, and the
    #: last row for a point that has none: a code of -1 finds them.
    table: NDArray[np.float64]

    @classmethod
    def of(cls, name: str, points: Sequence[Point], settings: Searching) -> _Column:
        having = [point for point in points if name in point.parameters]
        ordered = isinstance(having[0].distributions[name], IntDistribution)
        values = sorted({point.parameters[name] for point in having}, key=lambda v: v if ordered else str(v))
        place = {value: n for n, value in enumerate(values)}
        codes = np.array([place[p.parameters[name]] if name in p.parameters else -1 for p in points], dtype=np.int64)
        apart = np.abs(np.subtract.outer(np.arange(len(values)), np.arange(len(values))))
        if ordered:
            kernel = settings.step_factor**apart
        else:
            kernel = np.where(apart == 0, 1 - settings.other_share, settings.other_share / max(1, len(values) - 1))
        table = np.ones((len(values) + 1, len(values) + 1))
        table[:-1, :-1] = kernel / kernel.sum(axis=0)
        table[:-1, -1] = 1 / len(values)
        return cls(codes, table)

    def kernels(self, points: Codes, centres: Codes) -> NDArray[np.float64]:
        """The kernel around each of ``centres`` at each of ``points``: even where a centre has no value."""
        return self.table[:, self.codes[centres]][self.codes[points]]

    def even(self, points: Codes) -> NDArray[np.float64]:
        return self.table[self.codes[points], -1]


def _parameter_names(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(name for point in points for name in point.parameters))
