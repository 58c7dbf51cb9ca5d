"""What every request and every reply goes through, as plain ASGI: bounds, headers, counting, and the last resort."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tunedex.api.metrics import Metrics
from tunedex.api.problem_json import Refused, document_of
from tunedex.api.settings import Settings

#: Pages load their own style sheet and nothing else; no page has a script of its own.
CONTENT_POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
#: Swagger UI sets style attributes and has its icons inside its style sheet.
DOCS_CONTENT_POLICY = f"{CONTENT_POLICY}; style-src 'self' 'unsafe-inline'; img-src 'self' data:"

_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Gate:
    """The outermost layer of the app.

    It answers HEAD as GET without the body, refuses a body over `Settings.body_bytes`, adds the security headers that
    a reply does not set itself, counts and times the request, and turns an exception that nothing else took into a 500
    that tells nothing of it.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        reply = _Reply(send, bodiless=method == "HEAD")
        inner = {**scope, "method": "GET"} if method == "HEAD" else dict(scope)
        started = time.perf_counter()
        try:
            self._check_length(Headers(scope=scope))
            await self._app(inner, _bounded(receive, self._settings.body_bytes), reply)
        except Exception as error:  # noqa: BLE001 - the last resort: whatever it is, the caller gets a document
            document = document_of(error, scope["path"], retry_after_s=self._settings.retry_after_s)
            if reply.status is None:
                await document.response()(inner, receive, reply)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.request(method, _template(inner), reply.status or 500, seconds)

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > self._settings.body_bytes:
            raise _too_large(self._settings.body_bytes)


class _Reply:
    """Sends a reply on, with the headers added, and remembers its status."""

    def __init__(self, send: Send, *, bodiless: bool) -> None:
        self._send = send
        self._bodiless = bodiless
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        elif message["type"] == "http.response.body" and self._bodiless:
            message = {**message, "body": b""}
        await self._send(message)


def _bounded(receive: Receive, limit: int) -> Receive:
    """``receive`` that refuses a body over ``limit`` bytes, for one sent in chunks with no length."""
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise _too_large(limit)
        return message

    return bounded


def _too_large(limit: int) -> Refused:
    return Refused("too-large", f"the body is over {limit} bytes")


def _template(scope: MutableMapping[str, Any]) -> str | None:
    """The path of the route that took the request, with its parameters by name."""
    route = scope.get("route")
    return getattr(route, "path", None)
