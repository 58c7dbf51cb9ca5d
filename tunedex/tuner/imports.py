"""What child processes import when they start, so that no config waits for it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec


def import_compilers() -> None:
    """Import those of the compilers' packages that are installed; that takes seconds."""
    for name in ("torch", "triton", "triton.language"):
        if find_spec(name.partition(".")[0]):
            import_module(name)
