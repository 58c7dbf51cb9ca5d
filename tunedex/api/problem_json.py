"""Errors as the server tells them: problem details (RFC 9457), one document for every error of every route."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tunedex.core.errors import (
    BadInput,
    CannotRun,
    DatabaseError,
    UnknownDevice,
    UnknownKernel,
    UnknownRevision,
    UnknownSweep,
)

MEDIA_TYPE = "application/problem+json"

#: The page that explains every kind; a document's ``type`` points into it.
KINDS_PATH = "/problems"

#: What a caller sent comes back inside ``detail``, so its length is bounded.
MAX_DETAIL = 500
MAX_ERRORS = 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ErrorKind:
    """A kind of error: its name, status, title, and what to do about it."""

    name: str
    status: int
    title: str
    remedy: str


KINDS: dict[str, ErrorKind] = {
    kind.name: kind
    for kind in (
        ErrorKind(
            "bad-input",
            422,
            "A parameter is wrong",
            "The detail names the parameter and what it takes; errors lists each by field.",
        ),
        ErrorKind(
            "malformed-body",
            400,
            "The body is not JSON",
            "Send one JSON object, encoded as UTF-8.",
        ),
        ErrorKind(
            "unknown-kernel",
            404,
            "No kernel has this name",
            "GET /v1/kernels lists those that are known.",
        ),
        ErrorKind(
            "unknown-device",
            404,
            "No device has this key",
            "GET /v1/devices lists those that are known; tuner devices prints your own.",
        ),
        ErrorKind(
            "unknown-revision",
            404,
            "No published revision has this number",
            "GET /v1/snapshot without a revision tells the current one.",
        ),
        ErrorKind(
            "unknown-sweep",
            404,
            "No sweep has this number",
            "GET /v1/sweeps lists those that are known.",
        ),
        ErrorKind(
            "writes-refused",
            403,
            "Writing is refused from another host",
            "Report misses from the host that the server runs on.",
        ),
        ErrorKind("too-large", 413, "The body is too large", "Split the request into several."),
        ErrorKind("not-json", 415, "The body's media type is not JSON", "Send Content-Type: application/json."),
        ErrorKind(
            "database-away",
            503,
            "The database does not answer",
            "Try again after the seconds in Retry-After; the server's log holds the reason.",
        ),
        ErrorKind(
            "too-many-misses",
            503,
            "Too many misses wait to be written",
            "Report them again after the seconds in Retry-After.",
        ),
        ErrorKind("internal", 500, "The server failed", "The fault is the server's; its log holds the reason."),
    )
}


@dataclass(frozen=True)
class ErrorDocument:
    """One problem-details document. ``kind`` is a name of `KINDS`, or "" where the status says all."""

    status: int
    detail: str
    instance: str
    kind: str = ""
    errors: Sequence[Mapping[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        known = KINDS.get(self.kind)
        document: dict[str, Any] = {
            "type": f"{KINDS_PATH}#{self.kind}" if known else "about:blank",
            "title": known.title if known else HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": _short(self.detail),
            "instance": self.instance,
        }
        if self.errors:
            document["errors"] = [{name: _short(text) for name, text in e.items()} for e in self.errors[:MAX_ERRORS]]
        return document

    def response(self) -> Response:
        # Escaped to ASCII: a caller's text may hold a lone surrogate, which UTF-8 cannot carry.
        body = json.dumps(self.to_dict(), allow_nan=False).encode("ascii")
        return Response(body, self.status, dict(self.headers), MEDIA_TYPE)


class Refused(Exception):
    """A request that a kind of `KINDS` names, where no error of `tunedex.core.errors` fits."""

    def __init__(self, kind: str, detail: str, errors: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(detail)
        self.kind = kind
        self.errors = errors


def document_of(error: Exception, instance: str, *, retry_after_s: int = 1) -> ErrorDocument:
    """The document that tells ``error``. What is not the caller's fault is logged, and its text stays in the log."""
    retry = {"Retry-After": str(retry_after_s)}
    match error:
        case Refused():
            kind = KINDS[error.kind]
            headers = retry if kind.status == 503 else {}
            return ErrorDocument(kind.status, str(error), instance, kind.name, error.errors, headers)
        case BadInput():
            kind = KINDS[_KIND_OF.get(type(error), "bad-input")]
            errors = [{"field": error.field, "detail": str(error)}] if error.field else []
            return ErrorDocument(kind.status, str(error), instance, kind.name, errors)
        case DatabaseError() | CannotRun():
            _log.error("%s: %s", instance, error)
            return ErrorDocument(503, KINDS["database-away"].title, instance, "database-away", headers=retry)
        case RequestValidationError():
            return _invalid(error, instance)
        case HTTPException():
            return _http(error, instance)
        case _:
            _log.error("%s failed", instance, exc_info=error)
            return ErrorDocument(500, KINDS["internal"].title, instance, "internal")


_KIND_OF: dict[type[Exception], str] = {
    UnknownKernel: "unknown-kernel",
    UnknownDevice: "unknown-device",
    UnknownRevision: "unknown-revision",
    UnknownSweep: "unknown-sweep",
}


def _invalid(error: RequestValidationError, instance: str) -> ErrorDocument:
    """What the models of a route refuse: the first fault in words, all of them by field."""
    faults = error.errors()
    if any(fault["type"] == "json_invalid" for fault in faults):
        return ErrorDocument(400, "the body is not JSON", instance, "malformed-body")
    errors = [{"field": ".".join(str(part) for part in f["loc"][1:]), "detail": str(f["msg"])} for f in faults]
    first = errors[0]
    detail = f"{first['field']}: {first['detail']}" if first["field"] else first["detail"]
    return ErrorDocument(422, detail, instance, "bad-input", errors)


def _http(error: HTTPException, instance: str) -> ErrorDocument:
    """What the router itself refuses: no such path, no such method, a body that is not text."""
    headers = dict(error.headers or {})
    if isinstance(error.__cause__, Refused):  # raised while the body was read
        return document_of(error.__cause__, instance)
    if error.status_code == 400:
        return ErrorDocument(400, "the body is not JSON", instance, "malformed-body", headers=headers)
    if error.status_code == 404:
        return ErrorDocument(404, f"nothing is at {instance}", instance, headers=headers)
    if error.status_code == 405:
        allowed = headers.get("allow") or headers.get("Allow") or "another method"
        return ErrorDocument(405, f"{instance} takes {allowed}", instance, headers=headers)
    return ErrorDocument(error.status_code, str(error.detail), instance, headers=headers)


def _short(text: str) -> str:
    return text if len(text) <= MAX_DETAIL else f"{text[: MAX_DETAIL - 1]}…"
