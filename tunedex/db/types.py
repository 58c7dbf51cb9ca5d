"""Column types that read and write alike on SQLite and PostgreSQL: UTC times, JSON as text, growing numbers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, Integer, Text
from sqlalchemy.types import TypeDecorator

from tunedex.core.canonical import time_text

#: A primary key that the database numbers; SQLite numbers only columns spelled INTEGER, which hold 64 bits anyway.
GrowingId = BigInteger().with_variant(Integer(), "sqlite")


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


class JsonText(TypeDecorator[Any]):
    """A JSON value as compact text.

    Members keep their order, because the order of dimensions, operands and tunables is how they are shown; what
    identifies a problem or a config is its key, which is made of the canonical form.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


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
