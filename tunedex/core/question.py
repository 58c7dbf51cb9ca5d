"""A question as the command line and HTTP put it: read strictly, and refused where there is nothing to compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunedex.core.errors import BadInput
from tunedex.core.limits import Limits
from tunedex.core.problem import Problem
from tunedex.core.signature import Signature


@dataclass(frozen=True)
class Question:
    """A problem, and what is asked of its config."""

    problem: Problem
    limits: Limits


def read_question(signature: Signature, parameters: Mapping[str, Any]) -> Question:
    """Read flat ``parameters``: those of `Signature.problem` and of `Limits.read` together.

    Raises:
        BadInput: a parameter is wrong, or a dimension is zero.
    """
    limits = {name: value for name, value in parameters.items() if name in Limits.NAMES}
    problem = signature.problem({name: value for name, value in parameters.items() if name not in Limits.NAMES})
    return Question(with_work(problem), Limits.read(limits))


def with_work(problem: Problem) -> Problem:
    """``problem`` itself.

    Raises:
        BadInput: a dimension is zero, so that there is nothing to compute.
    """
    zero = next((name for name, size in problem.dims.items() if size == 0), None)
    if zero is not None:
        raise BadInput(f"{zero}=0: nothing to compute; a size is at least 1", field=zero)
    return problem
