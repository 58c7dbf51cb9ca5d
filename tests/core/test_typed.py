"""What a dataclass that was read from a document must hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from tunedex.core.typed import check_types


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    size: int = 1


@dataclass(frozen=True)
class Whole:
    count: int = 1
    share: float = 0.5
    name: str = ""
    done: bool = False
    limit: float | None = None
    colour: Colour = Colour.RED
    value: int | float | str | bool = 1
    pair: tuple[int, int] = (1, 2)
    words: tuple[str, ...] = ()
    parts: Sequence[Part] = ()
    named: Mapping[str, Part] = field(default_factory=dict)
    anything: Any = None


@pytest.mark.parametrize(
    "right",
    [
        {},
        {"share": 3, "limit": 2.5, "value": True},
        {"words": ("a", "\N{GRINNING FACE}"), "parts": [Part(), Part(2)], "named": {"a": Part()}},
        {"anything": {"b": [object()]}, "count": 2**63 - 1, "pair": (-1, 0)},
    ],
)
def test_what_is_declared(right: dict[str, Any]) -> None:
    check_types(Whole(**right))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"count": 1.0}, "count 1.0 is not a whole number"),
        ({"count": True}, "count True is not a whole number"),
        ({"count": 2**63}, "count 9223372036854775808 is not a whole number"),
        ({"share": "1"}, "share '1' is not a finite number"),
        ({"share": float("nan")}, "share nan is not a finite number"),
        ({"share": 10**400}, "is not a finite number"),
        ({"name": 3}, "name 3 is not a text"),
        ({"name": "\ud800"}, "is not a text"),
        ({"done": 0}, "done 0 is not true or false"),
        ({"limit": [None]}, "limit [None] is not a finite number or null"),
        ({"colour": "red"}, "colour 'red' is not a Colour"),
        ({"value": float("inf")}, "value inf is not a whole number or a finite number or a text or true or false"),
        ({"pair": (1, 2, 3)}, "pair (1, 2, 3) is not 2 values"),
        ({"pair": (1, "2")}, "pair[1] '2' is not a whole number"),
        ({"words": "ab"}, "words 'ab' is not a list"),
        ({"words": ("a", None)}, "words[1] None is not a text"),
        ({"parts": [Part("x")]}, "parts[0].size 'x' is not a whole number"),  # type: ignore[arg-type]
        ({"named": {"a": 3}}, "named.a 3 is not a Part"),
        ({"named": []}, "named [] is not an object"),
    ],
)
def test_what_is_not(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        check_types(Whole(**wrong))
    assert len(str(caught.value)) < 200
