"""The heartbeat of a child process, in memory that it shares with its parent: how often it has beaten, and the phase
of its work. The beats stop when the process is stopped, swapped out, or in native code that keeps Python's lock."""

from __future__ import annotations

import ctypes
from multiprocessing.context import BaseContext
from typing import Any

_PHASE_BYTES = 64


class Pulse:
    """Made by the parent and handed to the child when that is started; one writes, the other reads."""

    def __init__(self, context: BaseContext) -> None:
        self._beats: Any = context.RawValue(ctypes.c_uint64, 0)
        self._phase: Any = context.RawArray(ctypes.c_char, _PHASE_BYTES)

    @property
    def beats(self) -> int:
        return int(self._beats.value)

    def beat(self) -> None:
        self._beats.value += 1

    @property
    def phase(self) -> str:
        return bytes(self._phase.value).decode(errors="replace")

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase.value = name.encode()[: _PHASE_BYTES - 1]


_mine: Pulse | None = None


def have(pulse: Pulse) -> None:
    """Make ``pulse`` the one of this process, whose phase `phase` sets."""
    global _mine
    _mine = pulse


def phase(name: str) -> None:
    """Say what this process does from here on; nothing where it is no child. It is told when the process dies."""
    if _mine is not None:
        _mine.phase = name
