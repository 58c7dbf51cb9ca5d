"""What the pages show, computed: lines of tables, and numbers written for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from tunedex.core.config import Config
from tunedex.core.device import GIB, KIB, MIB, Device
from tunedex.core.display import three_digits, time_words, versions
from tunedex.core.problem import ALIGNMENT_BYTES, Problem
from tunedex.core.row import Row
from tunedex.core.snapshot import Snapshot
from tunedex.db.records import DeviceSummary


@dataclass(frozen=True)
class DeviceLine:
    """One device: what the store knows, and the speed-ups over the default of its best configs."""

    summary: DeviceSummary
    revision: int
    median_speedup: float | None
    best_speedup: float | None


@dataclass(frozen=True)
class BestLine:
    """The best config of one problem; ``stale`` where the kernel has changed since it was measured."""

    problem: Problem
    row: Row
    stale: bool

    @property
    def library_speedup(self) -> float | None:
        """The library call's time over this one's."""
        return self.row.library_us / self.row.measurement.time_us if self.row.library_us else None


def device_line(summary: DeviceSummary, snapshot: Snapshot) -> DeviceLine:
    speedups = [line.row.speedup for line in best_lines(snapshot) if line.row.speedup is not None]
    return DeviceLine(
        summary, snapshot.revision, median(speedups) if speedups else None, max(speedups) if speedups else None
    )


def best_lines(snapshot: Snapshot, kernel: str | None = None) -> list[BestLine]:
    """The row of the lowest rank of each problem, in the order of kernel, dtypes and dimensions."""
    lines = []
    for key, problem in snapshot.problems.items():
        rows = snapshot.rows.get(key)
        if not rows or (kernel and problem.kernel != kernel):
            continue
        row = min(rows, key=lambda row: row.rank)
        signature = snapshot.signatures.get(problem.kernel)
        stale = signature is not None and signature.version != row.kernel_version
        lines.append(BestLine(problem, row, stale))
    return sorted(lines, key=lambda line: _order(line.problem))


def _order(problem: Problem) -> tuple[Any, ...]:
    attributes = tuple(sorted(problem.attributes.items()))
    return (problem.kernel, tuple(problem.dtypes.values()), tuple(problem.dims.values()), attributes, problem.key)


def time_us(value: float | None) -> str:
    """A time with its unit, to three digits."""
    return time_words(value, micro="µs") or "–"


def ratio(value: float | None) -> str:
    """How many times as fast, to two decimals."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.2f}×"


def share(value: float | None) -> str:
    """A share of 1 as a percentage."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.0f} %"


def error(value: float | None) -> str:
    """A relative error, to two digits."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}"


def dims(problem: Problem) -> str:
    """The dimensions by name, a batch of 1 left out."""
    return ", ".join(f"{name} {size}" for name, size in problem.dims.items() if name != "batch" or size != 1)


def details(problem: Problem) -> str:
    """Dtypes and attributes, and a layout or an alignment that is not the usual one."""
    kinds = set(problem.dtypes.values())
    same = len(kinds) == 1
    parts = [*kinds] if same else [f"{operand} {name}" for operand, name in problem.dtypes.items()]
    parts += [f"{name} {value}" for name, value in problem.attributes.items()]
    if problem.layout != "contiguous":
        parts.append(problem.layout)
    if problem.alignment != ALIGNMENT_BYTES:
        parts.append(f"{problem.alignment}-byte aligned")
    return ", ".join(parts)


def tunables(config: Config) -> list[tuple[str, str]]:
    """The tunables of a config by name, the implementation apart."""
    return [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in config.ordered]


def limits(device: Device) -> str:
    """What a device has, in its own words: cores or multiprocessors, memory, cache, shared memory."""
    parts = []
    if device.kind == "cpu":
        parts = [f"{device.multiprocessors} cores", device.vector or "no vector extension"]
    elif device.kind == "cuda":
        parts = [f"sm_{device.target}", f"{device.multiprocessors} multiprocessors"]
    if device.memory_bytes:
        parts.append(f"{three_digits(device.memory_bytes / GIB)} GiB memory")
    if device.l2_bytes:
        parts.append(f"{round(device.l2_bytes / MIB)} MiB L2")
    if device.shared_memory_bytes:
        parts.append(f"{device.shared_memory_bytes // KIB} KiB shared memory")
    if device.profile:
        parts.append(device.profile)
    return ", ".join(parts) or "known by name only"


def date(text: object) -> str:
    """A time to the minute in UTC, of an ISO text or a datetime; a dash where there is none."""
    iso = text if isinstance(text, str) else text.isoformat() if text is not None else ""  # type: ignore[attr-defined]
    return f"{iso[:10]} {iso[11:16]}" if len(iso) >= 16 else iso or "–"


FILTERS: dict[str, Callable[..., Any]] = {
    "time_us": time_us,
    "ratio": ratio,
    "share": share,
    "error": error,
    "dims": dims,
    "details": details,
    "tunables": tunables,
    "limits": limits,
    "versions": versions,
    "date": date,
}
