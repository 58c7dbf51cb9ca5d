"""`tuner sweep`: find the best configs on this hardware."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunedex.cli import tuning
from tunedex.cli.output import DbOption, JsonOption, microseconds, print_table, say
from tunedex.core.errors import BadInput

if TYPE_CHECKING:
    from tunedex.tuner.report import Report, Result

_MOST = 1_000_000


def register(app: typer.Typer) -> None:
    app.command("sweep")(sweep)


def sweep(
    device: Annotated[str, typer.Option(help="auto, all, cuda, cuda:N or cpu.")] = "auto",
    kernels: Annotated[str | None, typer.Option(help="Kernels to sweep, separated by commas; default all.")] = None,
    preset: Annotated[str, typer.Option(help="Problems and effort: quick.")] = "quick",
    problem: Annotated[
        list[str] | None,
        typer.Option(metavar="KERNEL:NAME=VALUE,...", help="A problem instead of the preset's; may be repeated."),
    ] = None,
    problems: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A problem file of `tuner profile`: its problems instead of the preset's."),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Configs to try a problem; default the preset's.")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Longest time a device, as 90s, 5m or 1h; default the preset's.")
    ] = None,
    trial_timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Longest that a config may compile, and may run; default 90s and 60s."),
    ] = None,
    sampler: Annotated[str, typer.Option(help="auto, tpe, random or brute-force.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find the fastest correct config of each problem on this hardware and publish it.

    A sweep that ends early keeps what it measured; the same command goes on from there and repeats no config.
    """
    effort_trials, effort_budget = _bounded("trials", trials, 1), tuning.seconds(budget, "budget")
    longest_trial = tuning.seconds(trial_timeout, "trial-timeout")
    _bounded("seed", seed, 0)
    names = tuning.names(kernels)

    from tunedex.db import open_store
    from tunedex.tuner.devices import detect, environment_of
    from tunedex.tuner.problem_file import read_problems
    from tunedex.tuner.report import Effort
    from tunedex.tuner.search import Sampler
    from tunedex.tuner.settings import SETTINGS
    from tunedex.tuner.sweep import DeviceSweep
    from tunedex.tuner.tasks import preset_named, tasks_for

    if sampler not in list(Sampler):
        raise BadInput(f"sampler {sampler!r} is unknown; known are {', '.join(Sampler)}", field="sampler")
    chosen = preset_named(preset)
    given = problem or []
    file = read_problems(problems) if problems else None
    default_trials = None if sampler == Sampler.BRUTE_FORCE else chosen.trials
    effort = Effort(
        trials=effort_trials or default_trials,
        budget_s=effort_budget if effort_budget is not None else (None if given or file else chosen.budget_s),
        sampler=Sampler(sampler),
        seed=seed,
    )
    seen = file.problems if file else ()
    plans = [(found, tasks_for(found.device, names, given, seen)) for found in detect(device)]
    command = tuning.command_line()
    options = {"command": command, "preset": preset, "trials": effort.trials, "budget_s": effort.budget_s}
    timeouts = SETTINGS.timeouts.for_trials(longest_trial) if longest_trial else SETTINGS.timeouts
    options |= {"sampler": sampler, "seed": seed}
    reports: list[Report] = []
    tuning.end_on_sigterm()
    with open_store(db) as store:
        for found, tasks in plans:
            tuning.announce(found)
            if file and file.device_key not in ("", found.device.key):
                say(f"{problems} was made on {file.device_key}")
            with tuning.watching() as watch:
                swept = DeviceSweep(store, found, environment_of(found.device), effort, watch, timeouts)
                reports.append(swept.run(tasks, options))
            if reports[-1].interrupted:
                break
    _print(reports, as_json, command)
    return _exit_code(reports)


def _print(reports: list[Report], as_json: bool, command: str) -> None:
    if as_json:
        tuning.print_documents([report.to_dict() for report in reports], command, "sweeps")
        return
    for report in reports:
        if not report.results:
            continue
        print_table(
            ["<kernel", "<problem", "default", "library", "best", "speed-up", "roofline", "<best config"],
            [_row(result) for result in report.results],
        )
        say(f"published up to revision {report.revision}; `tuner serve` answers from it")


def _row(result: Result) -> list[object]:
    best = result.best
    name, _, problem = str(result.problem).partition(":")
    return [
        name,
        problem,
        microseconds(result.default_us),
        microseconds(result.library_us),
        microseconds(best.measurement.time_us if best else None),
        f"{best.speedup:.2f}x" if best and best.speedup else "-",
        f"{best.roofline_share:.0%}" if best and best.roofline_share else "-",
        str(best.config) if best else f"none of {result.trials} trials",
    ]


def _exit_code(reports: list[Report]) -> int:
    if any(report.interrupted for report in reports):
        kept = sum(report.new_trials for report in reports)
        say(f"interrupted: {kept} new trials are kept; the same command goes on from there")
        return 130
    unanswered = [result for report in reports for result in report.results if not result.best]
    for result in unanswered:
        failures = ", ".join(f"{count} {kind}" for kind, count in result.failures.items())
        say(f"{result.problem}: no config found ({result.fault or failures or 'nothing could be tried'})")
    return 1 if unanswered else 0


def _bounded(name: str, value: int | None, least: int) -> int | None:
    if value is not None and not least <= value <= _MOST:
        raise BadInput(f"--{name} {value} is not from {least} to {_MOST}", field=name)
    return value
