"""The sampler of listed points: each is proposed once, those like the good ones first, other than those under way."""

from __future__ import annotations

import itertools

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from tunedex.tuner.search.listed import ListedSampler, Point, parameters_key

SIZES = IntDistribution(0, 9)
ORDERS = CategoricalDistribution(("row", "column"))


def grid() -> list[Point]:
    """Two sizes and an order, and beside them three points of another kind with a size of their own."""
    kinds = CategoricalDistribution(("tiled", "plain"))
    tiled: dict[str, BaseDistribution] = {"kind": kinds, "rows": SIZES, "cols": SIZES, "order": ORDERS}
    points = [
        Point({"kind": "tiled", "rows": rows, "cols": cols, "order": order}, tiled)
        for rows, cols, order in itertools.product(range(10), range(10), ORDERS.choices)
        if rows + cols <= 14
    ]
    plain: dict[str, BaseDistribution] = {"kind": kinds, "width": IntDistribution(0, 2)}
    return [*points, *(Point({"kind": "plain", "width": width}, plain) for width in range(3))]


def cost(parameters: dict[str, object]) -> float:
    """Best at rows=7, cols=3, order=row."""
    if parameters["kind"] == "plain":
        return 50.0
    rows, cols = int(str(parameters["rows"])), int(str(parameters["cols"]))
    return 10.0 + abs(rows - 7) + abs(cols - 3) + (parameters["order"] == "column")


def ask(study: optuna.Study, points: dict[frozenset[tuple[str, object]], Point]) -> optuna.Trial:
    """A trial with the parameters of the point that the sampler chose."""
    trial = study.ask()
    for name, distribution in points[parameters_key(trial.relative_params)].distributions.items():
        if isinstance(distribution, IntDistribution):
            trial.suggest_int(name, distribution.low, distribution.high)
        elif isinstance(distribution, CategoricalDistribution):
            trial.suggest_categorical(name, distribution.choices)
    return trial


def proposed(count: int, startup: int, seed: int, *, at_once: int = 1) -> list[dict[str, object]]:
    points = grid()
    known = {parameters_key(point.parameters): point for point in points}
    study = optuna.create_study(sampler=ListedSampler(points, startup, seed))
    out: list[dict[str, object]] = []
    while len(out) < count:
        trials = [ask(study, known) for _ in range(min(at_once, count - len(out)))]
        for trial in trials:
            out.append(trial.params)
            study.tell(trial, cost(trial.params))
    return out


@pytest.mark.parametrize("at_once", [1, 7])
def test_every_point_is_proposed_once(at_once: int) -> None:
    points = grid()
    taken = proposed(len(points), startup=8, seed=0, at_once=at_once)
    assert {parameters_key(each) for each in taken} == {parameters_key(point.parameters) for point in points}


def test_no_point_left_proposes_nothing() -> None:
    study = optuna.create_study(sampler=ListedSampler([Point({"rows": 0}, {"rows": SIZES})], 0, 0))
    study.add_trial(create_trial(params={"rows": 0}, distributions={"rows": SIZES}, state=TrialState.RUNNING))
    assert study.ask().relative_params == {}
    with pytest.raises(RuntimeError, match="every point is seen"):
        study.ask().suggest_int("rows", 0, 9)


@pytest.mark.parametrize("seed", range(8))
def test_the_best_is_found_in_a_quarter_of_the_space(seed: int) -> None:
    assert min(map(cost, proposed(40, startup=10, seed=seed))) <= 11.0


def test_the_same_seed_proposes_the_same_and_another_does_not() -> None:
    assert proposed(30, 8, seed=3) == proposed(30, 8, seed=3)
    assert proposed(30, 8, seed=3) != proposed(30, 8, seed=4)


def test_what_is_under_way_is_not_crowded() -> None:
    """Without a word on those under way, ten proposals at once are the ten points around the best."""
    points = grid()
    known = {parameters_key(point.parameters): point for point in points}
    study = optuna.create_study(sampler=ListedSampler(points, 20, 0))
    for _ in range(30):
        trial = ask(study, known)
        study.tell(trial, cost(trial.params))
    under_way = [ask(study, known).params for _ in range(10)]
    assert len({each.get("rows") for each in under_way}) > 2
    assert len({each.get("cols") for each in under_way}) > 2


def test_a_trial_of_no_listed_point_is_passed_over() -> None:
    study = optuna.create_study(sampler=ListedSampler([Point({"rows": 1}, {"rows": SIZES})], 0, 0))
    study.add_trial(create_trial(params={"rows": 5}, distributions={"rows": SIZES}, value=1.0))
    assert study.ask().relative_params == {"rows": 1}
