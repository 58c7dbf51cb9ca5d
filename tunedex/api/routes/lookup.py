"""`/v1/lookup`, `/v1/lookup:batch` and `/v1/recommend`: the best config for a problem, for many, and for a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from tunedex.api import questions
from tunedex.api.answers import Held
from tunedex.api.problem_json import document_of
from tunedex.api.replies import flat_parameters, json_body, json_reply, strict_query
from tunedex.api.schemas import AnswerDocument, BatchReply, BatchRequest, RecommendationDocument
from tunedex.api.state import State, state_of
from tunedex.core.channel import Channel
from tunedex.core.errors import BadInput
from tunedex.core.limits import Objective
from tunedex.core.signature import whole_number

router = APIRouter(tags=["lookup"])


def _parameter(name: str, meaning: str, schema: Mapping[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "description": meaning, "schema": dict(schema)}


_TEXT = {"type": "string"}
_PARAMETERS = [
    _parameter("kernel", "A kernel's name; `/v1/kernels` lists them.", _TEXT, required=True),
    _parameter("device", "A device's key; `tuner devices` prints yours.", _TEXT, required=True),
    {
        "name": "problem",
        "in": "query",
        "description": "The kernel's dimensions and attributes, each a parameter of its own: `rows=4224&cols=3840`. "
        "`X_dtype` sets the dtype of operand X.",
        "style": "form",
        "explode": True,
        "schema": {"type": "object", "additionalProperties": _TEXT},
        "example": {"rows": "1024", "cols": "3840"},
    },
    _parameter("dtype", "The dtype of every operand, as torch spells it.", _TEXT),
    _parameter("layout", "contiguous, channels_last or strided.", _TEXT),
    _parameter("alignment", "Bytes: 1, 2, 4, 8 or 16.", {"type": "integer"}),
    _parameter("objective", "What to have least of.", {"type": "string", "enum": [o.value for o in Objective]}),
    _parameter("max_error", "Relative L2 error against float64; left out: lossless.", {"type": "number"}),
    _parameter("max_latency_us", "Microseconds.", {"type": "number"}),
    _parameter("max_memory", "Bytes beyond operands and outputs.", {"type": "integer"}),
    _parameter("policy", "How the caller launches.", {"type": "string", "enum": ["eager", "graph"]}),
    _parameter("same_bits", "An output hash: only configs that give these bits.", _TEXT),
    _parameter("channel", "What to read.", {"type": "string", "enum": [c.value for c in Channel]}),
    _parameter("revision", "Pin a revision instead of the channel's current one.", {"type": "integer"}),
]


@router.get(
    "/v1/lookup",
    summary="The best config for one problem",
    responses={200: {"model": AnswerDocument}},
    openapi_extra={"parameters": _PARAMETERS},
)
async def lookup(request: Request) -> Response:
    """Answers 200 for every problem that a known kernel takes: with its best config, else with the default and why."""
    state = state_of(request)
    return json_reply(questions.answer(state, *await _asked(state, request)).to_dict())


@router.get(
    "/v1/recommend",
    summary="The batch to run, and the best config for it",
    responses={200: {"model": RecommendationDocument}},
    openapi_extra={"parameters": _PARAMETERS},
)
async def recommend(request: Request) -> Response:
    """For whoever may choose the batch: the problem is that of one item, and the batch is left out. Answers 200 as a
    lookup does; where no tuned batch serves, with the default for one item and why."""
    state = state_of(request)
    return json_reply(questions.recommendation(state, *await _asked(state, request)).to_dict())


_ADDRESS = frozenset({"kernel", "device", "channel", "revision"})


async def _asked(state: State, request: Request) -> tuple[Held, str, dict[str, str]]:
    """The snapshot that ``device``, ``channel`` and ``revision`` name, the kernel, and the other parameters.

    Raises:
        BadInput: a parameter is given twice, or one of these is missing or wrong.
        UnknownRevision: the revision is newer than any published.
        DatabaseError: the database does not answer, and no such snapshot is held.
    """
    parameters = flat_parameters(request)
    kernel = questions.kernel_of(parameters)
    if not parameters.get("device"):
        raise BadInput("device is missing; it would be a device's key (`tuner devices` prints yours)", field="device")
    revision = parameters.get("revision")
    held = await state.answers.snapshot(
        parameters["device"],
        parameters.get("channel", Channel.STABLE),
        None if revision is None else whole_number("revision", revision),
    )
    return held, kernel, {name: value for name, value in parameters.items() if name not in _ADDRESS}


@router.post(
    "/v1/lookup:batch",
    summary="The best configs for many problems on one device",
    responses={200: {"model": BatchReply}},
    dependencies=[Depends(strict_query), Depends(json_body)],
    openapi_extra={
        "requestBody": {
            "content": {
                "application/json": {
                    "example": {
                        "device": "nvidia-sm90-132sm-l2_60m-smem_227k-mem_140g",
                        "queries": [
                            {"kernel": "softmax", "dims": {"rows": 4224, "cols": 4224}, "dtype": "bfloat16"},
                        ],
                    }
                }
            }
        }
    },
)
async def lookup_batch(request: Request, body: BatchRequest) -> Response:
    """Items come in the order of the queries. A query that is wrong gets problem details; the others are answered."""
    state = state_of(request)
    if len(body.queries) > state.settings.items:
        raise BadInput(f"queries has {len(body.queries)} items; at most {state.settings.items}", field="queries")
    held = await state.answers.snapshot(body.device, body.channel, body.revision)
    return json_reply({"items": [_item(state, held, query, number) for number, query in enumerate(body.queries)]})


def _item(state: State, held: Held, query: object, number: int) -> dict[str, Any]:
    try:
        if not isinstance(query, Mapping):
            raise BadInput("a query is an object with a kernel and dims", field="queries")
        kernel = questions.kernel_of(query)
        parameters = questions.flatten(held.snapshot.signature(kernel), query)
        return questions.answer(state, held, kernel, parameters).to_dict()
    except BadInput as error:
        return document_of(error, f"/v1/lookup:batch#/queries/{number}").to_dict()
