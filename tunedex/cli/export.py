"""`tuner export`: the trials of a database as files and studies that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunedex.cli.output import DbOption, JsonOption, command_group, microseconds, print_json, print_table, say, writing
from tunedex.cli.promote import DeviceKeyOption
from tunedex.core.catalog import builtin_signatures
from tunedex.core.errors import BadInput, UnknownKernel
from tunedex.core.files import check_target
from tunedex.core.question import parse_parameters, read_question

if TYPE_CHECKING:
    from tunedex.core.problem import Problem
    from tunedex.core.signature import Signature
    from tunedex.db import Store
    from tunedex.interop.trials import TrialSet

KernelOption = Annotated[
    str | None, typer.Option("--kernel", metavar="K", help="Only this kernel; default all.", show_default=False)
]
ProblemOption = Annotated[
    str | None,
    typer.Option(
        "--problem", metavar="KERNEL:NAME=VALUE,...", help="Only this problem; default all.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command group to ``app``."""
    group = command_group("Write what the database knows for other programs.")
    group.command("trials")(trials)
    group.command("optuna")(optuna)
    app.add_typer(group, name="export")


def trials(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Packed where it ends in .gz.")],
    kernel: KernelOption = None,
    device: DeviceKeyOption = None,
    problem: ProblemOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> int:
    """Write every trial to a file, which `tuner replay` reads."""
    from tunedex.db import open_store
    from tunedex.interop.trials import is_export, write_trial_sets

    check_target(out, is_export, "export of trials")
    with open_store(db, create=False) as store:
        sets = _chosen(store, kernel, device, problem)
    if not sets:
        return _nothing()
    with writing(out):
        write_trial_sets(out, sets)
    count = sum(len(each.trials) for each in sets)
    if as_json:
        print_json({"file": str(out), "problems": len(sets), "trials": count})
    else:
        say(f"{out}: {count} trials of {len(sets)} problem{'' if len(sets) == 1 else 's'}")
    return 0


def optuna(
    url: Annotated[str, typer.Argument(metavar="URL", help="Optuna's storage: sqlite:///FILE or postgresql://...")],
    kernel: KernelOption = None,
    device: DeviceKeyOption = None,
    problem: ProblemOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> int:
    """Write every problem's trials on every device as a study, which Optuna's own tools open."""
    from tunedex.db import open_store
    from tunedex.db.urls import parse
    from tunedex.tuner.search.optuna_export import export_studies, studies_of

    target = parse(url)
    with open_store(db, create=False) as store:
        studies = studies_of(_chosen(store, kernel, device, problem))
    if not studies:
        return _nothing()
    export_studies(studies, target, database=parse(db))
    if as_json:
        documents = [
            {"name": s.name, "trials": len(s.trials), "failures": s.failures, "best_us": s.best_us} for s in studies
        ]
        print_json({"studies": documents})
    else:
        rows = [[s.name, len(s.trials), s.failures, microseconds(s.best_us)] for s in studies]
        print_table(["<study", "trials", "failures", "best"], rows)
    return 0


def _chosen(store: Store, kernel: str | None, device: str | None, problem: str | None) -> list[TrialSet]:
    """The trials that the options name.

    Raises:
        BadInput: there is no such kernel, device or problem.
    """
    from tunedex.core.device import Device
    from tunedex.interop.trials import trial_sets

    signatures = {s.kernel: s for s in [*builtin_signatures(), *store.kernels()]}
    if kernel is not None:
        _signature(signatures, kernel)
    if device is not None:
        Device.from_key(device)
    return trial_sets(store, device=device, kernel=kernel, problem=_problem(signatures, problem))


def _problem(signatures: dict[str, Signature], text: str | None) -> Problem | None:
    if text is None:
        return None
    name, _, rest = text.partition(":")
    if not rest.strip():
        raise BadInput(f"problem {text!r} is not KERNEL:name=value,...", field="problem")
    return read_question(_signature(signatures, name.strip()), parse_parameters(rest.split(","))).problem


def _signature(signatures: dict[str, Signature], name: str) -> Signature:
    if name not in signatures:
        raise UnknownKernel(f"kernel {name!r} is unknown; known are {', '.join(sorted(signatures))}", field="kernel")
    return signatures[name]


def _nothing() -> int:
    say("there is no such trial in the database; `tuner sweep` makes some")
    return 1
