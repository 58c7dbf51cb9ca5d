"""`tuner verify`: after an upgrade, re-time what is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tunedex.cli import tuning
from tunedex.cli.output import DbOption, JsonOption, microseconds, print_table, say
from tunedex.core.channel import Channel

if TYPE_CHECKING:
    from tunedex.tuner.recheck import Rechecked, RecheckReport


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("verify")(verify)


def verify(
    device: Annotated[str, typer.Option(help="auto, all, cuda, cuda:N or cpu.")] = "auto",
    kernels: Annotated[str | None, typer.Option(help="Kernels to verify, separated by commas; default all.")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Longest time a device, as 90s, 5m or 1h; default no bound.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what was measured in this environment, with these kernels.")
    ] = False,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> int:
    """After an upgrade of the driver, torch, triton or Tunedex, verify and re-time what is served, and keep or
    replace it.

    The winners and runners-up come first. Run again, it goes on with the problems that are left.
    """
    budget_s, names = tuning.seconds(budget, "budget"), tuning.names(kernels)

    from tunedex.db import open_store
    from tunedex.tuner.devices import detect, environment_of
    from tunedex.tuner.recheck import Recheck

    command = tuning.command_line()
    reports: list[RecheckReport] = []
    published: list[str] = []
    with open_store(db, create=False) as store:
        for found in detect(device):
            tuning.announce(found)
            before = store.current_revision(found.device.key, Channel.CANDIDATE)
            with tuning.watching() as watch:
                recheck = Recheck(store, found, environment_of(found.device), budget_s, watch)
                options = {"command": command, "budget_s": budget_s}
                reports.append(recheck.run(names, options, everything=everything))
            _tell(reports[-1])
            published.append(tuning.offered(store, found.device.key, reports[-1].revision, before))
            if reports[-1].interrupted:
                break
    _print(reports, published, as_json, command)
    if any(report.interrupted for report in reports):
        return 130
    return 0 if all(report.complete for report in reports) else 1


def _tell(report: RecheckReport) -> None:
    """What is worth a line on standard error."""
    if not report.results and not report.left:
        where = f"published for {report.detected.device.key}"
        say(
            f"nothing to verify: {_problems(report.current)} {where}, measured in this environment with these kernels"
            if report.current
            else f"nothing to verify: nothing is {where}"
        )
    for result in report.results:
        if result.disturbed_by:
            say(f"{result.problem}: {result.disturbed_by} disturbed its final; the same command takes it again")
    if report.left:
        how = "interrupted" if report.interrupted else "the budget is spent"
        say(f"{how}: {_problems(report.left)} left; the same command goes on with them")


def _problems(count: int) -> str:
    return f"{count} problem{'s' if count != 1 else ''}"


def _print(reports: list[RecheckReport], published: list[str], as_json: bool, command: str) -> None:
    if as_json:
        tuning.print_documents([report.to_dict() for report in reports], command, "devices")
    for report, where in zip(reports, published, strict=True):
        if not report.results:
            continue
        if not as_json:
            print_table(
                ["<kernel", "<problem", "<outcome", "before", "now", "<config now", "<detail"],
                [_row(result) for result in report.results],
            )
        say(where)


def _row(result: Rechecked) -> list[object]:
    name, _, problem = str(result.problem).partition(":")
    new = result.new
    changed = new is not None and new.config != result.old.config
    return [
        name,
        problem,
        result.outcome.value,
        microseconds(result.old.measurement.time_us),
        microseconds(new.measurement.time_us if new else None),
        str(new.config) if new else "-",
        "; ".join(filter(None, [result.detail, f"before {result.old.config}" if changed else ""])),
    ]
