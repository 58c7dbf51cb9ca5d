"""`tuner replay`: how close to the optimum a search comes in how many trials, on recorded spaces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from tunedex.cli import tuning
from tunedex.cli.output import JsonOption, print_json, print_table, say, whole
from tunedex.core.errors import BadInput

if TYPE_CHECKING:
    from tunedex.interop.recordings import Recording
    from tunedex.tuner.replay import Result


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("replay")(replay_recordings)


def replay_recordings(
    recordings: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDING...", help="Kernel Tuner caches or exports of trials, plain or gzip."),
    ],
    sampler: Annotated[
        str, typer.Option(help="auto, random, brute-force; or Optuna's tpe, tpe-univariate, gp, cmaes, qmc.")
    ] = "auto",
    trials: Annotated[
        int | None, typer.Option(metavar="N", parser=whole, help="Configs to try; default 200.", show_default=False)
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="K", parser=whole, help="Searches to average over, seeds 0 to K-1; default 20."),
    ] = None,
    warm: Annotated[
        list[Path] | None,
        typer.Option(metavar="RECORDING", help="What the search knows before it starts; may be given several times."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a search on recorded spaces and print how much slower than the optimum its best config is after 10, 20,
    50, 100 and 200 trials.

    It needs no device and reads no database.
    """
    from tunedex.tuner.replay import Landscape, Result, replay_sampler
    from tunedex.tuner.search.samplers import sampler_named
    from tunedex.tuner.settings import SETTINGS

    chosen = sampler_named(sampler)
    if warm and sampler != "auto":
        raise BadInput(f"--warm is for the sampler auto; {sampler} learns from its own trials alone", field="warm")
    trials = _positive("trials", SETTINGS.replaying.trials if trials is None else trials)
    seeds = _positive("seeds", SETTINGS.replaying.seeds if seeds is None else seeds)
    known = _read(warm or [])
    results: dict[str, Result] = {}
    for recording in _read(recordings):
        landscape = Landscape(recording)
        replays = [replay_sampler(chosen, landscape, trials=trials, seed=seed, warm=known) for seed in range(seeds)]
        results[recording.name] = Result.of(landscape, replays, trials)
        say(f"{recording.name}: {seeds} searches of {trials} trials")
    if as_json:
        print_json(
            {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": tuning.command_line(),
                "sampler": sampler,
                "trials": trials,
                "batch": SETTINGS.replaying.batch,
                "warm": [recording.name for recording in known],
                "recordings": {name: result.to_dict() for name, result in results.items()},
            }
        )
        return
    budgets = next(iter(results.values())).budgets()
    print_table(
        ["<recording", "configs", "optimum", *(f"loss at {budget}" for budget in budgets), "trials to 5 %"],
        [_row(name, result) for name, result in results.items()],
    )


def _read(paths: Sequence[Path]) -> list[Recording]:
    """The recordings in all files, each once; those of one name are called by their path.

    Raises:
        BadInput: a file cannot be read, or holds no recording.
    """
    from tunedex.interop.recordings import read_recordings

    found: dict[str, Recording] = {}
    for path in dict.fromkeys(paths):
        for recording in read_recordings(path):
            name = recording.name if recording.name not in found else f"{path.parent}/{recording.name}"
            found[name] = replace(recording, name=name)
    return list(found.values())


def _positive(option: str, count: int) -> int:
    if count < 1:
        raise BadInput(f"--{option} {count} is not at least 1", field=option)
    return count


def _row(name: str, result: Result) -> list[object]:
    near = median(result.trials_to_near)
    losses = [f"{100 * result.loss(budget):.1f} ± {100 * result.spread(budget):.1f} %" for budget in result.budgets()]
    optimum = f"{result.landscape.optimum_ms:.5g} ms"
    return [name, len(result.landscape), optimum, *losses, f"{near:g}" if math.isfinite(near) else "-"]
