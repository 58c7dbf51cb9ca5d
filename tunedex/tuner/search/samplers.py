"""Samplers by name, for a search and for a replay."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from importlib.util import find_spec

from tunedex.core.errors import BadInput, CannotRun
from tunedex.tuner.search.guesses import OPTUNA_SAMPLERS, GuessedStudy
from tunedex.tuner.search.hints import Hint
from tunedex.tuner.search.points import Points
from tunedex.tuner.search.study import PointStudy, Shuffled, Study
from tunedex.tuner.search.surrogate import SurrogateSampler


class Sampler(StrEnum):
    """How configs are proposed: ours, in a random order, and by Optuna's own samplers."""

    AUTO = "auto"
    RANDOM = "random"
    BRUTE_FORCE = "brute-force"
    TPE = "tpe"
    TPE_UNIVARIATE = "tpe-univariate"
    GP = "gp"
    CMAES = "cmaes"
    QMC = "qmc"


def sampler_named(name: str) -> Sampler:
    """The sampler of that name.

    Raises:
        BadInput: no sampler is called so.
        CannotRun: it needs a package that is not installed.
    """
    if name not in list(Sampler):
        raise BadInput(f"--sampler {name} is unknown; known are {', '.join(Sampler)}", field="sampler")
    if name == Sampler.CMAES and find_spec("cmaes") is None:
        raise CannotRun("--sampler cmaes needs the package cmaes, which is not installed")
    return Sampler(name)


def study_of(sampler: Sampler, points: Points, *, seed: int, hints: Sequence[Hint] = ()) -> Study:
    """A study of ``points`` that asks ``sampler``; `auto` alone takes ``hints``."""
    if sampler in OPTUNA_SAMPLERS:
        return GuessedStudy(sampler, points, seed)
    if sampler is Sampler.AUTO:
        return PointStudy(SurrogateSampler(points, seed, hints=hints))
    return Shuffled(len(points), seed)
