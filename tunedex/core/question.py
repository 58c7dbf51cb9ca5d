"""A question as the command line, HTTP and files put it: read strictly, refused where there is nothing to compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tunedex.core.errors import BadInput
from tunedex.core.limits import Limits
from tunedex.core.problem import Problem
from tunedex.core.signature import Signature

#: The objects of a problem's document that hold parameters.
PARTS = ("dims", "attributes", "dtypes")


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
    limits, named = Limits.apart(parameters)
    return Question(with_work(signature.problem(named)), limits)


def parse_parameters(words: Iterable[str]) -> dict[str, str]:
    """Read ``name=value`` words, as the command line takes them.

    Raises:
        BadInput: a word is not of that form, or a name stands twice.
    """
    parameters: dict[str, str] = {}
    for word in words:
        name, _, value = (part.strip() for part in word.partition("="))
        if not (name and value):
            raise BadInput(f"{word.strip()!r} is not name=value, for example rows=1024", field=name or None)
        if name in parameters:
            raise BadInput(f"{name} is given twice", field=name)
        parameters[name] = value
    return parameters


def parameters_in(signature: Signature, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The flat parameters in ``parts["dims"]``, ``parts["attributes"]`` and ``parts["dtypes"]``, as far as given.

    Raises:
        BadInput: a name is not known where it stands, or a part is not an object.
    """
    names = {
        "dims": [dimension.name for dimension in signature.dimensions],
        "attributes": [attribute.name for attribute in signature.attributes],
        "dtypes": [operand.name for operand in signature.operands],
    }
    flat: dict[str, Any] = {}
    for part in PARTS:
        given = parts.get(part)
        if given is None:
            continue
        if not isinstance(given, Mapping):
            raise BadInput(f"{part} is not an object", field=part)
        for name, value in given.items():
            if name not in names[part]:
                known = ", ".join(names[part]) or "none"
                raise BadInput(f"{signature.kernel} has no {name!r} in {part}; known are {known}", field=part)
            flat[f"{name}_dtype" if part == "dtypes" else name] = value
    return flat


def with_work(problem: Problem) -> Problem:
    """``problem`` itself.

    Raises:
        BadInput: a dimension is zero, so that there is nothing to compute.
    """
    zero = next((name for name, size in problem.dims.items() if size == 0), None)
    if zero is not None:
        raise BadInput(f"{zero}=0: nothing to compute; a size is at least 1", field=zero)
    return problem
