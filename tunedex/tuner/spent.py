"""Where the time of a sweep goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Part(StrEnum):
    """What a moment of a sweep goes into.

    ``first_batch`` is the wait for the first compiled config of a sweep, ``compile_wait`` every later one.
    """

    START = "start"
    OPEN = "open"
    FIRST_BATCH = "first_batch"
    COMPILE_WAIT = "compile_wait"
    MEASURE = "measure"
    FINAL = "final"
    SEARCH = "search"
    STORE = "store"
    OTHER = "other"


class Spent:
    """Adds up the seconds of one sweep by their part. Every moment counts for the innermost part alone.

    Not thread-safe: it is for the one thread that sweeps.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = self._since = clock()
        self._part = Part.OTHER
        self._seconds = dict.fromkeys(Part, 0.0)
        self._first_end: float | None = None

    @contextmanager
    def on(self, part: Part) -> Iterator[None]:
        """Count what runs inside for ``part``."""
        outer = self._switch(part)
        try:
            yield
        finally:
            self._switch(outer)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count what runs inside as waiting for a compiled config."""
        with self.on(Part.FIRST_BATCH if self._first_end is None else Part.COMPILE_WAIT):
            yield
        if self._first_end is None:
            self._first_end = self._clock()

    @property
    def wall_s(self) -> float:
        """The seconds since it was made."""
        return self._clock() - self._begin

    @property
    def gpu_busy_share(self) -> float:
        """The share of the time after the first compiled config in which nothing waited for another one."""
        begin = self._begin if self._first_end is None else self._first_end
        wall = self._clock() - begin
        return 1.0 - self._seconds[Part.COMPILE_WAIT] / wall if wall > 0 else 1.0

    @property
    def overhead_share(self) -> float:
        """The share of all time that went into proposing configs and into the database."""
        wall = self.wall_s
        return (self._seconds[Part.SEARCH] + self._seconds[Part.STORE]) / wall if wall > 0 else 0.0

    def to_dict(self) -> dict[str, float]:
        self._switch(self._part)
        return {
            "wall_s": self.wall_s,
            **{f"{part.value}_s": seconds for part, seconds in self._seconds.items()},
            "gpu_busy_share": self.gpu_busy_share,
            "overhead_share": self.overhead_share,
        }

    def _switch(self, part: Part) -> Part:
        now = self._clock()
        self._seconds[self._part] += now - self._since
        outer, self._part, self._since = self._part, part, now
        return outer
