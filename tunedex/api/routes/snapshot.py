"""`/v1/snapshot`: every answer for one device, as a client holds it."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request, Response

from tunedex.api.replies import strict_query
from tunedex.api.schemas import Id, Strict, Text
from tunedex.api.state import state_of
from tunedex.core.channel import Channel

router = APIRouter(tags=["snapshot"])

_ZIPPED = "-gzip"


class SnapshotQuery(Strict):
    """``since`` is the entity tag of the copy that the caller holds, for whoever cannot send `If-None-Match`. The
    number of a revision is no tag: it does not tell what is in the copy."""

    device: Text
    channel: Channel = Channel.STABLE
    revision: Id | None = None
    since: Text | None = None


@router.get(
    "/v1/snapshot",
    summary="Every answer for one device",
    dependencies=[Depends(strict_query)],
    responses={200: {"content": {"application/json": {}}}, 304: {"description": "The caller's copy is current."}},
)
async def snapshot(request: Request, query: Annotated[SnapshotQuery, Query()]) -> Response:
    """The entity tag is strong: it is a hash of the document."""
    held = await state_of(request).answers.snapshot(query.device, query.channel, query.revision)
    tag = await run_sync(lambda: held.tag)
    zipped = _takes_gzip(request.headers.get("accept-encoding", ""))
    # The two encodings differ in their bytes, so a strong tag tells them apart.
    headers = {
        "ETag": f'"{tag}{_ZIPPED if zipped else ""}"',
        "Cache-Control": "no-cache",
        "Vary": "Accept-Encoding",
        "Tunedex-Revision": str(held.snapshot.revision),
    }
    if tag in (given := _tags(f"{request.headers.get('if-none-match', '')},{query.since or ''}")) or "*" in given:
        return Response(status_code=304, headers=headers)
    if zipped:
        headers["Content-Encoding"] = "gzip"
    body = await run_sync(lambda: held.zipped if zipped else held.body)
    return Response(body, 200, headers, "application/json")


def _tags(given: str) -> list[str]:
    """The entity tags in a list of them, without quotes and whatever the encoding."""
    return [tag.strip().removeprefix("W/").strip('"').removesuffix(_ZIPPED) for tag in given.split(",")]


def _takes_gzip(accept_encoding: str) -> bool:
    """Whether ``Accept-Encoding`` takes gzip by name or by ``*``, with a weight above 0."""
    weights: dict[str, float] = {}
    for part in accept_encoding.lower().split(","):
        name, _, parameter = part.partition(";")
        text = parameter.strip().removeprefix("q=") if parameter else "1"
        try:
            weights[name.strip()] = float(text)
        except ValueError:
            weights[name.strip()] = 0.0
    return weights.get("gzip", weights.get("*", 0.0)) > 0
