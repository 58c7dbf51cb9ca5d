"""What the routes of one running app share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from anyio.to_thread import run_sync
from starlette.requests import Request

from tunedex.api.answers import Answers
from tunedex.api.metrics import Metrics
from tunedex.api.misses import Misses
from tunedex.api.settings import Settings
from tunedex.core.catalog import builtin_signatures
from tunedex.core.signature import Signature
from tunedex.db import Store, open_store


@dataclass(frozen=True)
class State:
    """One store and what is held in front of it, from the app's start to its end."""

    store: Store
    answers: Answers
    misses: Misses
    metrics: Metrics
    settings: Settings


@asynccontextmanager
async def opened(url: str | None, settings: Settings, metrics: Metrics) -> AsyncIterator[State]:
    """Open the store at ``url`` and write misses in the background; at the end, write the last ones and close it.

    Raises:
        BadInput: ``url`` is no database URL.
        DatabaseError: the database cannot be opened.
    """
    store = await run_sync(open_store, url)
    try:
        builtin: Mapping[str, Signature] = {s.kernel: s for s in builtin_signatures()}
        misses = Misses(store, settings, metrics)
        writer = asyncio.create_task(misses.run())
        try:
            yield State(store, Answers(store, builtin, settings, metrics), misses, metrics, settings)
        finally:
            writer.cancel()
            with suppress(asyncio.CancelledError):
                await writer
            await misses.flush()
    finally:
        await run_sync(store.close)


def state_of(request: Request) -> State:
    """The state of the app that serves ``request``."""
    state: State = request.app.state.tunedex
    return state
