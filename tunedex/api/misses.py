"""Misses on their way to the database: counted in memory, written in batches, never in a request's way."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping

from anyio.to_thread import run_sync

from tunedex.api.metrics import Metrics
from tunedex.api.settings import Settings
from tunedex.core.errors import DatabaseError
from tunedex.core.problem import Problem
from tunedex.db import Store

_log = logging.getLogger(__name__)


class Misses:
    """Counts problems by device, at most `Settings.held_misses` different ones; lives on one event loop."""

    def __init__(self, store: Store, settings: Settings, metrics: Metrics) -> None:
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._held: dict[tuple[str, Problem], int] = {}
        self._writing = asyncio.Lock()

    def count(self, device: str, problem: Problem, times: int = 1) -> bool:
        """Count ``problem`` as asked for ``times`` times; False where there is no room for another one."""
        key = (device, problem)
        if key not in self._held and len(self._held) >= self._settings.held_misses:
            self._metrics.dropped(times)
            return False
        self._held[key] = self._held.get(key, 0) + times
        return True

    def room(self, count: int) -> bool:
        """Whether ``count`` different problems more can be held."""
        return len(self._held) + count <= self._settings.held_misses

    async def flush(self) -> None:
        """Write what is held. Where the database does not answer, it is held on, and the reason logged."""
        async with self._writing:
            taken, self._held = self._held, {}
            by_device: dict[str, dict[Problem, int]] = defaultdict(dict)
            for (device, problem), times in taken.items():
                by_device[device][problem] = times
            for device, counts in by_device.items():
                await self._write(device, counts)

    async def _write(self, device: str, counts: Mapping[Problem, int]) -> None:
        try:
            await run_sync(self._store.add_misses, device, counts)
        except DatabaseError as error:
            _log.warning("%d misses of %s wait: %s", len(counts), device, error)
            for problem, times in counts.items():
                self.count(device, problem, times)

    async def run(self) -> None:
        """Flush every `Settings.flush_s` until cancelled."""
        while True:
            await asyncio.sleep(self._settings.flush_s)
            await self.flush()
