"""Optuna's own samplers: what a study holds after what they are told, and whether they search."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from tunedex.core.errors import BadInput, CannotRun
from tunedex.interop.recordings import Recording
from tunedex.tuner.replay import Landscape, replay_sampler
from tunedex.tuner.search import guesses
from tunedex.tuner.search.guesses import GuessedStudy
from tunedex.tuner.search.samplers import Sampler, sampler_named


@pytest.fixture
def landscape() -> Landscape:
    """A bowl of 96 of 8 x 8 x 2 configs, one in eight of which fails."""
    configs, times = [], []
    for x, y, path in itertools.product(range(8), range(8), ("plain", "vector")):
        if (x + y) % 4 == 3:
            continue
        configs.append({"x": 2**x, "y": y, "path": path})
        times.append(None if x * y % 8 == 7 else 1.0 + abs(x - 5) + abs(y - 3) + (path == "plain"))
    recording = Recording("bowl", "bowl", "a GPU", ("x", "y", "path"), tuple(configs), tuple(times))
    return Landscape(recording)


def trials(study: GuessedStudy) -> list[Any]:
    return list(study._study.trials)


@pytest.mark.parametrize("name", ["tpe", "tpe-univariate", "qmc"])
def test_what_is_told_is_in_the_study(landscape: Landscape, name: str) -> None:
    study = GuessedStudy(name, landscape.points, seed=0)
    asked = []
    for _ in range(20):
        point = study.ask()
        assert point is not None
        asked.append(point)
        study.tell(point, landscape.value(point))
    assert len(set(asked)) == 20
    places = {tuple(codes): place for place, codes in enumerate(landscape.points.codes.tolist())}
    found = []
    for trial in trials(study):
        point = places.get(tuple(trial.params[p.name] for p in landscape.points.parameters))
        if point is not None:
            found.append(point)
            if (value := landscape.value(point)) is not None:
                assert trial.value == value
        elif name == "qmc":
            assert trial.state is TrialState.COMPLETE
        else:
            assert (trial.state, trial.constraints) == (TrialState.PRUNED, {"feasible": 1.0})
    assert list(dict.fromkeys(found)) == asked
    assert len(found) < len(trials(study))  # some guesses are no points


def test_a_failure_counts_as_slower_than_everything_that_ran(landscape: Landscape) -> None:
    study = GuessedStudy("tpe", landscape.points, seed=0)
    for point, value in [(0, 1.0), (1, 3.0), (2, None)]:
        study.add(point, value)
    assert trials(study)[2].value > 3.0
    assert study._study.best_trial.number == 0


def test_after_twenty_wasted_guesses_in_a_row_a_random_point_is_taken(
    landscape: Landscape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that has one idea proposes it for ever."""

    class Stuck(BaseSampler):
        def infer_relative_search_space(self, *_: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, *_: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> int:
            return 0

    monkeypatch.setitem(guesses.OPTUNA_SAMPLERS, "stuck", lambda seed: Stuck())  # type: ignore[arg-type]
    study = GuessedStudy("stuck", landscape.points, seed=0)
    first = study.ask()
    assert first == 0
    second = study.ask()  # while the first is under way
    assert second not in (None, 0)
    study.tell(0, 1.0)
    assert [trial.state for trial in trials(study)] == [TrialState.COMPLETE] + [TrialState.FAIL] * 20
    third = study.ask()
    assert third not in (None, 0, second)
    assert [trial.value for trial in trials(study)[21:]] == [1.0] * 20
    rest = list(iter(study.ask, None))
    assert sorted([first, second, third, *rest]) == list(range(len(landscape)))  # type: ignore[list-item]


def test_that_a_point_lacks_a_parameter_is_a_value_too() -> None:
    configs = ({"path": "library"}, {"path": "own", "block": 1}, {"path": "own", "block": 2})
    lacking = Landscape(Recording("two ways", "k", "a GPU", ("path", "block"), configs, (3.0, 2.0, 1.0)))
    for name in ("tpe", "random"):
        assert sorted(replay_sampler(Sampler(name), lacking, trials=10, seed=0).trace) == [0, 1, 2]


def test_tpe_finds_the_bowls_bottom_sooner_than_random(landscape: Landscape) -> None:
    def mean_loss(name: str) -> float:
        replays = [replay_sampler(Sampler(name), landscape, trials=25, seed=seed) for seed in range(6)]
        return sum(landscape.losses(each.trace, 25)[-1] for each in replays) / len(replays)

    assert mean_loss("tpe") < mean_loss("random")


def test_equal_seeds_give_equal_searches(landscape: Landscape) -> None:
    traces = [replay_sampler(Sampler.TPE, landscape, trials=20, seed=seed).trace for seed in (0, 0, 1)]
    assert traces[0] == traces[1] != traces[2]


@pytest.mark.parametrize("sampler", [Sampler.GP, Sampler.CMAES])
def test_the_slow_ones_search_too(landscape: Landscape, sampler: Sampler) -> None:
    assert len(replay_sampler(sampler, landscape, trials=12, seed=0).trace) == 12


def test_a_sampler_whose_package_is_absent_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampler_named("cmaes") is Sampler.CMAES
    monkeypatch.setattr("tunedex.tuner.search.samplers.find_spec", lambda name: None)
    with pytest.raises(CannotRun, match="--sampler cmaes needs the package cmaes, which is not installed"):
        sampler_named("cmaes")


def test_a_sampler_nobody_has_is_refused() -> None:
    with pytest.raises(BadInput, match="--sampler best is unknown; known are auto, random, "):
        sampler_named("best")
