"""Questions out of requests, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunedex.api.answers import Held
from tunedex.api.state import State
from tunedex.core.errors import BadInput
from tunedex.core.limits import Limits
from tunedex.core.problem import Problem
from tunedex.core.question import PARTS, parameters_in, read_question
from tunedex.core.recommend import Recommendation, read_item, recommend
from tunedex.core.signature import Signature
from tunedex.core.snapshot import Answer, Match

_DIRECT = frozenset({"dtype", "layout", "alignment", *Limits.NAMES})


def answer(state: State, held: Held, kernel: str, parameters: Mapping[str, Any]) -> Answer:
    """Answer flat ``parameters`` from ``held``; an answer that is not exact is counted as a miss.

    Raises:
        UnknownKernel: the kernel is unknown.
        BadInput: a parameter is wrong, or there is nothing to compute.
    """
    snapshot = held.snapshot
    question = read_question(snapshot.signature(kernel), parameters)
    found = snapshot.answer(question.problem, question.limits)
    _count(state, held, question.problem, found)
    return found


def recommendation(state: State, held: Held, kernel: str, parameters: Mapping[str, Any]) -> Recommendation:
    """The batch for flat ``parameters``, which leave it out, and its answer; counted as `answer` counts.

    Raises:
        UnknownKernel: the kernel is unknown.
        BadInput: a parameter is wrong or is the batch, or there is nothing to compute.
    """
    item = read_item(held.snapshot.signature(kernel), parameters)
    found = recommend(held.snapshot, item.problem, item.limits)
    _count(state, held, item.problem, found.answer)
    return found


def _count(state: State, held: Held, problem: Problem, found: Answer) -> None:
    state.metrics.lookup(found.match)
    if found.match is not Match.EXACT:
        state.misses.count(held.snapshot.device.key, problem)


def kernel_of(query: Mapping[str, Any]) -> str:
    """The kernel that ``query`` names.

    Raises:
        BadInput: it names none.
    """
    kernel = query.get("kernel")
    if not isinstance(kernel, str) or not kernel:
        raise BadInput("kernel is missing; it would be a kernel's name", field="kernel")
    return kernel


def flatten(signature: Signature, query: Mapping[str, Any]) -> dict[str, Any]:
    """The flat parameters of a query in a body: ``{kernel, dims, attributes, dtypes, dtype, layout, ...limits}``.

    Raises:
        BadInput: a name is not known where it stands, or a part is not an object.
    """
    flat = parameters_in(signature, query)
    for name, value in query.items():
        if name in PARTS or name == "kernel":
            continue
        if name not in _DIRECT:
            raise BadInput(
                f"{name!r} is unknown; known are kernel, {', '.join((*PARTS, *sorted(_DIRECT)))}", field=name
            )
        if value is not None:
            flat[name] = value
    return flat
