"""What this host's CPU is. Standard library only, for the tuner and for the client alike."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path

from tunedex.core.device import Device

_EXTENSIONS = (("avx512f", "avx512"), ("avx2", "avx2"), ("asimd", "neon"), ("neon", "neon"))


@cache
def cpu() -> Device:
    """The CPU of this host as a device; ``multiprocessors`` counts the cores this process may run on."""
    name, flags = _cpuinfo()
    vector = next((extension for flag, extension in _EXTENSIONS if flag in flags), "")
    return Device(
        kind="cpu",
        name=name,
        multiprocessors=cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0,
        vector=vector,
        attributes={"system": sys.platform, "machine": platform.machine()},
    )


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpuinfo() -> tuple[str, frozenset[str]]:
    """The model name and the instruction-set flags; empty where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    model = fields.get("model name") or platform.processor() or platform.machine() or "unknown"
    flags = fields.get("flags") or fields.get("features") or ("neon" if platform.machine() == "arm64" else "")
    return model, frozenset(flags.lower().split())
