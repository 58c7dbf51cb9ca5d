"""`tuner devices`: what this host has to tune on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunedex.cli.output import JsonOption, print_json, print_table, say
from tunedex.core.device import GIB, KIB, MIB, Device, Environment
from tunedex.core.display import environment_words
from tunedex.core.errors import BadInput

if TYPE_CHECKING:
    import typer

    from tunedex.tuner.devices import DetectedDevice


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("devices")(devices)


def devices(as_json: JsonOption = False) -> None:
    """List every CUDA device and the CPU, with key, limits, data-sheet peaks and environment."""
    from tunedex.tuner.devices import detect, environment_of

    found = [(item, environment_of(item.device)) for item in detect("all")]
    if as_json:
        print_json({"devices": [_document(item, environment) for item, environment in found]})
        return
    print_table(
        ["<device", "<name", "<family", "SMs/cores", "memory", "L2", "shared", "<environment", "<key"],
        [_row(item, environment) for item, environment in found],
    )
    for item, _ in found:
        for note in item.notes:
            say(note)


def _document(item: DetectedDevice, environment: Environment) -> dict[str, Any]:
    from tunedex.tuner.peaks import peaks_of

    return {
        **item.device.to_dict(),
        "index": item.index,
        "uuid": item.uuid,
        "notes": list(item.notes),
        "peaks": peaks_of(item.device).to_dict(),
        "environment": environment.to_dict(),
    }


def _row(item: DetectedDevice, environment: Environment) -> list[object]:
    device = item.device
    detail = device.vector if device.kind == "cpu" else f"sm_{device.target}"
    return [
        item.selector,
        device.name,
        f"{device.family} {detail}".strip(),
        device.multiprocessors,
        _size(device.memory_bytes, GIB, "GiB"),
        _size(device.l2_bytes, MIB, "MiB"),
        _size(device.shared_memory_bytes, KIB, "KiB"),
        environment_words(environment.key, environment),
        device.key,
    ]


def _size(count: int, unit: int, name: str) -> str:
    return f"{count / unit:.4g} {name}" if count else "-"


def device_of(selector: str) -> Device:
    """The one device model that ``selector`` (``auto``, ``all``, ``cuda``, ``cuda:0``, ``cpu``) or a device key names.

    Raises:
        BadInput: it is neither, or names unlike devices.
        CannotRun: the device is not here.
    """
    if "-" in selector or selector.startswith("name:"):
        return Device.from_key(selector)
    from tunedex.tuner.devices import detect

    try:
        found = detect(selector)
    except BadInput as error:
        raise BadInput(f"{error}, or a device's key", field="device") from None
    if len({item.device.key for item in found}) > 1:
        selectors = ", ".join(item.selector for item in found)
        raise BadInput(f"--device {selector} names unlike devices; choose one of {selectors}", field="device")
    return found[0].device
