"""Whether a dataclass that was read from somebody's document holds what its fields declare.

Annotations promise a type to whoever reads the code; a JSON document or a database of another hand promises nothing.
"""

from __future__ import annotations

import math
import reprlib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from tunedex.core.canonical import MAX_INT


def check_types(value: Any) -> None:
    """Check the fields of the dataclass ``value`` and of every dataclass in it. An integer is one of 64 bits and no
    bool, a number is finite, and a text has a spelling in UTF-8.

    Raises:
        ValueError: a field holds something else; the message names it by its path.
    """
    if found := _wrong_in(value.__class__)(value):
        path, what = found
        raise ValueError(f"{path.removeprefix('.')} {what}")


#: Where something is wrong within a value and what, or None.
_Wrong = tuple[str, str] | None


@cache
def _wrong_in(kind: Any) -> Callable[[Any], _Wrong]:
    """What looks for something wrong in a value that is declared as ``kind``."""
    if kind is Any:
        return lambda value: None
    if kind in _LEAVES:
        return _leaf(*_LEAVES[kind])
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(kind, [_wrong_in(each) for each in inner])
    if origin is tuple and inner[-1] is not Ellipsis:
        return _tuple([_wrong_in(each) for each in inner])
    if origin in (tuple, Sequence):
        return _sequence(_wrong_in(inner[0]))
    if origin is Mapping:
        return _mapping(_wrong_in(inner[0]), _wrong_in(inner[1]))
    return _instance(kind)


def _leaf(right: Callable[[Any], bool], words: str) -> Callable[[Any], _Wrong]:
    return lambda value: None if right(value) else _told(value, words)


def _union(kind: Any, parts: Sequence[Callable[[Any], _Wrong]]) -> Callable[[Any], _Wrong]:
    words = " or ".join(_words(each) for each in get_args(kind))
    return lambda value: None if any(part(value) is None for part in parts) else _told(value, words)


def _tuple(parts: Sequence[Callable[[Any], _Wrong]]) -> Callable[[Any], _Wrong]:
    def wrong(value: Any) -> _Wrong:
        if not isinstance(value, tuple) or len(value) != len(parts):
            return _told(value, f"{len(parts)} values")
        return _first((f"[{n}]", part(item)) for n, (part, item) in enumerate(zip(parts, value, strict=True)))

    return wrong


def _sequence(part: Callable[[Any], _Wrong]) -> Callable[[Any], _Wrong]:
    def wrong(value: Any) -> _Wrong:
        if not isinstance(value, list | tuple):
            return _told(value, "a list")
        return _first((f"[{n}]", part(item)) for n, item in enumerate(value))

    return wrong


def _mapping(name: Callable[[Any], _Wrong], part: Callable[[Any], _Wrong]) -> Callable[[Any], _Wrong]:
    def wrong(value: Any) -> _Wrong:
        if not isinstance(value, Mapping):
            return _told(value, "an object")
        return _first((f".{key}", name(key) or part(item)) for key, item in value.items())

    return wrong


def _instance(kind: Any) -> Callable[[Any], _Wrong]:
    hints = get_type_hints(kind) if is_dataclass(kind) else {}
    parts = [(each.name, _wrong_in(hints[each.name])) for each in fields(kind)] if hints else []

    def wrong(value: Any) -> _Wrong:
        if not isinstance(value, kind):
            return _told(value, f"a {_words(kind)}")
        return _first((f".{name}", part(getattr(value, name))) for name, part in parts)

    return wrong


def _first(found: Any) -> _Wrong:
    """The first of ``found``, pairs of a place and what is wrong there, that is wrong."""
    return next(((place + wrong[0], wrong[1]) for place, wrong in found if wrong), None)


def _told(value: Any, words: str) -> tuple[str, str]:
    return "", f"{reprlib.repr(value)} is not {words}"


def _words(kind: Any) -> str:
    return _LEAVES[kind][1] if kind in _LEAVES else getattr(kind, "__name__", str(kind))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -MAX_INT <= value <= MAX_INT


def _is_number(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which a JSON text may escape
        return False
    return True


_LEAVES: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    int: (_is_int, "a whole number"),
    float: (_is_number, "a finite number"),
    str: (_is_text, "a text"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    type(None): (lambda value: value is None, "null"),
}
