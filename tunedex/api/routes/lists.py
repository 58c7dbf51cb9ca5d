"""`/v1/devices`, `/v1/kernels`, `/v1/bests`, `/v1/trials`, `/v1/sweeps`: what the database holds, page by page; and
`/v1/sweeps/NUMBER/curves`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from tunedex.api.replies import json_reply, strict_query
from tunedex.api.schemas import BestsQuery, CurvesReply, ListReply, Paging, SweepsQuery, TrialsQuery
from tunedex.api.state import state_of
from tunedex.core.canonical import MAX_INT
from tunedex.db import Store, documents
from tunedex.db.documents import Environments
from tunedex.db.records import Page

router = APIRouter(tags=["lists"], dependencies=[Depends(strict_query)], responses={200: {"model": ListReply}})

T = TypeVar("T")


def page_reply(page: Page[T], document: Callable[[T], dict[str, Any]]) -> Response:
    """A page of a list, each item by ``document``."""
    return json_reply({"items": [document(item) for item in page.items], "next": page.next})


def _measured(
    store: Store, page: Page[T], environment: Callable[[T], str], document: Callable[[T, Environments], dict[str, Any]]
) -> Response:
    """A page of what was measured, with the environment of each item."""
    environments = store.environments(sorted({environment(item) for item in page.items}))
    return page_reply(page, lambda item: document(item, environments))


def named_page(items: list[dict[str, Any]], name: str, query: Paging) -> Response:
    """A page of a short list that is held whole, in the order of the member ``name``."""
    following = sorted(
        (item for item in items if query.after is None or item[name] > query.after), key=lambda i: i[name]
    )
    shown = following[: query.limit]
    more = len(following) > len(shown)
    return json_reply({"items": shown, "next": shown[-1][name] if more else None})


@router.get("/v1/devices", summary="The devices that were measured")
async def devices(request: Request, query: Annotated[Paging, Query()]) -> Response:
    """Identity and limits of each, with what was tuned on it."""
    summaries = await run_sync(state_of(request).store.devices)
    return named_page([documents.device_document(summary) for summary in summaries], "key", query)


@router.get("/v1/kernels", summary="The kernels that can be asked for")
async def kernels(request: Request, query: Annotated[Paging, Query()]) -> Response:
    """The signature of each: formula, dimensions, operands, attributes, layouts, default configs."""
    signatures = await state_of(request).answers.signatures()
    return named_page([s.to_dict() for s in signatures.values()], "kernel", query)


@router.get("/v1/bests", summary="The best config of each problem")
async def bests(request: Request, query: Annotated[BestsQuery, Query()]) -> Response:
    """What a channel offers now, the best of each problem."""
    store = state_of(request).store

    def read() -> Response:
        page = store.list_bests(**query.model_dump())
        return _measured(store, page, lambda best: best.row.environment, documents.best_document)

    return await run_sync(read)


@router.get("/v1/trials", summary="Every config tried")
async def trials(request: Request, query: Annotated[TrialsQuery, Query()]) -> Response:
    """Measurements and failures, newest first."""
    store = state_of(request).store

    def read() -> Response:
        page = store.list_trials(**query.model_dump())
        return _measured(store, page, lambda trial: trial.environment, documents.trial_document)

    return await run_sync(read)


@router.get("/v1/sweeps", summary="Every sweep")
async def sweeps(request: Request, query: Annotated[SweepsQuery, Query()]) -> Response:
    """Newest first, with the options each ran under."""
    store = state_of(request).store

    def read() -> Response:
        page = store.list_sweeps(**query.model_dump())
        return _measured(store, page, lambda sweep: sweep.environment, documents.sweep_document)

    return await run_sync(read)


@router.get(
    "/v1/sweeps/{number}/curves",
    summary="How fast a sweep came to its best",
    responses={200: {"model": CurvesReply}},
)
async def curves(request: Request, number: Annotated[int, Path(ge=1, le=MAX_INT)]) -> Response:
    """The best time so far of each problem, against trials and seconds; a point wherever it fell."""
    found = await run_sync(state_of(request).store.curves, number)
    return json_reply({"sweep": number, "curves": [documents.curve_document(curve) for curve in found]})
