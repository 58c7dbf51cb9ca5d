"""The final of one problem: who takes part, and their times of one interleaved run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tunedex.core.config import Config
from tunedex.core.measurement import Failure, FailureKind, Measurement
from tunedex.core.problem import Problem
from tunedex.db.records import Stage, Trial
from tunedex.tuner.bench import FinalTime
from tunedex.tuner.measurer import STICKY, Measurer
from tunedex.tuner.nvml import Sample
from tunedex.tuner.settings import SETTINGS
from tunedex.tuner.space import Space


def finalists(
    searched: Mapping[Config, Measurement], space: Space, incumbent: Config | None, *, bears_error: bool
) -> list[Config]:
    """Who takes part: the leaders of the search, the default, the library call, and what is served so far."""
    settings = SETTINGS.finals
    ranked = sorted(searched, key=lambda config: (searched[config].time_us, config.key))
    lossless = [config for config in ranked if searched[config].lossless]
    lossy = [config for config in ranked if not searched[config].lossless]
    own = [config for config in lossless if not config.library]
    # Other work on the machine lifts a median, less so a low quantile: what it held back gets its chance here.
    quiet = sorted(own, key=lambda config: (searched[config].p20_us, config.key))
    wanted = [
        *lossless[: settings.leaders],
        *own[:1],
        *quiet[: settings.quiet_leaders],
        *lossy[: settings.leaders if bears_error else settings.lossy_leaders],
        *([space.default] if space.default else []),
        *space.library,
        *([incumbent] if incumbent else []),
    ]
    return [config for config in dict.fromkeys(wanted) if config in searched]


def take_final(
    measurer: Measurer, problem: Problem, configs: Sequence[Config], searched: Mapping[Config, Measurement]
) -> list[Trial]:
    """The trials of one interleaved final of ``configs``, to be stored whole; none where it cannot be had.

    A config that fails in it is left out and the others are timed again; one whose failure cannot be laid on any
    config leaves things as they were.
    """
    failed: dict[Config, Failure] = {}
    times: list[FinalTime | Failure] = []
    state = Sample()
    while configs and not times:
        called = measurer.final(problem, configs)
        if called is None:
            failed |= _culprits(measurer, problem, configs)
            rest = [config for config in configs if config not in failed]
            if not rest or rest == configs or problem.key in measurer.faults:
                return []
            configs = rest
            continue
        times, state = called
        bad = {c: t for c, t in zip(configs, times, strict=True) if isinstance(t, Failure)}
        if any(failure.kind in STICKY for failure in bad.values()):
            measurer.distrust()
            # Only the first may be at fault: what follows it ran in a process that it had broken.
            first = next(config for config in configs if config in bad)
            failed[first] = bad[first]
            configs = [config for config in configs if config != first]
            times = []
    outcomes: dict[Config, tuple[Measurement | Failure, float | None]] = {c: (f, None) for c, f in failed.items()}
    for config, timed in zip(configs, times, strict=True):
        outcomes[config] = _timed(searched[config], timed)
    if not any(isinstance(outcome, Measurement) for outcome, _ in outcomes.values()):
        return []
    return [
        measurer.trial(problem, config, outcome, Stage.FINAL, state, warm_us)
        for config, (outcome, warm_us) in outcomes.items()
    ]


def _culprits(measurer: Measurer, problem: Problem, configs: Sequence[Config]) -> dict[Config, Failure]:
    """Which of ``configs`` the measuring process does not survive when each is timed alone."""
    failure = Failure(FailureKind.CRASH, "ends the measuring process in the final")
    return {config: failure for config in configs if measurer.final(problem, [config]) is None}


def _timed(found: Measurement, timed: FinalTime | Failure) -> tuple[Measurement | Failure, float | None]:
    """What a final says of a config whose search gave ``found``, and its time with a warm cache."""
    if isinstance(timed, Failure):
        return timed, None
    outcome = replace(
        found,
        time_us=timed.time_us,
        p20_us=timed.p20_us,
        p80_us=timed.p80_us,
        samples=timed.samples,
        energy_j=timed.energy_j,
    )
    return outcome, timed.warm_us
