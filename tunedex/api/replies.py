"""Reading a query string strictly, and sending JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from tunedex.api.problem_json import Refused
from tunedex.core.canonical import finite
from tunedex.core.errors import BadInput

MAX_VALUE = 500


def to_json(document: object) -> bytes:
    """Compact JSON in UTF-8; a number that is not finite becomes null."""
    try:
        return _dump(document)
    except ValueError:
        return _dump(finite(document))


def json_reply(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A reply that carries ``document``."""
    return Response(to_json(document), status, dict(headers or {}), "application/json")


def flat_parameters(request: Request) -> dict[str, str]:
    """The query string's parameters by name.

    Raises:
        BadInput: one is given twice, is too long, or holds a control character.
    """
    parameters: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in parameters:
            raise BadInput(f"{name} is given twice", field=name)
        if len(name) > MAX_VALUE or len(value) > MAX_VALUE:
            raise BadInput(f"{name[:40]} is over {MAX_VALUE} characters", field=name[:40])
        if not (name + value).isprintable():
            raise BadInput(f"{ascii(name)[1:-1]} holds a control character", field=ascii(name)[1:-1])
        parameters[name] = value
    return parameters


def strict_query(request: Request) -> None:
    """A dependency of the routes whose parameters a model declares: refuses what `flat_parameters` refuses.

    Raises:
        BadInput: see `flat_parameters`.
    """
    flat_parameters(request)


def json_body(request: Request) -> None:
    """A dependency of the routes that take a body: its media type is JSON.

    A page of another site can make a browser send a form or plain text here, but not JSON.

    Raises:
        Refused: it is not.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise Refused("not-json", f"the body's media type is {media_type or 'not given'}; it must be application/json")


def _dump(document: object) -> bytes:
    # A caller's text may hold a lone surrogate, which UTF-8 cannot carry; it goes out as a question mark.
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", errors="replace")
