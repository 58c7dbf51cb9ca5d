"""`/v1/misses`: problems that were asked for and had no exact answer."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request, Response

from tunedex.api import questions
from tunedex.api.answers import check_device
from tunedex.api.problem_json import MAX_ERRORS, Refused
from tunedex.api.replies import json_body, json_reply, strict_query
from tunedex.api.routes.lists import page_reply
from tunedex.api.schemas import MAX_COUNT, Accepted, ListReply, MissesQuery, MissReport
from tunedex.api.state import state_of
from tunedex.core.errors import BadInput
from tunedex.core.problem import Problem
from tunedex.core.question import with_work
from tunedex.core.signature import Signature, whole_number
from tunedex.db import documents

router = APIRouter(tags=["misses"], dependencies=[Depends(strict_query)])


def from_this_host(request: Request) -> None:
    """A dependency of the routes that write: there are no keys yet, so only this host may.

    Raises:
        Refused: the request comes from elsewhere, or from nowhere that is known.
    """
    host = request.client.host if request.client else ""
    if not is_loopback(host):
        raise Refused("writes-refused", f"writing is refused from {host or 'an unknown address'}")


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of the loopback interface, IPv4 written inside IPv6 too."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


@router.get("/v1/misses", summary="Problems with no exact answer", responses={200: {"model": ListReply}})
async def misses(request: Request, query: Annotated[MissesQuery, Query()]) -> Response:
    """Each with how often it was asked for; those still in memory are written first."""
    state = state_of(request)
    await state.misses.flush()
    page = await run_sync(lambda: state.store.list_misses(**query.model_dump()))
    return page_reply(page, documents.miss_document)


@router.post(
    "/v1/misses",
    status_code=202,
    summary="Report misses",
    responses={202: {"model": Accepted}},
    dependencies=[Depends(from_this_host), Depends(json_body)],
)
async def report(request: Request, body: MissReport) -> Response:
    """Each miss is taken or refused by itself, and those taken are written within seconds. One that this server does
    not know, such as of a kernel that is installed at the client alone, does not cost the others."""
    state = state_of(request)
    if len(body.misses) > state.settings.items:
        raise BadInput(f"misses has {len(body.misses)} items; at most {state.settings.items}", field="misses")
    device = check_device(body.device).key
    counts, errors = _counts(await state.answers.signatures(), body.misses)
    if not counts:
        raise Refused("bad-input", f"{errors[0]['field']}: {errors[0]['detail']}", errors)
    if not state.misses.room(len(counts)):
        raise Refused("too-many-misses", f"{state.settings.held_misses} misses wait to be written already")
    for problem, times in counts:
        state.misses.count(device, problem, times)
    return json_reply({"accepted": len(counts), "errors": errors[:MAX_ERRORS]}, 202)


def _counts(
    signatures: Mapping[str, Signature], misses: list[Any]
) -> tuple[list[tuple[Problem, int]], list[dict[str, str]]]:
    """The problems of a report with their counts, and what is wrong with the others, by field."""
    counts: list[tuple[Problem, int]] = []
    errors: list[dict[str, str]] = []
    for number, miss in enumerate(misses):
        try:
            counts.append(_count(signatures, miss))
        except BadInput as error:
            field = f"misses.{number}" + (f".{error.field}" if error.field else "")
            errors.append({"field": field, "detail": str(error)})
    return counts, errors


def _count(signatures: Mapping[str, Signature], miss: object) -> tuple[Problem, int]:
    if not isinstance(miss, Mapping):
        raise BadInput("a miss is an object with a kernel, dims and a count")
    given = dict(miss)
    times = whole_number("count", given.pop("count", 1))
    if not 1 <= times <= MAX_COUNT:
        raise BadInput(f"count={times} is not from 1 to {MAX_COUNT}", field="count")
    kernel = questions.kernel_of(given)
    if kernel not in signatures:
        raise BadInput(f"kernel {kernel!r} is unknown; known are {', '.join(sorted(signatures))}", field="kernel")
    signature = signatures[kernel]
    return with_work(signature.problem(questions.flatten(signature, given))), times
