"""Where rows become records: one that cannot be read is named and left out, and the others are read all the same."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Column, Double, Text, inspect
from sqlalchemy.types import TypeEngine

from tunedex.core.display import one_line
from tunedex.core.errors import BadInput, DamagedDatabase
from tunedex.db.models import Base
from tunedex.db.types import Flag, JsonText, Unreadable, UtcDateTime

#: How many unreadable rows one warning names.
NAMED = 5

_log = logging.getLogger(__name__)

_Row = TypeVar("_Row", bound=Base)
_Given = TypeVar("_Given")
_Record = TypeVar("_Record")
_Others = ParamSpec("_Others")


def reads(
    make: Callable[Concatenate[_Row, _Others], _Record],
) -> Callable[Concatenate[_Row, _Others], _Record]:
    """Decorates what makes a record of a row: whatever is wrong with the row is a `DamagedDatabase` that names it."""

    @wraps(make)
    def read(row: _Row, /, *others: _Others.args, **named: _Others.kwargs) -> _Record:
        check(row)
        try:
            return make(row, *others, **named)
        except (ArithmeticError, AttributeError, BadInput, LookupError, TypeError, ValueError) as error:
            raise DamagedDatabase(f"{_name(row)}: {_words(error)}") from error

    return read


def check(row: Base) -> None:
    """See that every value of ``row`` is of its column's type.

    Raises:
        DamagedDatabase: one is not; the message names table, row and column.
    """
    values = row.__dict__
    for name, types, nullable in _columns(type(row)):
        value = values[name] if name in values else getattr(row, name)
        if isinstance(value, types):
            if value.__class__ is not float or math.isfinite(value):
                continue
        elif value is None and nullable:
            continue
        why = value.reason if isinstance(value, Unreadable) else f"is {_shown(value)}"
        raise DamagedDatabase(f"{_name(row)}: {name} {why}")


def readable(given: Iterable[_Given], make: Callable[[_Given], _Record]) -> list[_Record]:
    """What ``make`` makes of each of ``given``, in order, less those that cannot be read, of which a warning tells."""
    found: list[_Record] = []
    faults: dict[str, None] = {}
    for each in given:
        try:
            found.append(make(each))
        except DamagedDatabase as error:
            faults[str(error)] = None
    if faults:
        warn(list(faults))
    return found


def read_or(default: _Record, make: Callable[[], _Record]) -> _Record:
    """What ``make`` gives; ``default``, and a warning, where it finds a row that cannot be read."""
    try:
        return make()
    except DamagedDatabase as error:
        warn([str(error)])
        return default


def warn(faults: list[str]) -> None:
    """Tell that rows were left out, in one line."""
    more = f"; and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    _log.warning("left out, because it cannot be read: %s%s (see `tuner db check`)", "; ".join(faults[:NAMED]), more)


@cache
def _columns(table: type[Base]) -> tuple[tuple[str, tuple[type, ...], bool], ...]:
    """Name, Python types and nullability of every column of ``table``."""
    columns: Iterable[Column[Any]] = inspect(table).columns
    return tuple((column.name, _types(column.type), bool(column.nullable)) for column in columns)


def _types(kind: TypeEngine[Any]) -> tuple[type, ...]:
    for column_type, types in _PYTHON:
        if isinstance(kind, column_type):
            return types
    return (int,)


_PYTHON: tuple[tuple[type[TypeEngine[Any]], tuple[type, ...]], ...] = (
    (JsonText, (dict,)),
    (UtcDateTime, (datetime,)),
    (Text, (str,)),
    (Double, (float, int)),
    (Flag, (bool,)),
)


def _name(row: Base) -> str:
    """``row`` as a message names it: its table and its primary key."""
    mapper = inspect(type(row))
    keys = ", ".join(f"{column.name} {_shown(getattr(row, column.name))}" for column in mapper.primary_key)
    return f"{row.__tablename__} {keys}"


def _shown(value: object) -> str:
    return one_line(repr(value) if value is not None else "NULL")[:80]


def _words(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return one_line(error) or type(error).__name__
