"""`tuner recommend`: the batch to run for whoever may choose it, read from the database."""

from __future__ import annotations

from typing import Annotated

import typer

from tunedex.cli.lookup import ObjectiveOption, answer_lines, asked, note_absence, print_lines, snapshot_named
from tunedex.cli.output import (
    ChannelOption,
    DbOption,
    JsonOption,
    KernelArgument,
    KeyOption,
    RevisionOption,
    print_json,
)
from tunedex.core.display import three_digits
from tunedex.core.recommend import read_item
from tunedex.core.recommend import recommend as recommended


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("recommend")(recommend)


def recommend(
    kernel: KernelArgument,
    parameters: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="The problem of one item: dimensions without the batch, attributes, dtype (or X_dtype), layout, "
            "alignment; and what is asked: objective, max_error, max_latency_us, max_memory, policy, same_bits.",
        ),
    ],
    objective: ObjectiveOption = None,
    device: KeyOption = "auto",
    channel: ChannelOption = "stable",
    revision: RevisionOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the batch to run and the best config for it, of the batches that were tuned.

    A sweep over batch=auto tunes them. Where none serves, it is one item with the kernel's default. For example:
    tuner recommend softmax rows=1024 cols=4096 dtype=float32 --objective throughput max_latency_us=5000
    """
    given = asked(parameters, objective)
    snapshot = snapshot_named(db, device, channel, revision)
    item = read_item(snapshot.signature(kernel), given)
    found = recommended(snapshot, item.problem, item.limits)
    note_absence(db)
    if as_json:
        print_json(found.to_dict())
        return
    rate = found.items_per_s
    lines = {"batch": str(found.batch), "rate": f"{three_digits(rate)} items/s" if rate is not None else ""}
    print_lines({**lines, **answer_lines(item.problem.at_batch(found.batch), snapshot, found.answer, db)})
