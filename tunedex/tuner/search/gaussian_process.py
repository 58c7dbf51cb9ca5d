"""A Gaussian process over the points of a space, which learns how fast its tunables matter.

The covariance of two points is Matern's with smoothness 5/2 and a length scale a parameter (C. E. Rasmussen and
C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, sections 2.2 and 4.2.1). Its scales and
its noise maximise the posterior density of what was observed, under log-normal priors; its variance is the one that
then is likeliest. Between two fits it is conditioned on one observation at a time, each of which costs one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from tunedex.tuner.search.points import Parameter, Points
from tunedex.tuner.settings import SETTINGS, Surrogate

Floats = NDArray[np.float64]
Places = Sequence[int] | NDArray[np.int64]

_ROOT5 = math.sqrt(5)
#: Keeps covariances of points that are almost the same invertible.
_JITTER = 1e-6
#: The least share of its variance that a point keeps: what single precision can tell from nothing.
_LEAST_LEFT = 1e-6


class Features:
    """Points as the process sees them, made when they are looked at: points x columns.

    A parameter with an order is one column, from 0 to 1 in the logarithm of its values; one without is a column a
    value, so that any two of its values are as far apart as the ends of another's. Where a point lacks a parameter it
    lies in the middle. What is ``known`` of each point besides, from 0 to 1, is a parameter with an order.
    """

    def __init__(self, points: Points, known: Floats | None = None) -> None:
        self._codes = points.codes
        self._known = known
        #: Of each parameter with a choice of values: its place, and its columns by code, `ABSENT` last.
        self._tables = [
            (place, _table(parameter)) for place, parameter in enumerate(points.parameters) if len(parameter.values) > 1
        ]
        #: Which parameter each column is of.
        self.parameter = np.repeat(np.arange(len(self._tables)), [table.shape[1] for _, table in self._tables])
        if known is not None:
            self.parameter = np.append(self.parameter, len(self._tables))

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def parameters(self) -> int:
        """How many parameters have a choice of values."""
        return len(self._tables) + (self._known is not None)

    def at(self, places: Places) -> Floats:
        """The points at ``places``: places x columns."""
        rows = np.asarray(places, dtype=np.int64)
        codes = self._codes[rows]
        columns = [table[codes[:, place]] for place, table in self._tables]
        if self._known is not None:
            columns.append(self._known[rows, None])
        return np.concatenate(columns, axis=1) if columns else np.zeros((len(codes), 0))


def _table(parameter: Parameter) -> Floats:
    """The columns of each value of ``parameter``, and of none in the last row."""
    count = len(parameter.values)
    if parameter.ordered:
        return np.append(_scale([float(value) for value in parameter.values]), 0.5)[:, None]
    return np.vstack([np.eye(count), np.full(count, 0.5)]) / np.sqrt(2)


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
        self._scales = np.ones(len(features.parameter))
        self._at: list[int] = []
        self._known = np.zeros((0, len(self._scales)))
        self._factor = np.zeros((0, 0))
        self._ahead = _Ahead(self._known)

    def fit(self, at: Places, values: Floats, pool: NDArray[np.int64]) -> None:
        """Learn from ``values`` at the points ``at``, and predict at ``pool`` from now on."""
        self._mean = float(values.mean())
        self._deviation = float(values.std()) or 1.0
        settings = self._settings
        table = self._features.at(at)
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
        self._scales = np.exp(self._theta[:-1])[self._features.parameter]
        self._at = []
        self._known = self._scaled([])
        self._factor = np.zeros((0, 0))
        self._ahead = _Ahead(self._scaled(pool))
        self.condition(at)

    def condition(self, at: Places) -> None:
        """Know the points ``at``, in this order, whatever their values; what is known in the same order stays."""
        same = 0
        while same < min(len(at), len(self._at)) and at[same] == self._at[same]:
            same += 1
        self._at, self._known, self._factor = self._at[:same], self._known[:same], self._factor[:same, :same]
        self._ahead.forget(same)
        if not len(new := at[same:]):
            return
        points = self._scaled(new)
        across = _covariance(self._known, points)
        upper = solve_triangular(self._factor, across, lower=True) if same else across
        corner = _covariance(points, points) + self._noise * np.eye(len(new)) - upper.T @ upper
        lower = cholesky(corner + _JITTER * np.eye(len(new)), lower=True)
        self._ahead.learn(points, upper, lower)
        self._factor = np.block([[self._factor, np.zeros((same, len(new)))], [upper.T, lower]])
        self._known = np.vstack([self._known, points])
        self._at = [*self._at, *new]

    def predict(self, values: Floats) -> tuple[Floats, Floats]:
        """The mean and the standard deviation at each point of the pool, given ``values`` at the first of the points
        that are known; the others count as what is expected there."""
        count = len(values)
        weights = solve_triangular(
            self._factor[:count, :count], (values - self._mean) / self._deviation, lower=True, check_finite=False
        )
        variance = max(float(weights @ weights) / max(1, count), self._settings.least_variance)
        mean: Floats = self._mean + self._deviation * self._ahead.mean(weights)
        deviation: Floats = self._deviation * np.sqrt(variance * self._ahead.left)
        return mean, deviation

    def _scaled(self, at: Places) -> Floats:
        """The points ``at`` in units of the length scales."""
        scaled: Floats = self._features.at(at) / self._scales
        return scaled

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


class _Ahead:
    """What the points that are known say of those of a pool, ``points``: a row for each of them, in single precision,
    since most of a proposal's time is spent here and a prediction needs no more."""

    def __init__(self, points: Floats) -> None:
        self._points = points
        self._count = 0
        self._room = np.zeros((0, len(points)), dtype=np.float32)
        self._explained = np.zeros(len(points), dtype=np.float32)

    def forget(self, count: int) -> None:
        """Know the first ``count`` points alone."""
        if count < self._count:
            self._count = count
            self._explained = _squares(self._room[:count])

    def learn(self, points: Floats, upper: Floats, lower: Floats) -> None:
        """Know ``points`` as well, to which ``upper`` and ``lower`` are the new rows of the covariance's factor."""
        begin, end = self._count, self._count + len(points)
        if end > len(self._room):
            room = np.zeros((max(end, 3 * len(self._room) // 2), len(self._points)), dtype=np.float32)
            room[:begin] = self._room[:begin]
            self._room = room
        rows = _covariance(points, self._points, np.float32)
        if begin:
            rows -= upper.T.astype(np.float32) @ self._room[:begin]
        rows = solve_triangular(lower.astype(np.float32), rows, lower=True, check_finite=False, overwrite_b=True)
        self._room[begin:end] = rows
        self._explained += _squares(rows)
        self._count = end

    def mean(self, weights: Floats) -> Floats:
        """The mean at each point of the pool, in units of a fit, where the first points have these ``weights``."""
        mean: Floats = (weights.astype(np.float32) @ self._room[: len(weights)]).astype(np.float64)
        return mean

    @property
    def left(self) -> Floats:
        """The share of the variance at each point of the pool that nothing explains."""
        left: Floats = np.maximum(1 - self._explained.astype(np.float64), _LEAST_LEFT)
        return left


def _covariance(left: Floats, right: Floats, dtype: type = np.float64) -> NDArray[Any]:
    """The covariance of each of ``left`` with each of ``right``, in ``dtype``. Their distances are differences of large
    numbers, and are taken in double precision."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * left @ right.T
    distance = np.maximum(squares, 0, out=squares).astype(dtype)
    np.sqrt(distance, out=distance)
    distance *= _ROOT5
    covariance: NDArray[Any] = 1 + distance + distance**2 / 3
    np.negative(distance, out=distance)
    covariance *= np.exp(distance, out=distance)
    return covariance


def _squares(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    squares: NDArray[np.float32] = np.einsum("ij,ij->j", rows, rows)
    return squares


def _sums(squares: Floats, features: Features) -> Floats:
    """``squares`` of pairs x columns, summed over the columns of each parameter."""
    if not features.parameter.size:
        return np.zeros((*squares.shape[:2], 0))
    starts = np.flatnonzero(np.diff(features.parameter, prepend=-1))
    sums: Floats = np.add.reduceat(squares, starts, axis=2)
    return sums
