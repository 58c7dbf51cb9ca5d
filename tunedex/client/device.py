"""Which device this process runs on, learnt without importing torch and without initialising CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tunedex.client import driver
from tunedex.client.settings import SETTINGS
from tunedex.core import host
from tunedex.core.cuda import cuda_device, from_properties
from tunedex.core.device import Device
from tunedex.core.errors import BadInput, DeviceError


def this_device() -> Device:
    """The device of this process: torch's current one where torch already uses CUDA, else the driver's first, else
    the CPU.

    Raises:
        DeviceError: there is a driver and it does not answer.
    """
    torch = sys.modules.get("torch")
    return (_from_torch(torch) if torch is not None else None) or _from_driver()


def device_named(device: Device | str | None) -> Device:
    """``device`` itself, the one that a key names, ``cpu`` for this host's, or `this_device` for None.

    Raises:
        BadInput: the text is no device key.
        DeviceError: see `this_device`.
    """
    if device is None:
        return this_device()
    if isinstance(device, Device):
        return device
    if not isinstance(device, str):
        raise BadInput(f"device is a {type(device).__name__}, not a Device or a device key", field="device")
    return host.cpu() if device == "cpu" else Device.from_key(device)


def _from_torch(torch: Any) -> Device | None:
    """None where torch has not initialised CUDA: asking it would, and a process that did cannot fork any more."""
    try:
        if torch.version.cuda is None:
            return host.cpu()
        if torch.cuda.is_initialized():
            return from_properties(torch.cuda.get_device_properties(torch.cuda.current_device()))
    except (AttributeError, RuntimeError, AssertionError):
        pass  # torch is half imported, or this is a fork of a process that used CUDA
    return None


@cache
def _from_driver() -> Device:
    found = _ask_child()
    if "error" in found:
        raise DeviceError(f"the CUDA driver does not answer: {found['error']}")
    if found["device"] is None:
        return host.cpu()
    values = dict(found["device"])
    return cuda_device(compute_capability=(values.pop("major"), values.pop("minor")), **values)


def _ask_child() -> dict[str, Any]:
    """The answer of `tunedex.client.driver` in a process of its own."""
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", str(Path(driver.__file__))],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SETTINGS.probe_s,
            check=True,
        )
        answer = json.loads(child.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return {"error": f"the child process that asks it fails: {error}"}
    return answer if isinstance(answer, dict) else {"error": "the child process that asks it answers nonsense"}
