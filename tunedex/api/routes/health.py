"""`/healthz`, `/readyz`, `/metrics`: for whoever keeps the server running."""

from __future__ import annotations

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response

from tunedex.api.metrics import MEDIA_TYPE
from tunedex.api.replies import json_reply
from tunedex.api.state import State, state_of
from tunedex.core.channel import Channel
from tunedex.core.errors import DatabaseError

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Whether the process answers")
async def healthz() -> Response:
    """Touches nothing: a server whose database is away is alive."""
    return json_reply({"status": "ok"})


@router.get("/readyz", summary="Whether the database can be read")
async def readyz(request: Request) -> Response:
    """503 where the database does not answer or its schema is not the one that this version reads."""
    await run_sync(state_of(request).store.check)
    return json_reply({"status": "ok"})


@router.get("/metrics", summary="Counters for Prometheus", response_class=Response)
async def metrics(request: Request) -> Response:
    """In Prometheus's text format."""
    state = state_of(request)
    state.metrics.revisions(await run_sync(_newest, state))
    return Response(state.metrics.text(), media_type=MEDIA_TYPE)


def _newest(state: State) -> dict[str, int] | None:
    """The newest revision that each channel offers on any device; None where the database does not answer."""
    try:
        keys = [summary.device.key for summary in state.store.devices()]
        return {c: max((state.store.current_revision(key, c) for key in keys), default=0) for c in Channel}
    except DatabaseError:
        return None
