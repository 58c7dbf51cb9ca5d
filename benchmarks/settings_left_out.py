"""How good is `auto` on a space that its settings were not chosen on? Each recording is left out once.

    python benchmarks/settings_left_out.py --recordings ../shared/data/recordings

Every combination of some first points and clips (`Surrogate.first_points`, `Surrogate.clip`) is replayed on every
recording. Of each recording the loss is told that the combination has there which is best over all the others; beside
it that of the settings in force, and of the combination that is best on the recording itself. Needs no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tunedex.cli.output import print_table
from tunedex.interop.recordings import read_recordings
from tunedex.tuner.devices import detect, environment_of
from tunedex.tuner.replay import Landscape, replay
from tunedex.tuner.search.study import PointStudy
from tunedex.tuner.search.surrogate import SurrogateSampler
from tunedex.tuner.settings import SETTINGS

HERE = Path(__file__).resolve().parent
CHOICES = tuple(itertools.product((6, 8, 12), (0.7, 1.0, 1.5)))
BUDGETS = (50, 100, 200)
SEEDS = 6

#: The mean loss over `BUDGETS`' searches: of each choice, by budget.
Losses = Mapping[tuple[int, float], Sequence[float]]


def replayed(path: Path, seeds: int) -> tuple[str, Losses]:
    (recording,) = read_recordings(path)
    landscape = Landscape(recording)
    found = {}
    for first_points, clip in CHOICES:
        settings = replace(SETTINGS.surrogate, first_points=first_points, clip=clip)
        losses = []
        for seed in range(seeds):
            study = PointStudy(SurrogateSampler(landscape.points, seed, settings))
            losses.append(landscape.losses(replay(study, landscape, max(BUDGETS)).trace, max(BUDGETS)))
        found[first_points, clip] = [fmean(float(each[budget - 1]) for each in losses) for budget in BUDGETS]
    return recording.name, found


def left_out(losses: Mapping[str, Losses]) -> list[dict[str, Any]]:
    """A row a recording: what was chosen on the others, and its loss here."""

    def best(names: Sequence[str]) -> tuple[int, float]:
        return min(CHOICES, key=lambda choice: fmean(fmean(losses[name][choice]) for name in names))

    rows = []
    for name, here in losses.items():
        chosen = best([other for other in losses if other != name])
        in_force = (SETTINGS.surrogate.first_points, SETTINGS.surrogate.clip)
        rows.append(
            {
                "recording": name,
                "chosen": {"first_points": chosen[0], "clip": chosen[1]},
                **{part: by_budget(here[choice]) for part, choice in (("left_out", chosen), ("in_force", in_force))},
                "best_here": by_budget(here[best([name])]),
            }
        )
    return rows


def by_budget(losses: Sequence[float]) -> dict[str, float]:
    return {str(budget): loss for budget, loss in zip(BUDGETS, losses, strict=True)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=HERE.parents[1] / "shared" / "data" / "recordings")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "settings_left_out.json")
    options = parser.parse_args()
    os.nice(10)
    paths = sorted([*options.recordings.glob("*.json"), *options.recordings.glob("*.json.gz")])
    if len(paths) < 2:
        parser.error(f"there are no two recordings in {options.recordings}")
    with Pool() as pool:
        rows = left_out(dict(pool.starmap(replayed, [(path, options.seeds) for path in paths], chunksize=1)))
    device = detect("cpu")[0].device
    parts = ("left_out", "in_force", "best_here")
    document = {
        "device": device.to_dict(),
        "environment": environment_of(device).to_dict(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "seeds": options.seeds,
        "choices": [{"first_points": first_points, "clip": clip} for first_points, clip in CHOICES],
        "mean": {part: by_budget([fmean(row[part][str(b)] for row in rows) for b in BUDGETS]) for part in parts},
        "recordings": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    lines = [[row["recording"], *shown(row, parts)] for row in rows]
    columns = ["<recording", *(f"{part} {budget}" for part in parts for budget in BUDGETS)]
    print_table(columns, [*lines, ["all", *shown(document["mean"], parts)]])
    return 0


def shown(row: Mapping[str, Any], parts: Sequence[str]) -> list[str]:
    return [f"{100 * row[part][str(budget)]:.1f} %" for part in parts for budget in BUDGETS]


if __name__ == "__main__":
    raise SystemExit(main())
