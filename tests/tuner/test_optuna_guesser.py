"""Optuna's samplers as guessers: what a study holds after what they are told, and whether they search."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
from optuna.trial import TrialState

from tunedex.core.errors import BadInput, CannotRun
from tunedex.interop.recordings import Recording
from tunedex.tuner.optuna_guesser import OptunaGuesser
from tunedex.tuner.replay import Landscape
from tunedex.tuner.samplers import check_sampler, replay_sampler


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


def study(guesser: OptunaGuesser) -> Any:
    return guesser._study


@pytest.mark.parametrize("name", ["tpe", "tpe-univariate", "qmc"])
def test_what_is_told_is_in_the_study(landscape: Landscape, name: str) -> None:
    guesser = OptunaGuesser(name, landscape.points, seed=0)
    guesses = []
    for _ in range(32):
        guesses.append(guesser.ask())
        if guesses[-1] is None:
            guesser.tell(None, feasible=False)
        else:
            guesser.tell(landscape.value(guesses[-1]))
    assert None in guesses
    for guess, trial in zip(guesses, study(guesser).trials, strict=True):
        if guess is not None:
            values = {p.name: p.values[trial.params[p.name]] for p in landscape.points.parameters}
            assert values == landscape.recording.configs[guess]
            if (value := landscape.value(guess)) is not None:
                assert trial.value == value
        elif name == "qmc":
            assert trial.state is TrialState.COMPLETE
        else:
            assert (trial.state, trial.constraints) == (TrialState.PRUNED, {"feasible": 1.0})


def test_a_failure_counts_as_slower_than_everything_that_ran(landscape: Landscape) -> None:
    guesser = OptunaGuesser("tpe", landscape.points, seed=0)
    for point, value in [(0, 1.0), (1, 3.0), (2, None)]:
        guesser.add(point, value)
    assert study(guesser).trials[2].value > 3.0
    assert study(guesser).best_trial.number == 0


def test_that_a_point_lacks_a_parameter_is_a_value_too() -> None:
    configs = ({"path": "library"}, {"path": "own", "block": 1}, {"path": "own", "block": 2})
    lacking = Landscape(Recording("two ways", "k", "a GPU", ("path", "block"), configs, (3.0, 2.0, 1.0)))
    for name in ("tpe", "random"):
        assert sorted(replay_sampler(name, lacking, trials=10, seed=0).trace) == [0, 1, 2]


def test_tpe_finds_the_bowls_bottom_sooner_than_random(landscape: Landscape) -> None:
    def mean_loss(name: str) -> float:
        replays = [replay_sampler(name, landscape, trials=25, seed=seed) for seed in range(6)]
        return sum(landscape.losses(each.trace, 25)[-1] for each in replays) / len(replays)

    assert mean_loss("tpe") < mean_loss("random")


def test_equal_seeds_give_equal_searches(landscape: Landscape) -> None:
    traces = [replay_sampler("tpe", landscape, trials=20, seed=seed).trace for seed in (0, 0, 1)]
    assert traces[0] == traces[1] != traces[2]


def test_a_sampler_whose_package_is_absent_names_it(landscape: Landscape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(CannotRun, match="Optuna's sampler cmaes needs cmaes, which is not installed"):
        replay_sampler("cmaes", landscape, trials=5, seed=0)


def test_a_sampler_nobody_has_is_refused() -> None:
    with pytest.raises(BadInput, match="--sampler best is unknown; known are auto, random, "):
        check_sampler("best")
