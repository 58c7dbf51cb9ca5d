"""What the machine has left, as far as this process may use it: a container's share where there is one.

Linux tells it in ``/proc`` and in the files of control groups, of both versions. What cannot be read bounds nothing.
"""

from __future__ import annotations

import resource
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tunedex.core.host import cores

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
_KIB = 1024
_PAGE_BYTES = resource.getpagesize()

#: Assumed where the system does not tell its memory.
_UNKNOWN_MEMORY_BYTES = 2**33


@dataclass(frozen=True)
class _MemoryFiles:
    """The names under which a version of control groups tells memory."""

    most: str
    used: str
    reclaimable: str


_VERSION_1 = _MemoryFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _MemoryFiles("memory.max", "memory.current", "inactive_file")


def memory_bytes(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """The most memory that this process and its children can have, in bytes."""
    total = _table(proc / "meminfo").get("MemTotal:", _UNKNOWN_MEMORY_BYTES // _KIB) * _KIB
    return min([total, *(most for most, _ in _bounds(proc, groups))])


def free_memory_bytes(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """The memory that can be taken now without anything being swapped out or killed, in bytes."""
    available = _table(proc / "meminfo").get("MemAvailable:", _UNKNOWN_MEMORY_BYTES // _KIB) * _KIB
    return max(0, min([available, *(most - used for most, used in _bounds(proc, groups))]))


def usable_cores(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """The cores that this process can keep busy at once: those it may run on, within the container's quota."""
    quotas = []
    for folder, version in _folders("cpu", proc, groups):
        if version is _VERSION_2:
            quota, period = ([*_words(folder / "cpu.max"), "max", "0"])[:2]
        else:
            quota, period = (_word(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(max(1, int(quota) // int(period)))
    return min([cores(), *quotas])


def memory_kills(proc: Path = _PROC) -> int:
    """How many processes the kernel has killed since its start because memory ran out."""
    return _table(proc / "vmstat").get("oom_kill", 0)


class Residents:
    """The resident memory of process groups. One look at every process serves all who ask within ``fresh_s``."""

    def __init__(self, fresh_s: float, proc: Path = _PROC) -> None:
        self._fresh_s = fresh_s
        self._proc = proc
        self._lock = threading.Lock()
        self._pages: Counter[int] = Counter()
        self._seen_at = float("-inf")

    def bytes_of(self, group: int) -> int:
        """The resident bytes of the processes of ``group``, memory that they share counted for each."""
        with self._lock:
            if time.monotonic() - self._seen_at > self._fresh_s:
                self._pages = self._look()
                self._seen_at = time.monotonic()
            return self._pages[group] * _PAGE_BYTES

    def _look(self) -> Counter[int]:
        pages: Counter[int] = Counter()
        for process in self._proc.glob("[0-9]*"):
            if fields := stat_fields(int(process.name), self._proc):
                pages[int(fields[2])] += int(fields[21])
        return pages


def stat_fields(process: int, proc: Path = _PROC) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on: state, parent, group, ...; empty where it is gone."""
    try:
        return (proc / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _bounds(proc: Path, groups: Path) -> Iterator[tuple[int, int]]:
    """The most and the used bytes of each control group that bounds this process; a file cache is not in use."""
    for folder, version in _folders("memory", proc, groups):
        most, used = _word(folder / version.most), _word(folder / version.used)
        if most.isdigit() and used.isdigit():
            yield int(most), int(used) - _table(folder / "memory.stat").get(version.reclaimable, 0)


def _folders(controller: str, proc: Path, groups: Path) -> Iterator[tuple[Path, _MemoryFiles]]:
    """The folders of the control groups that this process is in, the innermost first, with their version."""
    for line in _lines(proc / "self" / "cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            root, version = groups, _VERSION_2
        elif controller in controllers.split(","):
            root, version = groups / controller, _VERSION_1
        else:
            continue
        inner = root / path.strip().lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_dir():
                yield folder, version
            if folder == root:
                break


def _table(path: Path) -> dict[str, int]:
    """The first number of each line by the line's first word."""
    rows = (line.split() for line in _lines(path))
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _word(path: Path) -> str:
    return next(iter(_words(path)), "")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
