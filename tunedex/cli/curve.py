"""`tuner curve`: how fast a sweep came to its best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tunedex.cli.output import DbOption, JsonOption, microseconds, print_json, print_table, say, whole
from tunedex.core.errors import UnknownSweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tunedex.db.records import Curve


def register(app: typer.Typer) -> None:
    app.command("curve")(curve)


def curve(
    sweep: Annotated[
        int | None, typer.Argument(metavar="[SWEEP]", parser=whole, help="A sweep's number; default the newest.")
    ] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the best time so far of each problem of a sweep, against trials and seconds, from the trials stored."""
    from tunedex.db import open_store
    from tunedex.db.documents import curve_document

    with open_store(db, create=False) as store:
        if sweep is None:
            newest = store.list_sweeps(limit=1).items
            if not newest or newest[0].id is None:
                raise UnknownSweep("there is no sweep yet; `tuner sweep` makes one", field="sweep")
            sweep = newest[0].id
        found = store.curves(sweep)
    if as_json:
        print_json({"sweep": sweep, "curves": [curve_document(each) for each in found]})
        return
    if not found:
        say(f"sweep {sweep} tried nothing")
        return
    print_table(["<problem", "trials", "seconds", "best", "<config"], [line for each in found for line in _lines(each)])


def _lines(curve: Curve) -> Iterator[list[object]]:
    """A line a point, and one for where the search of the problem ended."""
    name = str(curve.problem)
    for point in curve.points:
        yield [name, point.trials, f"{point.seconds:.1f}", microseconds(point.best_us), str(point.config)]
        name = ""
    best_us = curve.points[-1].best_us if curve.points else None
    yield [name, curve.trials, f"{curve.seconds:.1f}", microseconds(best_us), ""]
