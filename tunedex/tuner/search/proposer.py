"""Samplers by name, for a search and for a replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from tunedex.interop.recordings import Recording
from tunedex.tuner.search.listed import ListedSampler
from tunedex.tuner.search.points import Points
from tunedex.tuner.search.study import PointStudy
from tunedex.tuner.search.surrogate import SurrogateSampler
from tunedex.tuner.search.tpe import ListedTPE
from tunedex.tuner.settings import SETTINGS


class Sampler(StrEnum):
    """How configs are proposed."""

    AUTO = "auto"
    TPE = "tpe"
    RANDOM = "random"
    BRUTE_FORCE = "brute-force"


def learner(sampler: Sampler, points: Points, *, seed: int, trials: int) -> ListedSampler:
    """The sampler of that name, one that learns, for a search of ``trials`` trials."""
    if sampler is Sampler.TPE:
        settings = SETTINGS.searching
        startup = max(settings.least_startup, math.ceil(settings.startup_share * trials))
        return ListedTPE(points, startup, seed)
    return SurrogateSampler(points, seed)


def proposer(sampler: Sampler, points: Points, *, seed: int, trials: int, warm: Sequence[Recording] = ()) -> PointStudy:
    """The same as a replay asks it; `auto` takes the recordings ``warm`` for hints."""
    if sampler is Sampler.AUTO:
        return PointStudy(SurrogateSampler(points, seed, hints=[hint(points, recording) for recording in warm]))
    return PointStudy(learner(sampler, points, seed=seed, trials=trials))


def hint(points: Points, recording: Recording) -> dict[int, float | None]:
    """What ``recording`` says of ``points``: the logarithm of each time in milliseconds, None for a failure."""
    times = {
        frozenset(config.items()): None if time_ms is None else math.log(time_ms)
        for config, time_ms in zip(recording.configs, recording.times_ms, strict=True)
    }
    keys = (frozenset(points.values(point).items()) for point in range(len(points)))
    return {point: times[key] for point, key in enumerate(keys) if key in times}
