"""The dashboard: pages made on the server, readable with no script."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request, Response
from jinja2 import Environment as Templates
from jinja2 import FileSystemLoader, StrictUndefined, select_autoescape
from starlette.responses import HTMLResponse

from tunedex.api import views
from tunedex.api.answers import Held, check_device
from tunedex.api.middleware import DOCS_CONTENT_POLICY
from tunedex.api.openapi import version
from tunedex.api.problem_json import KINDS, ErrorDocument
from tunedex.api.replies import strict_query
from tunedex.api.schemas import Strict, Text
from tunedex.api.state import State, state_of
from tunedex.core.channel import Channel
from tunedex.core.device import Device
from tunedex.core.errors import UnknownDevice

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[Depends(strict_query)])

_templates = Templates(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(default=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals["version"] = version()
_templates.filters.update(views.FILTERS)


class DeviceQuery(Strict):
    channel: Channel = Channel.STABLE
    kernel: Text | None = None
    page: Annotated[int, Query(ge=1, le=10**6)] = 1


def render(template: str, values: Mapping[str, Any], status: int = 200) -> Response:
    """The page that ``template`` makes of ``values``."""
    return HTMLResponse(_templates.get_template(template).render(values), status)


@router.get("/")
async def devices(request: Request) -> Response:
    """Every device, with what was tuned on it and by how much it got faster."""
    state = state_of(request)
    summaries = await run_sync(state.store.devices)
    lines = [
        views.device_line(summary, (await state.answers.snapshot(summary.device.key)).snapshot)
        for summary in sorted(summaries, key=lambda summary: (summary.device.kind == "cpu", summary.device.key))
    ]
    return render("devices.html", {"lines": lines})


@router.get("/devices/{key:path}")
async def device(request: Request, key: str, query: Annotated[DeviceQuery, Query()]) -> Response:
    """The best config of every problem on one device."""
    state = state_of(request)
    known = await _known_device(state, key)
    held = await state.answers.snapshot(key, query.channel)
    other = await _other_channel(state, key, query.channel, held)
    lines = views.best_lines(held.snapshot, query.kernel)
    rows = state.settings.page_rows
    pages = max(1, -(-len(lines) // rows))
    page = min(query.page, pages)
    shown = lines[(page - 1) * rows : page * rows]
    environments = await run_sync(state.store.environments, sorted({line.row.environment for line in shown}))
    values = {
        "device": known,
        "snapshot": held.snapshot,
        "other": other,
        "kernels": sorted({problem.kernel for problem in held.snapshot.problems.values()}),
        "kernel": query.kernel,
        "lines": shown,
        "total": len(lines),
        "page": page,
        "pages": pages,
        "environments": environments,
    }
    return render("device.html", values)


async def _known_device(state: State, key: str) -> Device:
    """The device ``key`` as the store knows it.

    Raises:
        UnknownDevice: the store does not know it.
    """
    check_device(key)
    known = await run_sync(state.store.device, key)
    if known is None:
        raise UnknownDevice(f"device {key!r} was never measured; the start page lists those that were", field="device")
    return known


async def _other_channel(state: State, key: str, channel: Channel, held: Held) -> tuple[str, int] | None:
    """The other channel and its revision, where it points elsewhere."""
    name = Channel.CANDIDATE if channel is Channel.STABLE else Channel.STABLE
    revision = (await state.answers.snapshot(key, name)).snapshot.revision
    return None if revision == held.snapshot.revision else (name, revision)


@router.get("/problems")
async def kinds(request: Request) -> Response:
    """What the ``type`` of problem details points to."""
    return render("problems.html", {"kinds": KINDS.values()})


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The OpenAPI document in Swagger UI; every file of it comes from this server."""
    page = render("docs.html", {})
    page.headers["content-security-policy"] = DOCS_CONTENT_POLICY
    return page


def wants_page(request: Request) -> bool:
    """Whether a browser asks for a page: outside ``/v1/``, with HTML named before JSON."""
    accepted = request.headers.get("accept", "")
    return not request.url.path.startswith("/v1/") and accepted.lstrip().startswith("text/html")


def error_page(request: Request, document: ErrorDocument) -> Response:
    """Problem details as a page."""
    values = {"document": document.to_dict(), "phrase": HTTPStatus(document.status).phrase}
    page = render("error.html", values, document.status)
    page.headers.update(document.headers)
    return page
