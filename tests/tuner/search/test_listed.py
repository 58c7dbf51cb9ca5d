"""The samplers of listed points: each is proposed once, those like the good ones first, other than those under way."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import optuna
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial

from tunedex.core.config import Value
from tunedex.tuner.search.hints import Hint
from tunedex.tuner.search.listed import ListedSampler
from tunedex.tuner.search.points import Points
from tunedex.tuner.search.study import PointStudy
from tunedex.tuner.search.surrogate import SurrogateSampler

Make = Callable[[Points, int], ListedSampler]


@pytest.fixture
def make() -> Make:
    return SurrogateSampler


def rows() -> list[dict[str, Value]]:
    """Two sizes and an order, and beside them three points of another kind with a size of their own."""
    tiled: list[dict[str, Value]] = [
        {"kind": "tiled", "rows": row, "cols": col, "order": order}
        for row, col, order in itertools.product(range(10), range(10), ("row", "column"))
        if row + col <= 14
    ]
    return [*tiled, *({"kind": "plain", "width": width} for width in range(3))]


def cost(values: dict[str, Value]) -> float:
    """Best at rows=7, cols=3, order=row."""
    if values["kind"] == "plain":
        return 5.0
    return 1.0 + (abs(int(values["rows"]) - 7) + abs(int(values["cols"]) - 3) + (values["order"] == "column")) / 10


def proposed(make: Make, count: int, seed: int, *, at_once: int = 1) -> list[int]:
    points = Points.of(rows())
    study = PointStudy(make(points, seed))
    out: list[int] = []
    while len(out) < count:
        asked = [point for _ in range(min(at_once, count - len(out))) if (point := study.ask()) is not None]
        for point in asked:
            values = points.values(point)
            study.tell(point, None if values.get("cols") == 0 else cost(values))
        out += asked
    return out


@pytest.mark.parametrize("at_once", [1, 7])
def test_every_point_is_proposed_once(make: Make, at_once: int) -> None:
    assert sorted(proposed(make, len(rows()), 0, at_once=at_once)) == list(range(len(rows())))


@pytest.mark.parametrize("seed", range(4))
def test_the_best_is_found_in_a_quarter_of_the_space(make: Make, seed: int) -> None:
    points = Points.of(rows())
    assert min(cost(points.values(point)) for point in proposed(make, 40, seed)) <= 1.1


def test_the_surrogate_finds_the_best_in_a_tenth_of_the_space() -> None:
    points = Points.of(rows())
    for seed in range(4):
        assert min(cost(points.values(point)) for point in proposed(SurrogateSampler, 20, seed)) <= 1.1


def test_the_same_seed_proposes_the_same_and_another_does_not(make: Make) -> None:
    assert proposed(make, 30, 3) == proposed(make, 30, 3)
    assert proposed(make, 30, 3) != proposed(make, 30, 4)


def test_what_is_under_way_is_not_crowded(make: Make) -> None:
    """Without a word on those under way, ten proposals at once are the ten points around the best."""
    points = Points.of(rows())
    study = PointStudy(make(points, 0))
    for _ in range(30):
        point = study.ask()
        assert point is not None
        study.tell(point, cost(points.values(point)))
    under_way = [points.values(point) for _ in range(10) if (point := study.ask()) is not None]
    assert len({each.get("rows") for each in under_way}) > 2
    assert len({each.get("cols") for each in under_way}) > 2


def test_what_nobody_asked_for_is_known_and_not_proposed(make: Make) -> None:
    points = Points.of([{"rows": row} for row in range(20)])
    study = PointStudy(make(points, 0))
    study.add(3, 0.5)
    study.add(4, None)
    study.start(5)
    rest = [point for _ in range(17) if (point := study.ask()) is not None]
    assert sorted([*rest, 3, 4, 5]) == list(range(20))
    assert study.ask() is None
    study.tell(5, 0.1)


def test_failures_alone_do_not_stop_it(make: Make) -> None:
    study = PointStudy(make(Points.of(rows()), 0))
    for _ in range(30):
        point = study.ask()
        assert point is not None
        study.tell(point, None)


def test_a_trial_of_no_listed_point_is_passed_over(make: Make) -> None:
    points = Points.of([{"rows": 1}, {"rows": 2}])
    study = optuna.create_study(sampler=make(points, 0))
    study.add_trial(create_trial(params={"rows": 5}, distributions={"rows": IntDistribution(0, 9)}, value=1.0))
    study.add_trial(create_trial(params={"rows": 1}, distributions={"rows": IntDistribution(0, 1)}, value=1.0))
    assert study.ask().relative_params == {"rows": 0}


def test_no_point_left_proposes_nothing(make: Make) -> None:
    study = optuna.create_study(sampler=make(Points.of([{"rows": 1}]), 0))
    ask = {"params": {"rows": 0}, "distributions": {"rows": IntDistribution(0, 0)}}
    study.add_trial(create_trial(**ask, state=TrialState.RUNNING))
    assert study.ask().relative_params == {}
    with pytest.raises(RuntimeError, match="every point is seen"):
        study.ask().suggest_int("rows", 0, 9)


def test_a_space_of_more_points_than_are_looked_at_is_searched() -> None:
    points = Points.of([{"a": a, "b": b, "c": c} for a in range(32) for b in range(32) for c in range(32)])
    study = PointStudy(SurrogateSampler(points, 0))
    values = []
    for _ in range(40):
        point = study.ask()
        assert point is not None
        codes = points.codes[point]
        values.append(1.0 + abs(int(codes[0]) - 20) / 10 + abs(int(codes[1]) - 5) / 10 + int(codes[2]) / 10)
        study.tell(point, values[-1])
    assert min(values) < 1.8


def test_a_hint_is_tried_first_and_corrected_by_what_is_measured() -> None:
    """The best of the hint is tried at once; where the hint is wrong, the best is found all the same."""
    points = Points.of(rows())
    shifted = {point: cost(points.values(point) | {"rows": int(points.values(point).get("rows", 0)) + 2}) for point in
               range(len(points))}  # fmt: skip
    for hint in (shifted, {point: shifted[point] for point in list(shifted)[::3]}):
        study = PointStudy(SurrogateSampler(points, 0, hints=[Hint(hint), Hint({})]))
        tried = []
        for _ in range(30):
            point = study.ask()
            assert point is not None
            tried.append(point)
            study.tell(point, cost(points.values(point)))
        assert shifted[tried[0]] <= min(hint.values()) + 0.11
        assert min(cost(points.values(point)) for point in tried) <= 1.2
