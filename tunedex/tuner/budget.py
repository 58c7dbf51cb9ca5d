"""The time of a sweep, and what of it each part gets.

Everything counts: starting processes, ceilings, searching, finals, publishing. What the finals still to come will take
is kept for them, by what they have taken so far; the rest is shared evenly by the tasks still to be searched. However
small the budget is, the default, the library call and what is served of each problem are measured and get a final: that
is the least that a sweep can answer with, and it may take longer than the budget.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tunedex.tuner.settings import SETTINGS, Budgeting, Finals


@dataclass(frozen=True)
class Due:
    """What a sweep has still to do: tasks to search, the one at hand included, and finals to hold."""

    tasks: int
    finals: int


class Budget:
    """How much of ``budget_s`` seconds is left and who gets it; None is without bound. Safe over threads.

    Args:
        budget_s: seconds from ``begun`` on.
        devices: how many work at once.
        begun: when the time began to run, by ``clock``; default now.
    """

    def __init__(
        self,
        budget_s: float | None,
        *,
        devices: int = 1,
        begun: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        finals: Finals = SETTINGS.finals,
        settings: Budgeting = SETTINGS.budgeting,
    ) -> None:
        self.clock = clock
        self._budget_s = math.inf if budget_s is None else budget_s
        self._end = (clock() if begun is None else begun) + self._budget_s
        self._devices = devices
        self._finals = finals
        self._settings = settings
        self._lock = threading.Lock()
        self._held = 0
        self._beside_s = 0.0

    @property
    def left_s(self) -> float:
        """Seconds left, below 0 where the budget is overdrawn."""
        return self._end - self.clock()

    def held(self, wall_s: float, timed_s: float) -> None:
        """A final took ``wall_s`` in all, from a fresh process to what it published, and was asked to time for
        ``timed_s``."""
        with self._lock:
            self._held += 1
            self._beside_s += max(0.0, wall_s - timed_s)

    def search_s(self, due: Due) -> float:
        """How long the task at hand may search."""
        finals = math.ceil(due.finals / self._devices)
        kept = finals * (self._beside() + self._finals.seconds)
        return max(0.0, self.left_s - kept) / math.ceil(due.tasks / self._devices)

    def final_s(self, due: Due) -> float:
        """How long the final at hand may time: as the settings have it while there is time."""
        each = self.left_s / math.ceil(due.finals / self._devices) - self._beside()
        return min(self._finals.seconds, max(self._settings.least_final_s, each))

    def allows_another(self, due: Due, seconds: float) -> bool:
        """Whether a final of ``seconds`` may be repeated without taking the time of those to come."""
        later = math.ceil(due.finals / self._devices) - 1
        return self.left_s > seconds + later * (self._beside() + self._finals.seconds)

    def trial_s(self, longest_s: float, end: float, *, needed: bool) -> float:
        """How long a trial may take that would be given ``longest_s`` if there were no end of searching, at ``end``
        by the clock. One that is ``needed``, and one that begins shortly before the end, get a little more."""
        least = self._settings.least_trial_s if needed else self._settings.overdraw_share * self._budget_s
        return min(longest_s, max(least, end - self.clock()))

    def _beside(self) -> float:
        """What a final takes beside timing, in seconds."""
        with self._lock:
            return self._beside_s / self._held if self._held else self._settings.beside_final_s
