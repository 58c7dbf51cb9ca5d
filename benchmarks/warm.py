"""How soon is a sweep near the optimum that starts from other shapes? Each tuned problem is searched from the others.

    python benchmarks/warm.py benchmarks/results/cpu/near.trials.json.gz --out benchmarks/results/cpu/warm.json

Takes files that `tuner export trials` writes, best of whole spaces (`tuner sweep --sampler brute-force`). The trials of
a problem are the space that `auto` searches, and what it starts from is chosen among those of the kernel's other
problems as a sweep chooses it from the database; beside it the same search cold. The default is tried first, as in a
sweep, and counts. Loss = the best time so far / the best time of all - 1. Needs no GPU; no kernel runs.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tunedex.cli.output import print_table
from tunedex.core.catalog import builtin_signatures
from tunedex.core.config import Config
from tunedex.core.errors import TunedexError
from tunedex.core.measurement import Measurement
from tunedex.core.signature import Signature
from tunedex.db.records import Tried
from tunedex.interop.trials import TrialSet, read_trial_sets
from tunedex.tuner.devices import detect, environment_of
from tunedex.tuner.search.hints import Hint
from tunedex.tuner.search.points import Points
from tunedex.tuner.search.samplers import Sampler, study_of
from tunedex.tuner.search.sources import nearest

BUDGETS = (2, 4, 8, 16)
SEEDS = 20


def measure(sets: Sequence[TrialSet], seeds: int) -> dict[str, Any]:
    """What searches of each problem of ``sets`` lose: ``{problems, warm, cold, rows}``. Losses are shares of the best
    time by the number of trials, means over ``seeds`` searches."""
    signatures = {signature.kernel: signature for signature in builtin_signatures()}
    rows = []
    for held in sets:
        signature = signatures.get(held.problem.kernel)
        others = [each for each in sets if each is not held and each.problem.kernel == held.problem.kernel]
        if signature is not None and others and any(times(held).values()):
            rows.append(row(signature, held, others, seeds))
    both = {name: means([each[name] for each in rows]) for name in ("warm", "cold")}
    return {"problems": len(rows), **both, "rows": rows}


def row(signature: Signature, held: TrialSet, others: Sequence[TrialSet], seeds: int) -> dict[str, Any]:
    """The losses on ``held``, started from what is nearest of ``others``, and cold."""
    there = {(each.problem.key, each.device.key, each.environment): each for each in others}
    tried = [Tried(each.device.key, each.environment, each.problem, len(each.trials)) for each in others]
    sources = nearest(signature, held.device, held.environment, [held.problem], tried)
    configs = list(times(held))
    place = {config: number for number, config in enumerate(configs)}
    hints = [
        Hint({place[c]: _log(t) for c, t in times(source_set).items() if c in place}, source.weight)
        for source in sources
        for source_set in [there[source.tried.problem.key, source.tried.device, source.tried.environment]]
    ]
    default = signature.default(held.problem, held.device)
    first = [place[default]] if default in place else []
    losses = {name: searched(held, first, each, seeds) for name, each in (("warm", hints), ("cold", []))}
    return {
        "problem": str(held.problem),
        "device": held.device.key,
        "configs": len(configs),
        "sources": len(sources),
        "nearest": sources[0].distance if sources else None,
        **losses,
    }


def searched(held: TrialSet, first: Sequence[int], hints: Sequence[Hint], seeds: int) -> dict[str, float]:
    """The mean loss after so many trials of which ``first`` are given."""
    answers = list(times(held).values())
    points = Points.of([{"implementation": c.implementation, **c.values} for c in times(held)])
    best_us = min(time_us for time_us in answers if time_us is not None)
    found: list[list[float]] = []
    for seed in range(seeds):
        study = study_of(Sampler.AUTO, points, seed=seed, hints=hints)
        trace = list(first)
        for point in first:
            study.add(point, _log(answers[point]))
        while len(trace) < max(BUDGETS) and (point := study.ask()) is not None:
            study.tell(point, _log(answers[point]))
            trace.append(point)
        found.append([loss([answers[point] for point in trace[:budget]], answers, best_us) for budget in BUDGETS])
    return {str(budget): fmean(column) for budget, column in zip(BUDGETS, zip(*found, strict=True), strict=True)}


def loss(tried_us: Sequence[float | None], every_us: Sequence[float | None], best_us: float) -> float:
    """Before anything has run, that of the slowest config."""
    ran = [time_us for time_us in tried_us if time_us is not None]
    return min(ran, default=max(time_us for time_us in every_us if time_us is not None)) / best_us - 1


def times(held: TrialSet) -> Mapping[Config, float | None]:
    """The time of each config in microseconds, None for a failure."""
    outcomes = ((trial.config, trial.outcome) for trial in held.one_a_config())
    return {config: outcome.time_us if isinstance(outcome, Measurement) else None for config, outcome in outcomes}


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    return {str(budget): fmean(each[str(budget)] for each in rows) if rows else None for budget in BUDGETS}


def _log(time_us: float | None) -> float | None:
    return None if time_us is None else math.log(time_us)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="an export of trials (.json, .json.gz)")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, help="where the JSON document goes")
    options = parser.parse_args()
    try:
        found = measure([each for file in options.files for each in read_trial_sets(file)], max(1, options.seeds))
    except TunedexError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    device = detect("cpu")[0].device
    document = {
        "device": device.to_dict(),
        "environment": environment_of(device).to_dict(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "seeds": options.seeds,
        **found,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=2) + "\n")
    columns = ["<problem", "configs", *(f"{name} {budget}" for name in ("warm", "cold") for budget in BUDGETS)]
    lines = [[each["problem"], each["configs"], *_shares(each)] for each in found["rows"]]
    print_table(columns, [*lines, ["all", "", *_shares(found)]])
    return 0 if found["rows"] else 1


def _shares(found: Mapping[str, Any]) -> list[str]:
    losses = [found[name][str(budget)] for name in ("warm", "cold") for budget in BUDGETS]
    return ["-" if each is None else f"{100 * each:.1f} %" for each in losses]


if __name__ == "__main__":
    raise SystemExit(main())
