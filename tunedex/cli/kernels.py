"""`tuner kernels`: what can be tuned, and how many configs each kernel has here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunedex.cli.devices import device_of
from tunedex.cli.output import JsonOption, print_json, print_table, say
from tunedex.core.errors import CannotRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tunedex.core.device import Device
    from tunedex.core.problem import Problem
    from tunedex.kernels.base import Kernel


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("kernels")(kernels)


def kernels(
    device: Annotated[str, typer.Option(help="auto, all, cuda, cuda:N, cpu, or a device's key.")] = "auto",
    as_json: JsonOption = False,
) -> int:
    """List every kernel with its formula, dimensions, tunables and the size of its space on a device."""
    from tunedex.kernels.registry import all_kernels

    where = device_of(device)
    faults: list[str] = []
    documents = [_document(kernel, where, faults) for kernel in all_kernels().values()]
    if as_json:
        print_json({"device": where.to_dict(), "kernels": documents})
    else:
        print_table(
            ["<kernel", "<formula", "<dimensions", "<attributes", "<implementation", "<tunables", "configs"],
            [row for document in documents for row in _rows(document)],
            title=f"on {where.key}",
        )
    for fault in faults:
        say(fault)
    return 1 if faults else 0


def _document(kernel: Kernel, device: Device, faults: list[str]) -> dict[str, Any]:
    """A kernel as data, with its spaces for the problems of the quick preset; of one that does not name them,
    ``faults`` gets a line."""
    from tunedex.tuner.tasks import quick_tasks

    try:
        problems = [problem for task in quick_tasks(kernel, device) for problem in task.problems]
    except CannotRun as fault:
        problems = []
        faults.append(str(fault))
    return {
        **kernel.signature.to_dict(),
        "implementations": [implementation.name for implementation in kernel.implementations],
        "notes": dict(kernel.dimensions_notes),
        "spaces": [_space(kernel, problem, device) for problem in problems],
    }


def _space(kernel: Kernel, problem: Problem, device: Device) -> dict[str, Any]:
    from tunedex.tuner.space import Space

    space = Space.of(kernel, problem, device)
    return {
        "problem": {**problem.to_dict(), "key": problem.key},
        "text": str(problem),
        "size": len(space),
        "branches": [
            {
                "implementation": branch.implementation,
                "size": len(branch),
                "tunables": [
                    {"name": tunable.name, "values": list(tunable.values), "meaning": tunable.meaning}
                    for tunable in branch.tunables
                ],
            }
            for branch in space.branches
        ],
        "refused": dict(space.refused),
    }


def _rows(document: Mapping[str, Any]) -> list[list[object]]:
    """A line for each implementation of the first problem's space, the kernel named in the first alone."""
    dimensions = ", ".join(d["name"] for d in document["dimensions"])
    attributes = ", ".join(f"{a['name']}={'|'.join(a['choices'])}" for a in document["attributes"])
    head: list[object] = [document["kernel"], document["formula"], dimensions, attributes]
    if not document["spaces"]:
        return [[*head, "-", "no quick problem on this device", ""]]
    space = document["spaces"][0]
    lines: list[list[object]] = [
        [branch["implementation"], _tunables(branch), branch["size"]] for branch in space["branches"]
    ]
    lines += [[name, f"not here: {reason}", 0] for name, reason in space["refused"].items()]
    lines.append(["all", f"for {space['text'].partition(':')[2]}", space["size"]])
    blank: list[object] = ["", "", "", ""]
    return [[*(head if number == 0 else blank), *line] for number, line in enumerate(lines)]


def _tunables(branch: Mapping[str, Any]) -> str:
    return " ".join(f"{t['name']}={'|'.join(map(str, t['values']))}" for t in branch["tunables"]) or "none"
