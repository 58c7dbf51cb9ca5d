"""Misses on their way to the database: counted in memory, written in batches, never in a request's way."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping

from anyio.to_thread import run_sync

from tunedex.api.metrics import Metrics
from tunedex.api.settings import Settings
from tunedex.core.errors import BadInput, TunedexError
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
        self._flushing: set[asyncio.Task[None]] = set()

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
        """Write what is held; what cannot be written now is held on, and the reason logged.

        Where the caller is cancelled, what was begun goes on to its end, and the next flush waits for it: a write runs
        in a thread, and nobody would know whether it was done.
        """
        flushing = asyncio.create_task(self._flush())
        self._flushing.add(flushing)
        flushing.add_done_callback(self._flushing.discard)
        await asyncio.shield(flushing)

    async def _flush(self) -> None:
        async with self._writing:
            taken, self._held = self._held, {}
            waiting: dict[str, dict[Problem, int]] = defaultdict(dict)
            for (device, problem), times in taken.items():
                waiting[device][problem] = times
            try:
                for device in list(waiting):
                    if await self._settled(device, waiting[device]):
                        del waiting[device]
            finally:
                for device, counts in waiting.items():
                    for problem, times in counts.items():
                        self.count(device, problem, times)

    async def _settled(self, device: str, counts: Mapping[Problem, int]) -> bool:
        """Write the misses of one device; False where another try may succeed."""
        try:
            await run_sync(self._store.add_misses, device, counts)
        except BadInput as error:  # the next try would fail alike, and they would take the room of others for ever
            _log.error("%d misses of %s are dropped: %s", len(counts), device, error)
            self._metrics.dropped(sum(counts.values()))
        except TunedexError as error:
            _log.warning("%d misses of %s wait: %s", len(counts), device, error)
            return False
        return True

    async def run(self) -> None:
        """Flush every `Settings.flush_s` until cancelled; no failure ends it."""
        while True:
            await asyncio.sleep(self._settings.flush_s)
            try:
                await self.flush()
            except Exception:  # noqa: BLE001 - flushing goes on, and the log has the fault
                _log.exception("misses wait: writing them failed")
