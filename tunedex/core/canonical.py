"""The one spelling of a value, and the key that is its hash.

Canonical JSON has sorted keys, no spaces, integers as integers and only finite numbers, so equal values
have equal text in every process, on every Python, in every database.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from numbers import Integral
from typing import Any

KEY_HEX_DIGITS = 32

#: Dimensions and tunables are stored as 64-bit signed integers everywhere.
MAX_INT = 2**63 - 1


def canonical_json(value: Any) -> str:
    """Spell ``value`` canonically.

    Raises:
        ValueError: a number is not finite, a key is not a string, or a string has no spelling in UTF-8.
        TypeError: a value is of a type that JSON does not have.
    """
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair is no text") from error
    return text


def read_json(text: str) -> Any:
    """The value that a JSON text spells. Unlike `json.loads` it reads no text that says two things, or none.

    Raises:
        ValueError: it is no JSON, an object has a name twice, or a number is not finite.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)


def key_of(value: Any) -> str:
    """The first 32 hexadecimal digits of the SHA-256 of ``value``'s canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:KEY_HEX_DIGITS]


def finite(value: Any) -> Any:
    """``value`` with None in place of every number that is not finite, for a JSON document that others read."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def time_text(value: datetime) -> str:
    """An aware time in UTC to the microsecond, ``2026-01-31T12:00:00.000000Z``, so that texts sort as times do."""
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):  # numpy's integers too
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"key {name!r} is not a string")
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no canonical form")
