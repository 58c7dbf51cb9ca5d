"""`tuner sweep`: find the best configs on this hardware."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunedex.cli import tuning
from tunedex.cli.output import DbOption, JsonOption, given_file, microseconds, print_table, say, whole
from tunedex.core.channel import Channel
from tunedex.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tunedex.tuner.devices import DetectedDevice
    from tunedex.tuner.report import Report, Result
    from tunedex.tuner.spent import Spent

_MOST = 1_000_000


def register(app: typer.Typer) -> None:
    app.command("sweep")(sweep)


def sweep(
    device: Annotated[str, typer.Option(help="auto, all, cuda, cuda:N or cpu.")] = "auto",
    kernels: Annotated[str | None, typer.Option(help="Kernels to sweep, separated by commas; default all.")] = None,
    preset: Annotated[
        str, typer.Option(help="Problems and effort: quick (96 trials a problem, 160 s a device).")
    ] = "quick",
    problem: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KERNEL:NAME=VALUE,...",
            help="A problem instead of the preset's; may be repeated. batch=auto searches those of the batches "
            "1, 2, 4, 8 and 16 that fit an eighth of the memory.",
        ),
    ] = None,
    problems: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=given_file,
            help="A problem file of `tuner profile`: its problems instead of the preset's.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=whole,
            help="Configs to try a problem, default and library included; of batch=auto as many a batch.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Longest time a device, as 90s, 5m or 1h; default the preset's, none for problems named.",
        ),
    ] = None,
    trial_timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Longest that a config may compile, and may run; default 90s and 60s."),
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="auto, random, brute-force; or Optuna's tpe, tpe-univariate, gp, cmaes, qmc.")
    ] = "auto",
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Start from nothing that was measured of other shapes or elsewhere."),
    ] = False,
    all_trials: Annotated[
        bool, typer.Option("--all-trials", help="Go on where nothing faster is expected, until the trials are used up.")
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", parser=whole, help="Seed of the search.")] = 0,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> int:
    """Find the fastest correct config of each problem on this hardware and publish it.

    A sweep that ends early keeps what it measured; the same command goes on from there and repeats no config.
    """
    begun = time.monotonic()  # loading the tuner counts as well
    effort_trials, effort_budget = _bounded("trials", trials, 1), tuning.seconds(budget, "budget")
    longest_trial = tuning.seconds(trial_timeout, "trial-timeout")
    _bounded("seed", seed, 0)
    names = tuning.names(kernels)

    from tunedex.db import open_store
    from tunedex.tuner.devices import detect, environment_of
    from tunedex.tuner.problem_file import read_problems
    from tunedex.tuner.report import Effort
    from tunedex.tuner.search.samplers import Sampler, sampler_named
    from tunedex.tuner.settings import SETTINGS
    from tunedex.tuner.sweep import DeviceSweep
    from tunedex.tuner.tasks import preset_named, tasks_for

    chosen, by = preset_named(preset), sampler_named(sampler)
    given = problem or []
    file = read_problems(problems) if problems else None
    default_trials = None if by is Sampler.BRUTE_FORCE else chosen.trials
    effort = Effort(
        trials=effort_trials or default_trials,
        budget_s=effort_budget if effort_budget is not None else (None if given or file else chosen.budget_s),
        sampler=by,
        seed=seed,
        cold=cold,
        stops=not all_trials,
    )
    seen = file.problems if file else ()
    alike: dict[str, list[DetectedDevice]] = {}
    for found in detect(device):
        alike.setdefault(found.device.key, []).append(found)
    left_out: list[str] = []
    tell = left_out.append
    plans = [(group, tasks_for(group[0].device, names, given, seen, tell=tell)) for group in alike.values()]
    for line in dict.fromkeys(left_out):
        say(line)
    command = tuning.command_line()
    options = {"command": command, "preset": preset, "trials": effort.trials, "budget_s": effort.budget_s}
    timeouts = SETTINGS.timeouts.for_trials(longest_trial) if longest_trial else SETTINGS.timeouts
    options |= {"sampler": sampler, "seed": seed, "cold": cold, "all_trials": all_trials}
    reports: list[Report] = []
    published: list[str] = []
    with open_store(db) as store:
        for (first, *others), tasks in plans:
            for found in (first, *others):
                tuning.announce(found)
            environment = environment_of(first.device)
            if file and file.device_key not in ("", first.device.key):
                say(f"{problems} was made on {file.device_key}")
            before = store.current_revision(first.device.key, Channel.CANDIDATE)
            with tuning.watching() as watch:
                swept = DeviceSweep(store, first, environment, effort, watch, timeouts, others=others, begun=begun)
                reports.append(swept.run(tasks, options))
            published.append(tuning.offered(store, first.device.key, reports[-1].revision, before))
            begun = time.monotonic()
            if reports[-1].interrupted:
                break
    _print(reports, published, as_json, command)
    return _exit_code(reports) or (1 if left_out else 0)


def _print(reports: list[Report], published: list[str], as_json: bool, command: str) -> None:
    if as_json:
        tuning.print_documents([report.to_dict() for report in reports], command, "sweeps")
    for report, where in zip(reports, published, strict=True):
        if not report.results:
            continue
        if not as_json:
            print_table(
                ["<kernel", "<problem", "default", "library", "best", "speed-up", "roofline", "<best config"],
                [_row(result) for result in report.results],
            )
            for line in _notes(report.results):
                say(line)
            say(_spent(report.spent))
        say(where)


def _notes(results: Sequence[Result]) -> Iterator[str]:
    """What has to be known to read the table, where it applies."""
    yield from dict.fromkeys(line for result in results if result.searched for line in result.searched.lines)
    if any(result.problem.batch > 1 for result in results):
        yield "times are of one call with all items of its batch"
    if any(result.best and (result.best.roofline_share or 0) > 1 for result in results):
        yield "a roofline share above 100% is of data that a cache held, or of a ceiling measured beside other work"


def _spent(spent: Spent) -> str:
    """Where the time went, in one line."""
    parts = {
        "measuring": spent.measure_s,
        "finals": spent.final_s,
        "starting": spent.start_s + spent.open_s,
        "waiting for compilers": spent.compile_wait_s,
        "search and database": spent.search_s + spent.store_s,
        "other": spent.other_s,
    }
    told = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts.items() if seconds >= 0.5)
    return f"{spent.wall_s:.0f} s{': ' + told if told else ''}"


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
    for report in reports:
        for line in report.lost:
            say(f"given up: {line}")
        if report.left:
            say(f"{report.left} tasks were not reached; the same command goes on with them")
    for result in (result for report in reports for result in report.results if result.contended):
        say(f"{result.problem}: {result.disturbed_by} disturbed its final; the same command takes it again")
    searched = [result.searched for report in reports for result in report.results if result.searched]
    short = {f"{each.task}: {each.shortfall}" for each in searched if each.shortfall}
    for line in sorted(short):
        say(line)
    unanswered = [result for report in reports for result in report.results if not result.best]
    for result in unanswered:
        failures = ", ".join(f"{count} {kind}" for kind, count in result.failures.items())
        say(f"{result.problem}: no config found ({result.fault or failures or 'nothing could be tried'})")
    return 0 if all(report.complete for report in reports) else 1


def _bounded(name: str, value: int | None, least: int) -> int | None:
    if value is not None and not least <= value <= _MOST:
        raise BadInput(f"--{name} {value} is not from {least} to {_MOST}", field=name)
    return value
