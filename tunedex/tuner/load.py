"""Whether somebody else computes on a device while we measure on it.

What merely holds memory, an idle notebook or a display server, is no load. Every look is cheap and at most one is taken
every ``SETTINGS.watching.load_every_s``: the counters are averages over as long anyway.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tunedex.core.device import Device
from tunedex.tuner.machine import stat_fields
from tunedex.tuner.nvml import Nvml, nvml_of
from tunedex.tuner.settings import SETTINGS, Watching

#: Where Linux keeps its counters.
_PROC = Path("/proc")

#: Of a core's counters in /proc/stat, those of the time it worked: all but idle and waiting for a disk, and without the
#: time of guests, which the first two hold already.
_WORKED = (0, 1, 2, 5, 6, 7)

Look = Callable[[], bool | None]


@dataclass(frozen=True)
class Idle:
    """What is seen of a device on which nothing of ours runs, nor has run for a second: the processes that compute, and
    whether anything does."""

    others: frozenset[int] = frozenset()
    busy: bool = False


class LoadWatch:
    """Watches one device for this process.

    ``idle`` is what was seen of the device when nothing of ours ran on it: who was busy then is somebody else.
    """

    def __init__(self, device: Device, idle: Idle | None = None) -> None:
        self._look = _look_at(device, idle)
        self._said: bool | None = None
        self._next_s = 0.0

    def contended(self) -> bool | None:
        """Whether somebody else computes on the device now, or did since the last look; None where that is unknown.
        Never raises."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + SETTINGS.watching.load_every_s
            self._said = self._look()
        return self._said


class GpuLoad:
    """Looks at the processes that NVML sees computing on a card.

    Often they are called by ids of another namespace than ours, so our own is not known among them. But the one who
    looks has just measured, so one of several busy ones is always somebody else, and so is whoever was busy when
    nothing of ours ran. A driver that tells no processes is believed only in what it said then, of the whole card.
    """

    def __init__(self, nvml: Nvml, uuid: str, idle: Idle, settings: Watching = SETTINGS.watching) -> None:
        self._nvml, self._uuid, self._idle, self._settings = nvml, uuid, idle, settings

    @classmethod
    def seen_idle(cls, nvml: Nvml, uuid: str, settings: Watching = SETTINGS.watching) -> Idle:
        """What is seen now, when nothing of ours runs on the card."""
        others = cls(nvml, uuid, Idle(), settings)._busy()
        return Idle(others, bool(others) or (nvml.busy_percent(uuid) or 0) >= settings.load_gpu_percent)

    def __call__(self) -> bool | None:
        processes = self._nvml.processes(self._uuid, self._settings.load_window_s)
        if not processes:  # not even we are seen
            return self._idle.busy or None
        busy = self._above(processes)
        if os.getpid() in processes:
            return bool(busy - {os.getpid()})
        return len(busy) > 1 or bool(busy & self._idle.others)

    def _busy(self) -> frozenset[int]:
        """The processes, but for this one, that compute now."""
        processes = self._nvml.processes(self._uuid, self._settings.load_window_s) or {}
        return self._above(processes) - {os.getpid()}

    def _above(self, processes: Mapping[int, int]) -> frozenset[int]:
        return frozenset(pid for pid, percent in processes.items() if percent >= self._settings.load_gpu_percent)


class CpuLoad:
    """Compares how long the cores that this process may use have worked with how long we have: this process, and the
    one that started it, which drives it. Linux counts both; elsewhere nothing is known."""

    def __init__(self, *, proc: Path = _PROC, settings: Watching = SETTINGS.watching) -> None:
        self._proc, self._settings = proc, settings
        self._said: bool | None = None
        self._last = self._read()

    def __call__(self) -> bool | None:
        now = self._read()
        if now is None or self._last is None:
            self._said, self._last = None, now
            return None
        total_s = now.total_s - self._last.total_s
        if total_s < self._settings.load_every_s:  # the counters' step is 10 ms, and some systems leave them at zero
            return self._said
        others_s = (now.worked_s - self._last.worked_s) - (now.own_s - self._last.own_s)
        self._said, self._last = others_s > self._settings.load_cpu_share * total_s, now
        return self._said

    def _read(self) -> _Worked | None:
        try:
            tick_s = 1 / os.sysconf("SC_CLK_TCK")
            usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
            total = worked = 0
            for line in (self._proc / "stat").read_text().splitlines():
                name, *fields = line.split()
                if name in usable:
                    counts = [int(field) for field in fields[:8]]
                    total += sum(counts)
                    worked += sum(counts[n] for n in _WORKED)
            own_s = time.process_time() + self._ticks_of(os.getppid()) * tick_s
        except (AttributeError, OSError, ValueError, IndexError):
            return None
        return _Worked(total * tick_s, worked * tick_s, own_s)

    def _ticks_of(self, pid: int) -> int:
        """The time that a process has worked; 0 where it is hidden, or gone."""
        try:
            return sum(map(int, stat_fields(pid, self._proc)[11:13]))
        except ValueError:
            return 0


@dataclass(frozen=True)
class _Worked:
    """Seconds, summed over the cores: all that passed, those that were worked, and those that we worked."""

    total_s: float
    worked_s: float
    own_s: float


_watches: dict[str, LoadWatch] = {}


def seen_idle(device: Device) -> Idle | None:
    """What is seen of ``device``, on which nothing of ours runs, nor has run for a second; None where nobody tells.
    Never raises."""
    known = nvml_of(device)
    return GpuLoad.seen_idle(*known) if known else None


def watch(device: Device, idle: Idle | None) -> None:
    """Begin to watch ``device``, of which `seen_idle` said ``idle`` before. Never raises."""
    _watches[_name(device)] = LoadWatch(device, idle)


def contended(device: Device) -> bool | None:
    """Whether somebody else computes on ``device``; see `LoadWatch.contended`. The first call begins to watch it, where
    `watch` did not. Never raises."""
    name = _name(device)
    if name not in _watches:
        _watches[name] = LoadWatch(device)
    return _watches[name].contended()


def _name(device: Device) -> str:
    return str(device.attributes.get("uuid") or device.key)


def _look_at(device: Device, idle: Idle | None) -> Look:
    if device.kind == "cpu":
        return CpuLoad()
    known = nvml_of(device)
    return GpuLoad(*known, idle or Idle()) if known else lambda: None
