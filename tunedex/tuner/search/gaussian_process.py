"""A Gaussian process over the points of a space, which learns how fast its tunables matter.

The covariance of two points is Matern's with smoothness 5/2 and a length scale a parameter (C. E. Rasmussen and
C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, sections 2.2 and 4.2.1). Its scales and
its noise maximise the posterior density of what was observed, under log-normal priors; its variance is the one that
then is likeliest. Between two fits it is conditioned on one observation at a time, each of which costs one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from tunedex.tuner.search.points import ABSENT, Points
from tunedex.tuner.settings import SETTINGS, Surrogate

Floats = NDArray[np.float64]
Places = Sequence[int]

_ROOT5 = np.sqrt(5)
#: Keeps covariances of points that are almost the same invertible.
_JITTER = 1e-6


@dataclass(frozen=True)
class Features:
    """Points as the process sees them: points x columns, and which parameter each column is of.

    A parameter with an order is one column, from 0 to 1 in the logarithm of its values; one without is a column a
    value, so that any two of its values are as far apart as the ends of another's. Where a point lacks a parameter it
    lies in the middle.
    """

    columns: Floats
    parameter: NDArray[np.int64]

    @classmethod
    def of(cls, points: Points) -> Features:
        columns: list[Floats] = []
        parameter: list[int] = []
        varying = 0
        for number, each in enumerate(points.parameters):
            if len(each.values) < 2:
                continue
            codes = points.codes[:, number]
            absent = codes == ABSENT
            if each.ordered:
                scale = _scale([float(value) for value in each.values])
                columns.append(np.where(absent, 0.5, scale[codes]))
            else:
                columns.extend(np.where(absent, 0.5, codes == code) / np.sqrt(2) for code in range(len(each.values)))
            parameter.extend([varying] * (len(columns) - len(parameter)))
            varying += 1
        table = np.stack(columns, axis=1) if columns else np.zeros((len(points), 0))
        return cls(table.astype(np.float64), np.array(parameter, dtype=np.int64))

    @property
    def parameters(self) -> int:
        """How many parameters have a choice of values."""
        return int(self.parameter.max()) + 1 if self.parameter.size else 0


def _scale(values: Sequence[float]) -> Floats:
    """Ascending ``values`` from 0 to 1: by their logarithms, or as they are where some are negative."""
    x = np.array(values)
    if x[0] >= 0:
        x = np.log2(x) if x[0] > 0 else np.log2(x + 1)
    scaled: Floats = (x - x[0]) / (x[-1] - x[0])
    return scaled


class GaussianProcess:
    """The process on ``features``, conditioned on the points given to `condition`.

    Values are what a fit makes of mean 0 and variance 1; means and deviations come back in the caller's units.
    """

    def __init__(self, features: Features, settings: Surrogate = SETTINGS.surrogate) -> None:
        self._features = features
        self._settings = settings
        #: Logarithms of the length scales, then of the noise's share of the variance.
        self._theta = np.append(
            np.full(features.parameters, np.log(settings.first_length)), np.log(settings.usual_noise)
        )
        self._mean, self._deviation = 0.0, 1.0
        self._noise = settings.usual_noise
        self._at: list[int] = []
        self._factor = np.zeros((0, 0))
        self._pool = np.zeros(0, dtype=np.int64)
        self._rows = np.zeros((0, 0))
        self._scaled = np.zeros((0, 0))

    def fit(self, at: Places, values: Floats, pool: NDArray[np.int64]) -> None:
        """Learn from ``values`` at the points ``at``, and predict at ``pool`` from now on."""
        self._mean = float(values.mean())
        self._deviation = float(values.std()) or 1.0
        settings = self._settings
        table = self._features.columns[list(at)]
        apart = _sums((table[:, None, :] - table[None, :, :]) ** 2, self._features)
        lengths, noise = settings.length_bounds, settings.noise_bounds
        bounds = [(np.log(lengths[0]), np.log(lengths[1]))] * self._features.parameters
        found = minimize(
            self._loss,
            self._theta,
            args=(apart, (values - self._mean) / self._deviation),
            jac=True,
            method="L-BFGS-B",
            bounds=[*bounds, (np.log(noise[0]), np.log(noise[1]))],
            options={"maxiter": settings.fit_steps},
        )
        self._theta = found.x
        self._noise = float(np.exp(self._theta[-1])) + _JITTER
        self._scaled = self._features.columns / np.exp(self._theta[:-1])[self._features.parameter]
        self._pool = pool
        self._at = []
        self._factor = np.zeros((0, 0))
        self._rows = np.zeros((0, len(pool)))
        self.condition(at)

    def condition(self, at: Places) -> None:
        """Know the points ``at``, in this order, whatever their values; what is known in the same order stays."""
        same = 0
        while same < min(len(at), len(self._at)) and at[same] == self._at[same]:
            same += 1
        self._at = self._at[:same]
        self._factor, self._rows = self._factor[:same, :same], self._rows[:same]
        new = list(at[same:])
        if not new:
            return
        across = self._covariance(self._at, new)
        upper = solve_triangular(self._factor, across, lower=True) if self._at else across
        corner = self._covariance(new, new) + self._noise * np.eye(len(new)) - upper.T @ upper
        lower = cholesky(corner + _JITTER * np.eye(len(new)), lower=True)
        ahead = self._covariance(new, self._pool)
        rows = solve_triangular(lower, ahead - upper.T @ self._rows, lower=True, check_finite=False)
        self._factor = np.block([[self._factor, np.zeros((same, len(new)))], [upper.T, lower]])
        self._rows = np.vstack([self._rows, rows])
        self._at += new

    def predict(self, values: Floats) -> tuple[Floats, Floats]:
        """The mean and the standard deviation at each point of the pool, given ``values`` at the first of the points
        that are known; the others count as what is expected there."""
        count = len(values)
        weights = solve_triangular(
            self._factor[:count, :count], (values - self._mean) / self._deviation, lower=True, check_finite=False
        )
        variance = max(float(weights @ weights) / max(1, count), self._settings.least_variance)
        left = np.maximum(1 - np.einsum("ij,ij->j", self._rows, self._rows), 1e-10)
        mean: Floats = self._mean + self._deviation * (weights @ self._rows[:count])
        deviation: Floats = self._deviation * np.sqrt(variance * left)
        return mean, deviation

    def _covariance(self, a: Places, b: Places | NDArray[np.int64]) -> Floats:
        left, right = self._scaled[np.asarray(a, dtype=np.int64)], self._scaled[np.asarray(b, dtype=np.int64)]
        squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * left @ right.T
        distance = _ROOT5 * np.sqrt(np.maximum(squares, 0))
        covariance: Floats = (1 + distance + distance**2 / 3) * np.exp(-distance)
        return covariance

    def _loss(self, theta: Floats, apart: Floats, values: Floats) -> tuple[float, Floats]:
        """The negative logarithm of the posterior density of ``theta``, and its gradient. ``apart`` holds the squared
        distance of each pair of points in each parameter."""
        settings = self._settings
        count = len(values)
        inverse = np.exp(-2 * theta[:-1])
        noise = float(np.exp(theta[-1]))
        distance = _ROOT5 * np.sqrt(apart @ inverse + 1e-12)
        falls = np.exp(-distance)
        covariance = (1 + distance + distance**2 / 3) * falls
        try:
            factor = cholesky(covariance + (noise + _JITTER) * np.eye(count), lower=True)
        except LinAlgError:
            return 1e10, np.zeros_like(theta)
        weights = cho_solve((factor, True), values)
        variance = max(float(values @ weights) / count, 1e-12)
        off = np.append(theta[:-1] - np.log(settings.usual_length), theta[-1] - np.log(settings.usual_noise))
        spread = np.append(np.full(len(theta) - 1, settings.length_spread), settings.noise_spread)
        loss = count / 2 * np.log(variance) + np.log(np.diag(factor)).sum() + (off**2 / (2 * spread**2)).sum()
        # The derivative of the loss by the covariance, then that of the covariance by each logarithm.
        slope = (cho_solve((factor, True), np.eye(count)) - np.outer(weights, weights) / variance) / 2
        by_length = np.tensordot(slope * (5 / 3) * (1 + distance) * falls, apart, 2) * inverse
        gradient = np.append(by_length, noise * np.trace(slope)) + off / spread**2
        return float(loss), gradient


def _sums(squares: Floats, features: Features) -> Floats:
    """``squares`` of pairs x columns, summed over the columns of each parameter."""
    if not features.parameter.size:
        return np.zeros((*squares.shape[:2], 0))
    starts = np.flatnonzero(np.diff(features.parameter, prepend=-1))
    sums: Floats = np.add.reduceat(squares, starts, axis=2)
    return sums
