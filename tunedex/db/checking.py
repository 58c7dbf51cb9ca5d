"""What may be wrong with a database that opens: its version, its tables, its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, inspect, select, text
from sqlalchemy.orm import Session

from tunedex.core.display import one_line
from tunedex.core.errors import DamagedDatabase
from tunedex.core.problem import Problem
from tunedex.db import mapping, migrate, reading
from tunedex.db.engine import embedded, name_of, opened
from tunedex.db.models import (
    Base,
    BestRow,
    CeilingRow,
    ChannelRow,
    DeviceRow,
    EnvironmentRow,
    KernelRow,
    MissRow,
    ProblemRow,
    RevisionKernelRow,
    RevisionRow,
    SweepRow,
    TrialRow,
)
from tunedex.db.urls import parse

#: How many faults of one kind are named one by one.
NAMED = 20

_ROWS_AT_ONCE = 1000
_SOME_PROBLEM = Problem("", {}, {}, {})

#: What reads a row of each table.
_READ: Mapping[type[Base], Callable[[Any], object]] = {
    DeviceRow: mapping.device_of,
    EnvironmentRow: mapping.environment_of,
    KernelRow: mapping.signature_of,
    ProblemRow: mapping.problem_of,
    SweepRow: mapping.sweep_of,
    TrialRow: lambda row: mapping.trial_of(row, _SOME_PROBLEM),
    RevisionRow: reading.check,
    RevisionKernelRow: reading.check,
    BestRow: mapping.row_of,
    ChannelRow: reading.check,
    MissRow: mapping.miss_of,
    CeilingRow: mapping.ceilings_of,
}


@dataclass(frozen=True)
class Checked:
    """A database by its name for people, and what is wrong with it, a line each."""

    name: str
    faults: tuple[str, ...]


def check_database(url: str | None = None) -> Checked:
    """Look for what is wrong with the database at ``url``: all of it is read, nothing is changed.

    Raises:
        BadInput: ``url`` names no database that Tunedex can use.
        DatabaseError: it cannot be opened, or is of another version than this code.
    """
    where = parse(url)
    with opened(where, create=False) as engine:
        faults: list[str] = []
        try:
            migrate.require_head(engine, where)
        except DamagedDatabase as error:
            faults.append(str(error))
        with engine.connect() as connection:
            if embedded(where):
                faults += _file_faults(connection)
            sound, missing = _tables(connection)
        faults += missing
        for table in sound:
            faults += _row_faults(engine, table)
    engine.dispose()
    return Checked(name_of(where), tuple(faults))


def _file_faults(connection: Connection) -> list[str]:
    """What SQLite itself finds wrong: pages, indexes, and rows that refer to others that are not there."""
    said = connection.execute(text(f"PRAGMA integrity_check({NAMED})")).scalars()
    faults = [f"the file is damaged: {one_line(line)}" for line in said if line != "ok"]
    lost = connection.execute(text("PRAGMA foreign_key_check")).all()
    ours = [
        f"{table} row {row} refers to a row that {parent} does not have"
        for table, row, parent, _ in lost
        if table in Base.metadata.tables
    ]
    return faults + _named(ours)


def _tables(connection: Connection) -> tuple[list[type[Base]], list[str]]:
    """The tables that have every column, and what the others lack."""
    found = inspect(connection)
    names = set(found.get_table_names())
    sound: list[type[Base]] = []
    faults = []
    for table in _READ:
        if table.__tablename__ not in names:
            faults.append(f"there is no table {table.__tablename__}")
            continue
        columns = {column["name"] for column in found.get_columns(table.__tablename__)}
        missing = [column.name for column in table.__table__.columns if column.name not in columns]
        if missing:
            faults.append(f"{table.__tablename__} has no column {', '.join(missing)}")
        else:
            sound.append(table)
    return sound, faults


def _row_faults(engine: Engine, table: type[Base]) -> list[str]:
    read = _READ[table]
    faults = []
    with Session(engine) as session:
        for row in session.scalars(select(table).execution_options(yield_per=_ROWS_AT_ONCE)):
            try:
                read(row)
            except DamagedDatabase as error:
                faults.append(f"cannot be read: {error}")
    return _named(faults)


def _named(faults: list[str]) -> list[str]:
    more = len(faults) - NAMED
    return faults if more <= 0 else [*faults[:NAMED], f"and {more} more of this kind"]
