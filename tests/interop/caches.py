"""Kernel Tuner caches of a small made-up space."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

NAMES = ["block", "tile", "path"]

#: The times in ms of six of the twelve configs of `NAMES`; two of them fail.
ENTRIES: list[tuple[tuple[int, int, str], object]] = [
    ((32, 1, "plain"), 4.0),
    ((64, 1, "plain"), 2.0),
    ((64, 2, "plain"), "RuntimeFailedConfig"),
    ((64, 2, "vector"), 1.0),
    ((128, 2, "vector"), 1.04),
    ((256, 1, "vector"), "CompilationFailedConfig"),
]


def cache(entries: Sequence[tuple[tuple[Any, ...], object]] = ENTRIES, **head: object) -> dict[str, Any]:
    """The document of a cache, as Kernel Tuner writes it."""
    return {
        "device_name": "NVIDIA RTX A4000",
        "kernel_name": "made_up",
        "problem_size": [4096, 4096],
        "tune_params_keys": NAMES,
        "tune_params": {name: sorted({entry[0][n] for entry in entries}) for n, name in enumerate(NAMES)},
        "objective": "time",
        **head,
        "cache": {
            ",".join(map(str, values)): {**dict(zip(NAMES, values, strict=True)), "time": time, "times": [9.0, 0.1]}
            for values, time in entries
        },
    }


def open_cache(document: Mapping[str, Any]) -> str:
    """The text that a run has written before it ends: a head, and a line an entry with a comma after it."""
    head = json.dumps({**document, "cache": {}}, indent="")[:-3]
    return head + "".join("\n" + json.dumps({key: entry})[1:-1] + "," for key, entry in document["cache"].items())
