"""`tuner selftest`: does Tunedex hold on this device?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tunedex.cli.output import JsonOption, print_json, print_table, say, writing
from tunedex.core.errors import BadInput


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("selftest")(selftest)


def selftest(
    device: Annotated[str, typer.Option(help="auto, cuda:N or cpu.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the bundle goes; default tunedex-selftest-DEVICE_KEY.json in this folder.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Test limits, numerics and timer on this device in under five minutes, and write a bundle to send on.

    The bundle names no person, host, path or serial number.
    """
    from tunedex.tuner.bundle import check_target, write_bundle
    from tunedex.tuner.devices import detect, environment_of
    from tunedex.tuner.selftest import SelfTest

    found = detect(device)
    if len(found) > 1:
        selectors = ", ".join(item.selector for item in found)
        raise BadInput(f"--device {device} names {len(found)} devices, and one is tested; choose {selectors}")
    detected = found[0]
    path = out or Path(f"tunedex-selftest-{detected.device.key}.json")
    check_target(path)
    say(f"{detected.device.name} ({detected.device.key})")
    report = SelfTest(detected, environment_of(detected.device), watch=say).run()
    document = report.to_dict()
    try:
        with writing(path):
            write_bundle(path, document)
    finally:  # the result is told in any case
        if as_json:
            print_json(document)
        else:
            print_table(
                ["<check", "<result", "seconds", "<detail"],
                [[c["name"], c["status"], f"{c['seconds']:.1f}", c["detail"]] for c in document["checks"]],
            )
    say(f"written to {path}")
    return 0 if report.passed else 1
