"""Where the time of a sweep goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

#: What a sweep can be at: starting a measuring process, setting a problem up, waiting for a compiled config,
#: measuring, a final, proposing configs, the database.
Part = Literal["start", "open", "compile_wait", "measure", "final", "search", "store"]


@dataclass(frozen=True)
class Spent:
    """The seconds of a sweep by what it was at; of several devices, their sum.

    ``verify_s`` is the part of ``measure_s`` in which results were compared with their references.
    ``first_wait_s`` is the part of ``compile_wait_s`` that went by before the first config was compiled, which was
    ``first_batch_s`` after the begin. On a device whose configs compile where they are measured both are 0.
    """

    wall_s: float = 0.0
    start_s: float = 0.0
    open_s: float = 0.0
    compile_wait_s: float = 0.0
    measure_s: float = 0.0
    final_s: float = 0.0
    search_s: float = 0.0
    store_s: float = 0.0
    first_wait_s: float = 0.0
    first_batch_s: float = 0.0
    verify_s: float = 0.0

    @property
    def other_s(self) -> float:
        """What is none of these: ceilings, mostly."""
        known = self.start_s + self.open_s + self.compile_wait_s + self.measure_s + self.final_s
        return self.wall_s - known - self.search_s - self.store_s

    @property
    def gpu_busy_share(self) -> float | None:
        """The share of the time, from the first compiled config on, in which the device did not wait for one; None
        where no time has gone by."""
        wall_s = self.wall_s - self.first_batch_s
        return 1 - (self.compile_wait_s - self.first_wait_s) / wall_s if wall_s > 0 else None

    @property
    def overhead_share(self) -> float | None:
        """The share of the time that proposing configs and the database take; None where no time has gone by."""
        return (self.search_s + self.store_s) / self.wall_s if self.wall_s > 0 else None

    @property
    def verify_share(self) -> float | None:
        """The share of the time that verifying takes; None where no time has gone by."""
        return self.verify_s / self.wall_s if self.wall_s > 0 else None

    def __add__(self, other: Spent) -> Spent:
        return Spent(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def to_dict(self) -> dict[str, Any]:
        names = ("other_s", "gpu_busy_share", "overhead_share", "verify_share")
        derived = {name: getattr(self, name) for name in names}
        return {name: None if value is None else round(value, 4) for name, value in (asdict(self) | derived).items()}


class Ledger:
    """Books the seconds of one device's part of a sweep, in one thread. What runs inside of something else is booked
    under its own name alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._seconds: dict[str, float] = {}
        self._inner: list[float] = []
        self._first_batch: tuple[float, float] | None = None
        self._verify_s = 0.0

    @contextmanager
    def of(self, part: Part) -> Iterator[None]:
        """Book the block under ``part``."""
        begin = self._clock()
        self._inner.append(0.0)
        try:
            yield
        finally:
            seconds = self._clock() - begin
            self._seconds[part] = self._seconds.get(part, 0.0) + seconds - self._inner.pop()
            if self._inner:
                self._inner[-1] += seconds

    def compiled(self) -> None:
        """A compiled config is there; the first that is ends the time that no sweep can avoid waiting."""
        if self._first_batch is None:
            self._first_batch = (self._seconds.get("compile_wait", 0.0), self._clock() - self._begun)

    def verified(self, seconds: float) -> None:
        """So much of what was booked as measuring went into verifying."""
        self._verify_s += seconds

    @property
    def spent(self) -> Spent:
        first_wait_s, first_batch_s = self._first_batch or (0.0, 0.0)
        return Spent(
            wall_s=self._clock() - self._begun,
            first_wait_s=first_wait_s,
            first_batch_s=first_batch_s,
            verify_s=self._verify_s,
            **{f"{part}_s": seconds for part, seconds in self._seconds.items()},
        )
