"""The final of a problem: who is in it, and how it is held.

It is interleaved, in a process that searched nothing, and stored whole or not at all. A config that fails in it is
left out and the others are timed again. One that is disturbed, by other work on the device or by clocks that vary, is
repeated; where it stays disturbed, its trials say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import median_low

from tunedex.core.config import Config
from tunedex.core.measurement import Failure, FailureKind, Measurement
from tunedex.tuner.bench import FinalTime
from tunedex.tuner.failures import STICKY
from tunedex.tuner.history import Run
from tunedex.tuner.nvml import Sample, unsteady
from tunedex.tuner.settings import SETTINGS, Finals
from tunedex.tuner.worker import FinalTimes

#: What times configs in a final; None where the process fails, by whose fault it does not say.
Call = Callable[[Sequence[Config]], FinalTimes | None]


@dataclass(frozen=True)
class Held:
    """A final that was held: what each config came to, with its time at a warm cache in microseconds; the device's
    state beside it, ``contended`` where it stayed disturbed; and what disturbed it, empty where nothing did."""

    outcomes: Mapping[Config, tuple[Measurement | Failure, float | None]]
    state: Sample
    disturbed_by: str = ""


def finalists(
    measured: Mapping[Config, Measurement],
    runs: Mapping[Config, Run],
    *,
    known: Sequence[Config],
    bears_error: bool,
    compiled: bool = False,
    settings: Finals = SETTINGS.finals,
) -> list[Config]:
    """Who is in the final of a problem, of those that searching ``measured``.

    Args:
        measured: the times, which say who of one run is how close to the best of that run.
        runs: the run that each time is of.
        known: configs that are in it in any case: the default, the library's, the incumbent.
        bears_error: whether the lossy configs are as good as the others.
        compiled: whether each is compiled again in the final's process.
    """
    most = settings.most_leaders_compiled if compiled else settings.most_leaders
    ranked = sorted(measured, key=lambda config: (measured[config].time_us, config.key))
    lossless = [config for config in ranked if measured[config].lossless]
    lossy = [config for config in ranked if not measured[config].lossless]
    own = [config for config in lossless if not config.library]
    # Other work on the machine lifts a median, less so a low quantile: what it held back gets its chance here.
    quiet = sorted(own, key=lambda config: (measured[config].p20_us, config.key))
    wanted = [
        *_leaders(lossless, measured, runs, most, settings),
        *own[:1],
        *quiet[: settings.quiet_leaders],
        *(_leaders(lossy, measured, runs, most, settings) if bears_error else lossy[: settings.lossy_leaders]),
        *known,
    ]
    return [config for config in dict.fromkeys(wanted) if config in measured]


def _leaders(
    ranked: Sequence[Config],
    measured: Mapping[Config, Measurement],
    runs: Mapping[Config, Run],
    most: int,
    settings: Finals,
) -> list[Config]:
    """The first of ``ranked``: a fixed number, and who lies so close to the best of its run that searching cannot tell.
    Of those, at most ``most``, and only as many as the least number of rounds has time for."""
    leaders = list(ranked[: settings.leaders])
    for config in _close(ranked, measured, runs, settings.lead_share):
        if config in leaders:
            continue
        round_us = sum(measured[each].time_us for each in (*leaders, config))
        if len(leaders) >= most or settings.min_rounds * round_us > 1e6 * settings.seconds:
            break
        leaders.append(config)
    return leaders


def _close(
    ranked: Sequence[Config], measured: Mapping[Config, Measurement], runs: Mapping[Config, Run], share: float
) -> list[Config]:
    """Who lies within ``share`` of the best of its run: the best of each run, then the second of each, and so on."""
    by_run: dict[Run, list[Config]] = {}
    for config in ranked:
        group = by_run.setdefault(runs[config], [])
        if not group or measured[config].time_us <= (1 + share) * measured[group[0]].time_us:
            group.append(config)
    return [config for rank in zip_longest(*by_run.values()) for config in rank if config is not None]


def hold(
    configs: Sequence[Config],
    measured: Mapping[Config, Measurement],
    call: Call,
    *,
    again: Callable[[], bool],
    settings: Finals = SETTINGS.finals,
) -> Held | None:
    """Hold the final of ``configs``, which searching ``measured``; None where no config has a time in it.

    ``again`` says whether there is time to repeat one that was disturbed.
    """
    failed: dict[Config, Failure] = {}
    last: tuple[dict[Config, FinalTime | Failure], tuple[Sample, ...]] | None = None
    disturbed_by = ""
    for turn in range(1 + settings.repeats):
        failures = dict(failed)
        times = _timed([config for config in configs if config not in failed], failures, call)
        if times is None:  # what the turn before gave, if there was one, stands as disturbed, and so do its failures
            break
        failed, last = failures, times
        found, states = times
        contended = any(state.contended for state in states)
        disturbed_by = "other work on the device" if contended else unsteady(states, settings.steady_clock_share)
        if not disturbed_by or (turn < settings.repeats and not again()):
            break
    if last is None:
        return None
    found, states = last
    outcomes: dict[Config, tuple[Measurement | Failure, float | None]]
    outcomes = {config: _outcome(measured[config], timed) for config, timed in found.items()}
    outcomes |= {config: (failure, None) for config, failure in failed.items()}
    if not any(isinstance(outcome, Measurement) for outcome, _ in outcomes.values()):
        return None
    return Held(outcomes, _summary(states, disturbed=bool(disturbed_by)), disturbed_by)


def _timed(
    configs: Sequence[Config], failed: dict[Config, Failure], call: Call
) -> tuple[dict[Config, FinalTime | Failure], tuple[Sample, ...]] | None:
    """The times of ``configs``, less those whose failure had the others timed again: these are put into ``failed``.
    None where there is nobody left, or where the failure cannot be laid on any config."""
    while configs:
        called = call(configs)
        if called is None:
            failure = Failure(FailureKind.CRASH, "ends the measuring process in the final")
            culprits = _culprits(configs, call)
            if not culprits:
                return None
        else:
            found = dict(zip(configs, called.times, strict=True))
            # Only the first may be at fault: what follows it ran in a process that it had broken.
            failures = ((config, timed) for config, timed in found.items() if isinstance(timed, Failure))
            first = next(((config, timed) for config, timed in failures if timed.kind in STICKY), None)
            if first is None:
                return found, called.states
            culprits, failure = [first[0]], first[1]
        failed |= dict.fromkeys(culprits, failure)
        configs = [config for config in configs if config not in failed]
    return None


def _culprits(configs: Sequence[Config], call: Call) -> list[Config]:
    """Who of ``configs``, which end the process when they are timed together, ends it alone: found by halves, since
    each call takes the start of a process. Empty where it is nobody's alone."""
    if len(configs) == 1:
        return list(configs)
    halves = configs[: len(configs) // 2], configs[len(configs) // 2 :]
    return [culprit for half in halves if call(half) is None for culprit in _culprits(half, call)]


def _outcome(measured: Measurement, timed: FinalTime | Failure) -> tuple[Measurement | Failure, float | None]:
    """What a final says of a config that searching ``measured``, and its time with a warm cache."""
    if isinstance(timed, Failure):
        return timed, None
    outcome = replace(
        measured,
        time_us=timed.time_us,
        p20_us=timed.p20_us,
        p80_us=timed.p80_us,
        samples=timed.samples,
        energy_j=timed.energy_j,
    )
    return outcome, timed.warm_us


def _summary(states: Sequence[Sample], *, disturbed: bool) -> Sample:
    """One state for a whole final: median clock, highest temperature, all reasons of throttling."""
    clocks = [state.clock_mhz for state in states if state.clock_mhz is not None]
    degrees = [state.temperature_c for state in states if state.temperature_c is not None]
    told = [state.throttle for state in states if state.throttle is not None]
    reasons = dict.fromkeys(reason for text in told for reason in text.split(",") if reason)
    known = any(state.contended is not None for state in states)
    return Sample(
        clock_mhz=median_low(clocks) if clocks else None,
        temperature_c=max(degrees, default=None),
        throttle=",".join(reasons) if told else None,
        contended=True if disturbed else False if known else None,
    )
