"""The app: its life, its routes, and how an error becomes a reply."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

from tunedex.api import openapi, pages
from tunedex.api.metrics import Metrics
from tunedex.api.middleware import Gate
from tunedex.api.problem_json import Refused, document_of
from tunedex.api.routes import health, lists, lookup, misses, snapshot
from tunedex.api.settings import Settings
from tunedex.api.state import opened
from tunedex.core.errors import TunedexError

STATIC = Path(__file__).parent / "static"


def create_app(url: str | None = None, settings: Settings | None = None) -> FastAPI:
    """The server on the database at ``url`` (None: ``TUNEDEX_DB``, else the user's own file).

    The database is opened when the app starts, where `BadInput` and `DatabaseError` are raised, and closed when it
    ends. Every app has its own counters and its own snapshots.
    """
    settings = settings or Settings()
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opened(url, settings, metrics) as state:
            app.state.tunedex = state
            yield

    app = openapi.Documented(
        title="Tunedex",
        summary="The fastest correct config of every kernel, for the device that asks.",
        version=openapi.version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for error in (TunedexError, Refused, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _refuse)
    app.add_middleware(Gate, settings=settings, metrics=metrics)
    for routes in (lookup, snapshot, lists, misses, health):
        app.include_router(routes.router)
    app.include_router(pages.router)
    app.mount("/static/docs", StaticFiles(directory=swagger_ui_path), name="docs-static")
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    """Problem details, or for a browser that asks for a page, the same as a page."""
    settings: Settings = request.app.state.tunedex.settings
    document = document_of(error, request.url.path, retry_after_s=settings.retry_after_s)
    return pages.error_page(request, document) if pages.wants_page(request) else document.response()
