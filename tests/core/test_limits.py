"""What a caller asks of a config."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tunedex.core.errors import BadInput
from tunedex.core.limits import NO_LIMITS, Limits, Objective
from tunedex.core.measurement import Policy


def test_nothing_asked() -> None:
    assert Limits.read({}) == NO_LIMITS == Limits()
    assert NO_LIMITS.to_dict() == {}


def test_texts_and_values_read_alike() -> None:
    texts = {
        "objective": "memory",
        "max_error": "1e-3",
        "max_latency_us": "50",
        "max_memory": "4096",
        "policy": "graph",
    }
    values = {
        "objective": Objective.MEMORY,
        "max_error": 1e-3,
        "max_latency_us": 50,
        "max_memory": 4096,
        "policy": "graph",
    }
    assert Limits.read(texts) == Limits.read(values)
    assert Limits.read(Limits.read(texts).to_dict()) == Limits.read(texts)


@pytest.mark.parametrize("objective", list(Objective))
def test_objectives(objective: Objective) -> None:
    assert Limits.read({"objective": objective.value}).objective is objective


@pytest.mark.parametrize("policy", list(Policy))
def test_the_policy_of_an_answer_may_be_asked_back(policy: Policy) -> None:
    assert Limits.read({"policy": policy.value}).policy == ("graph" if policy.graph else "eager")


def test_only_what_differs_is_written() -> None:
    asked = Limits.read({"objective": "latency", "max_error": 0.5, "same_bits": "00ff"})
    assert asked.to_dict() == {"max_error": 0.5, "same_bits": "00ff"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"objective": "beauty"}, "objective 'beauty' is unknown; known are latency, throughput, error, memory"),
        ({"policy": "lazy"}, "policy 'lazy' is unknown; known are eager, graph"),
        ({"max_error": 0}, "max_error=0 is not a number above 0"),
        ({"max_error": "-1"}, "max_error=-1 is not a number above 0"),
        ({"max_error": "nan"}, "max_error=nan is not a number above 0"),
        ({"max_error": float("inf")}, "max_error=inf is not a number above 0"),
        ({"max_error": True}, "max_error=True is not a number above 0"),
        ({"max_error": []}, "max_error=[] is not a number above 0"),
        ({"max_latency_us": "fast"}, "max_latency_us=fast is not a number above 0"),
        ({"max_latency_us": 10**400}, "is not a number above 0"),
        ({"max_latency_us": "1_000"}, "max_latency_us=1_000 is not a number above 0"),
        ({"same_bits": "zz"}, "same_bits=zz is not the hash of an output's bits, 32 hexadecimal digits in lower case"),
        ({"same_bits": ""}, "same_bits= is not the hash"),
        ({"max_memory": -1}, "max_memory=-1 is negative"),
        ({"max_memory": "1GB"}, "max_memory=1GB is not a whole number"),
        ({"max_memory": 2**63}, "is over 2^63 - 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_limits_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as caught:
        Limits.read(wrong)
    assert caught.value.field == next(iter(wrong))
