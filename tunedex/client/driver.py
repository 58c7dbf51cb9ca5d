"""Asks the CUDA driver what the first visible device is and prints it as one line of JSON.

Run as a script in a short-lived child process, so that the process that asks never initialises CUDA: one that did
could not fork any more. Imports nothing of the package.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

#: CUdevice_attribute, by the name that `tunedex.core.cuda.cuda_device` gives it.
ATTRIBUTES = {"multiprocessors": 16, "l2_bytes": 38, "major": 75, "minor": 76, "shared_memory_bytes": 97}

SUCCESS, NO_DEVICE = 0, 100
NAME_BYTES = 256


def load() -> Any:
    """The driver's library; None where none is installed."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def query(cuda: Any) -> dict[str, Any]:
    """What ``cuda`` says: ``{"device": {...}}``, ``{"device": None}`` where it has none, or ``{"error": "..."}``."""
    if cuda is None:
        return {"device": None}
    count = ctypes.c_int()
    for step, code in (("cuInit", cuda.cuInit(0)), ("cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count)))):
        if code == NO_DEVICE:
            return {"device": None}
        if code != SUCCESS:
            return {"error": f"{step} returns {code}"}
    device = ctypes.c_int()
    if count.value == 0:
        return {"device": None}
    found: dict[str, Any] = {}
    name = ctypes.create_string_buffer(NAME_BYTES)
    memory = ctypes.c_size_t()
    codes = [
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDeviceGetName(name, NAME_BYTES, device),
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device),
    ]
    for field, attribute in ATTRIBUTES.items():
        value = ctypes.c_int()
        codes.append(cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device))
        found[field] = value.value
    if failed := [code for code in codes if code != SUCCESS]:
        return {"error": f"the driver returns {failed[0]} when asked for its first device"}
    return {"device": {"name": name.value.decode(errors="replace"), "memory_bytes": memory.value, **found}}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(query(load())))
