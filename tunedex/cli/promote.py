"""`tuner promote` and `tuner rollback`: which revision clients are offered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from tunedex.cli.output import DbOption, JsonOption, print_json, print_table, say, whole
from tunedex.core.channel import Channel

if TYPE_CHECKING:
    from tunedex.db import Store

DeviceKeyOption = Annotated[
    str | None,
    typer.Option("--device", metavar="KEY", help="Only the device of this key; default all.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command("promote")(promote)
    app.command("rollback")(rollback)


def promote(
    device: DeviceKeyOption = None,
    revision: Annotated[
        int | None,
        typer.Option("--revision", metavar="N", parser=whole, help="This revision, in place of the candidate's."),
    ] = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Offer clients what sweeps published: move the channel `stable` to the revision of `candidate`."""
    from tunedex.db import open_store

    with open_store(db, create=False) as store:
        _report(
            store.promote(device, revision),
            store,
            as_json,
            nothing="nothing to promote: every device's stable channel is there already, or has nothing published",
        )


def rollback(
    revision: Annotated[int, typer.Argument(metavar="REVISION", parser=whole, help="The revision to offer again.")],
    device: DeviceKeyOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Offer clients an earlier revision: move the channel `stable` back to it.

    It stays there, whatever is published, until `tuner promote` moves it.
    """
    from tunedex.db import open_store

    with open_store(db, create=False) as store:
        _report(
            store.rollback(revision, device),
            store,
            as_json,
            nothing=f"nothing to roll back: no device's stable channel is beyond revision {revision}",
        )
    say(f"stable is held at {revision}; `tuner promote` moves it")


def _report(moved: Mapping[str, int], store: Store, as_json: bool, *, nothing: str) -> None:
    """Print what moved; exit code 1 where nothing did."""
    if as_json:
        print_json({"channel": Channel.STABLE, "database": store.url, "moved": dict(moved)})
    elif moved:
        print_table(["<device", Channel.STABLE], sorted(moved.items()))
    if not moved:
        say(nothing)
        raise typer.Exit(1)
