"""`tuner lookup`: the best config for one problem, read from the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tunedex.cli.devices import device_of
from tunedex.cli.output import (
    ChannelOption,
    DbOption,
    JsonOption,
    KernelArgument,
    KeyOption,
    RevisionOption,
    microseconds,
    print_json,
    print_table,
    say,
)
from tunedex.core.catalog import builtin_signatures
from tunedex.core.channel import Channel, check_channel
from tunedex.core.display import environment_words
from tunedex.core.errors import BadInput, UnknownRevision
from tunedex.core.question import parse_parameters, read_question
from tunedex.core.snapshot import Answer, Match, Snapshot, with_installed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tunedex.core.device import Device
    from tunedex.core.problem import Problem


ObjectiveOption = Annotated[
    str | None, typer.Option(help="latency (of a call; the default), throughput, error or memory.")
]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("lookup")(lookup)


def lookup(
    kernel: KernelArgument,
    parameters: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="Dimensions, attributes, dtype (or X_dtype), layout, alignment; and what is asked of the config: "
            "objective, max_error, max_latency_us, max_memory, policy, same_bits.",
        ),
    ],
    objective: ObjectiveOption = None,
    device: KeyOption = "auto",
    channel: ChannelOption = "stable",
    revision: RevisionOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the best config for a problem and where it comes from.

    A problem that was never tuned is answered from its tuned neighbours or from a device of the family, else with the
    kernel's default. For example:
    tuner lookup softmax rows=1024 cols=4096 dtype=float32
    """
    given = asked(parameters, objective)
    snapshot = snapshot_named(db, device, channel, revision)
    question = read_question(snapshot.signature(kernel), given)
    answer = snapshot.answer(question.problem, question.limits)
    note_absence(db)
    if as_json:
        print_json(answer.to_dict())
    else:
        print_lines(answer_lines(question.problem, snapshot, answer, db))


def asked(parameters: list[str], objective: str | None) -> dict[str, str]:
    """The words ``parameters`` by name, and what ``--objective`` says.

    Raises:
        BadInput: a word is not ``name=value``, or a name is given twice.
    """
    return parse_parameters([*parameters, *([] if objective is None else [f"objective={objective}"])])


def snapshot_named(db: str | None, device: str, channel: str, revision: int | None) -> Snapshot:
    """What the database holds for the device of that name, and every built-in kernel's default as it is installed.

    Raises:
        BadInput: ``device`` or ``channel`` is none, or ``revision`` is negative.
        UnknownRevision: ``revision`` was never published.
    """
    offered = check_channel(channel)
    if revision is not None and revision < 0:
        raise BadInput(f"--revision {revision} is negative", field="revision")
    return with_installed(_stored(db, _asked_for(device), offered, revision), builtin_signatures())


def _asked_for(device: str) -> Device:
    """The device that ``--device`` names, without torch where it can be had without."""
    from tunedex.client.device import device_named

    if device == "auto":
        return device_named(None)
    return device_named(device) if device == "cpu" else device_of(device)


def note_absence(db: str | None) -> None:
    """Say that the database which somebody named is not there yet, since its answers look like any others."""
    from tunedex.db import absent_file

    if path := absent_file(db):
        say(f"there is no database {path} yet, so the answer is the kernel's default")


def _stored(db: str | None, device: Device, channel: Channel, revision: int | None) -> Snapshot:
    """What the database holds for ``device``; where there is none yet, nothing is made and nothing is published."""
    from tunedex.db import database_exists, open_store

    if database_exists(db):
        with open_store(db, create=False) as store:
            return store.snapshot(device.key, channel=channel, revision=revision)
    if revision:
        raise UnknownRevision(f"revision {revision} is unknown; nothing is published yet", field="revision")
    return Snapshot(device, channel, 0, {}, {}, {})


def _environment(db: str | None, key: str | None) -> str:
    """The environment of that key, as the database knows it; "" where an answer names none."""
    from tunedex.db import open_store

    if not key:
        return ""
    with open_store(db, create=False) as store:
        return environment_words(key, store.environments([key]).get(key))


def answer_lines(problem: Problem, snapshot: Snapshot, answer: Answer, db: str | None) -> dict[str, str]:
    """The config and its provenance, a line each by its name; one that is not known is empty."""
    return {
        "problem": str(problem),
        "config": str(answer.config) if answer.config else "none",
        "match": answer.match.value,
        "distance": _distance(answer),
        "expected loss": _loss(answer),
        "why": answer.reason,
        "time": microseconds(answer.time_us) if answer.time_us is not None else "",
        "speed-up": f"{answer.speedup:.2f}x over the default" if answer.speedup is not None else "",
        "error": f"{answer.error:.2g} (relative L2, against float64)" if answer.error is not None else "",
        "policy": answer.policy or "",
        "source": answer.source.kind,
        "device": answer.source.device or snapshot.device.key,
        "environment": _environment(db, answer.source.environment),
        "published": f"revision {snapshot.revision} on {snapshot.channel}" if snapshot.revision else "nothing yet",
    }


def _distance(answer: Answer) -> str:
    """How far what was measured lies from what was asked; "" where it does not."""
    return f"{answer.distance:.3g} doublings" if answer.distance and answer.match in (Match.NEAR, Match.FAMILY) else ""


def _loss(answer: Answer) -> str:
    """What a config that was not measured here may lose; "" where it was."""
    if answer.match not in (Match.NEAR, Match.FAMILY):
        return ""
    return "unknown" if answer.expected_loss is None else f"{100 * answer.expected_loss:.1f} % of the best time"


def print_lines(lines: Mapping[str, str]) -> None:
    """Names and texts, one pair a line, without those that have no text."""
    print_table(["<", "<"], [(name, text) for name, text in lines.items() if text])
