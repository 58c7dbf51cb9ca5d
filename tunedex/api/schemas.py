"""The shapes of requests and replies, as the OpenAPI document shows them.

Requests are read through these; replies are written from the core's values and only described here, and a test
holds the two together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tunedex.core.canonical import MAX_INT
from tunedex.core.channel import Channel
from tunedex.core.measurement import FailureKind
from tunedex.db.records import Stage

#: How many queries or misses one request may carry; `Settings.items` bounds it further.
MAX_ITEMS = 1000
#: How often one report may say that a problem was asked for.
MAX_COUNT = 10**9

Text = Annotated[str, Field(max_length=200)]


def _no_truth(value: Any) -> Any:
    """Python counts true as 1, and JSON does not.

    Raises:
        ValueError: ``value`` is one of the two.
    """
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


Id = Annotated[int, BeforeValidator(_no_truth), Field(ge=0, le=MAX_INT)]


class Strict(BaseModel):
    """A request's model: a name that it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid")


class Paging(Strict):
    """``limit`` items at most, those that follow ``after``, which is the ``next`` of the page before."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    after: Text | None = None


class BestsQuery(Paging):
    device: Text | None = None
    kernel: Text | None = None
    channel: Channel = Channel.STABLE


class TrialsQuery(Paging):
    device: Text | None = None
    kernel: Text | None = None
    problem: Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="A problem's key.")] | None = None
    sweep: Id | None = None
    stage: Stage | None = None
    status: Annotated[
        Literal["measured"] | FailureKind | None, Field(description="measured, or the kind of a failure.")
    ] = None


class SweepsQuery(Paging):
    device: Text | None = None


class MissesQuery(Paging):
    device: Text | None = None
    kernel: Text | None = None


class BatchRequest(Strict):
    """Questions about one device. Each of ``queries`` is read as `BatchQuery` says, and answered or refused alone."""

    device: Text
    channel: Channel = Channel.STABLE
    revision: Id | None = None
    queries: Annotated[list[Any], Field(min_length=1, max_length=MAX_ITEMS)]


class BatchQuery(BaseModel):
    """One question: a problem, and limits under the names that ``GET /v1/lookup`` takes."""

    model_config = ConfigDict(extra="allow")

    kernel: str
    dims: dict[str, int]
    attributes: dict[str, str] = {}
    dtypes: dict[str, str] = Field({}, description="The dtype of each operand by name.")
    dtype: str | None = Field(None, description="The dtype of every operand that dtypes leaves out.")
    layout: str = "contiguous"
    alignment: int = 16


class MissReport(Strict):
    """Problems that a client asked for and had no exact answer to; each with ``count``, 1 where it is left out."""

    device: Text
    misses: Annotated[list[Any], Field(min_length=1, max_length=MAX_ITEMS)]


class SourceDocument(Strict):
    device: str | None
    environment: str | None
    kind: Literal["local", "imported", "shipped", "default"]


class AnswerDocument(Strict):
    """The answer to a lookup. Times are in microseconds, ``error`` is a relative L2 error against float64, ``distance``
    is in doublings, and ``expected_loss`` is a share of the best time, null where nothing shows it."""

    config: dict[str, Any] | None
    match: Literal["exact", "near", "family", "default"]
    distance: float | None
    reason: str
    source: SourceDocument
    time_us: float | None
    speedup: float | None
    error: float | None
    channel: str | None
    revision: int | None
    policy: str | None
    expected_loss: float | None


class RecommendationDocument(AnswerDocument):
    """A batch and the answer for it. ``time_us`` is of one call with all its items; ``items_per_s`` is null where the
    answer has no time."""

    batch: int
    items_per_s: float | None


class FieldError(Strict):
    field: str
    detail: str


class ErrorSchema(Strict):
    """Problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[FieldError] = []


class BatchReply(Strict):
    """One item a query, in the order of the queries: its answer, or the problem details of its refusal."""

    items: list[AnswerDocument | ErrorSchema]


class ListReply(Strict):
    """A page of a list; ``next`` is null on the last."""

    items: list[dict[str, Any]]
    next: str | None


class CurvePointDocument(Strict):
    trials: int
    seconds: float
    best_us: float
    config: dict[str, Any]


class CurveDocument(Strict):
    """``trials`` and ``seconds`` are of all that the sweep tried of the problem; a point has those after which the best
    time fell to ``best_us``."""

    problem: dict[str, Any]
    trials: int
    seconds: float
    points: list[CurvePointDocument]


class CurvesReply(Strict):
    """One curve a problem, in the order of their first trials."""

    sweep: int
    curves: list[CurveDocument]


class Accepted(Strict):
    """How many misses of a report were taken, and what was wrong with the others."""

    accepted: int
    errors: list[FieldError]
