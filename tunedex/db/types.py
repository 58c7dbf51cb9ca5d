"""Column types that read and write alike on SQLite and PostgreSQL: UTC times, JSON as text, growing numbers.

Whoever can write the file can put anything into it, and SQLite keeps any value in any column. What a column's type does
not have is read as `Unreadable`, so that one value does not end the reading of all the others; `reading` refuses it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, DateTime, Dialect, Integer, Text
from sqlalchemy.types import TypeDecorator

from tunedex.core.canonical import time_text

#: A primary key that the database numbers; SQLite numbers only columns spelled INTEGER, which hold 64 bits anyway.
GrowingId = BigInteger().with_variant(Integer(), "sqlite")


@dataclass(frozen=True)
class Unreadable:
    """In place of a stored value that cannot be read; ``reason`` says what it is not."""

    reason: str


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time, stored in UTC and read back in UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"time {value} has no time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        read = super().result_processor(dialect, coltype)

        def process(value: Any) -> Any:
            try:
                return read(value) if read else value
            except (TypeError, ValueError, AttributeError, OverflowError):
                return Unreadable("is no time")

        return process


class Flag(TypeDecorator[bool]):
    """True or false."""

    impl = Boolean
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        def process(value: Any) -> Any:
            if value is None or value in (0, 1):
                return None if value is None else bool(value)
            return Unreadable("is neither true nor false")

        return process


class JsonText(TypeDecorator[Any]):
    """A JSON value as compact text.

    Members keep their order, because the order of dimensions and operands is how they are shown; what
    identifies a problem or a config is its key, which is made of the canonical form. Every value stored is an object.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        try:
            found = json.loads(value, parse_constant=_refuse)
            if "\\u" in value:  # half of a surrogate pair can be written so, and is no text
                json.dumps(found, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError):
            return Unreadable("is not JSON")
        return found if isinstance(found, dict) else Unreadable("is no JSON object")


def _refuse(name: str) -> Any:
    """
    Raises:
        ValueError: JSON has no NaN and no infinity, which Python reads.
    """
    raise ValueError(f"{name} is no number")


def now() -> datetime:
    """The time now, in UTC."""
    return datetime.now(UTC)


def row_time(value: datetime | None) -> str:
    """A stored time as a row carries it; "" for none."""
    return "" if value is None else time_text(value)


def time_of(text: str) -> datetime | None:
    """The reverse of `row_time`; a text without a zone is taken as UTC.

    Raises:
        ValueError: the text is not an ISO 8601 time.
    """
    if not text:
        return None
    value = datetime.fromisoformat(text)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
