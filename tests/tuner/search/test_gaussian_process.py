"""The process agrees with one that is conditioned at once, and its loss with its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad

from tunedex.core.config import Value
from tunedex.tuner.search.gaussian_process import Features, GaussianProcess, _sums
from tunedex.tuner.search.points import Points


@pytest.fixture(scope="module")
def features() -> Features:
    rows: list[dict[str, Value]] = [
        {"size": 2**a, "stages": b, "order": order, "fixed": 7} for a in range(5) for b in range(4) for order in "xyz"
    ]
    return Features(Points.of([*rows, {"order": "x", "other": 1}, {"order": "x", "other": -3}]))


def values_at(places: list[int]) -> np.ndarray:
    return np.array([np.sin(place) + place / 50 for place in places])


def test_a_parameter_spans_its_range_and_one_without_a_choice_none(features: Features) -> None:
    assert features.parameters == 4
    columns = features.at(range(62))
    assert columns.shape == (62, 6)
    assert columns.min() == 0
    assert columns.max() == 1
    assert columns[0, 0] == 0
    assert columns[-1, 0] == 0.5
    assert (features.at([5, 61]) == columns[[5, 61]]).all()


@settings(max_examples=20, deadline=None)
@given(places=st.lists(st.integers(0, 61), min_size=12, max_size=30, unique=True), cut=st.integers(9, 11))
def test_one_after_the_other_is_all_at_once(features: Features, places: list[int], cut: int) -> None:
    pool = np.arange(62)
    one, two = GaussianProcess(features), GaussianProcess(features)
    one.fit(places[:cut], values_at(places[:cut]), pool)
    two.fit(places[:cut], values_at(places[:cut]), pool)
    for count in range(cut, len(places) + 1):
        one.condition([*places[:count], *([] if count == len(places) else places[count:][::-1])])
    two.condition(places)
    mean, deviation = one.predict(values_at(places))
    assert np.allclose(mean, two.predict(values_at(places))[0], atol=1e-4)  # a prediction is in single precision
    assert np.allclose(deviation, two.predict(values_at(places))[1], atol=1e-4)  # a prediction is in single precision


def test_it_comes_through_what_it_was_told_and_is_unsure_elsewhere(features: Features) -> None:
    places = list(range(0, 60, 4))
    process = GaussianProcess(features)
    process.fit(places, values_at(places), np.arange(62))
    mean, deviation = process.predict(values_at(places))
    others = [place for place in range(62) if place not in places]
    assert np.abs(mean[places] - values_at(places)).mean() < np.abs(mean[others] - values_at(others)).mean()
    assert deviation[places].max() < deviation[others].max()


def test_what_is_under_way_lowers_the_doubt_and_not_the_mean(features: Features) -> None:
    places = list(range(0, 40, 4))
    process = GaussianProcess(features)
    process.fit(places, values_at(places), np.arange(62))
    before = process.predict(values_at(places))
    process.condition([*places, 50])
    after = process.predict(values_at(places))
    assert np.allclose(before[0], after[0])
    assert after[1][50] < before[1][50]


def test_equal_values_are_no_fault(features: Features) -> None:
    process = GaussianProcess(features)
    process.fit([0, 5, 9], np.full(3, 2.0), np.arange(62))
    mean, deviation = process.predict(np.full(3, 2.0))
    assert np.allclose(mean, 2.0)
    assert np.isfinite(deviation).all()


def test_the_gradient_is_that_of_the_loss(features: Features) -> None:
    process = GaussianProcess(features)
    places = list(range(0, 60, 5))
    table = features.at(places)
    apart = _sums((table[:, None, :] - table[None, :, :]) ** 2, features)
    values = values_at(places)
    theta = np.array([-0.3, 0.2, -1.0, 0.4, -3.0])
    off = check_grad(lambda t: process._loss(t, apart, values)[0], lambda t: process._loss(t, apart, values)[1], theta)
    assert off < 1e-4
