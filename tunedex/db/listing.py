"""What is there, for whoever looks: summaries, and lists a page at a time.

A page ends at a row, and the next begins after that row's place in the order, so pages neither skip nor repeat
rows while others are written.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import func, select, text, tuple_
from sqlalchemy.orm import Session

from tunedex.core.channel import check_channel
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput
from tunedex.core.measurement import FailureKind
from tunedex.db.mapping import best_of, described, environment_of, miss_of, problem_of, sweep_of, trial_of
from tunedex.db.models import (
    PREFIX,
    Base,
    BestRow,
    ChannelRow,
    DeviceRow,
    EnvironmentRow,
    MissRow,
    ProblemRow,
    SweepRow,
    TrialRow,
)
from tunedex.db.publishing import valid_at
from tunedex.db.reading import readable
from tunedex.db.records import Best, DeviceSummary, Miss, Page, Stage, Sweep, Trial

MAX_LIMIT = 1000

#: The status of a trial that is no failure.
MEASURED = "measured"

T = TypeVar("T")


def devices(session: Session) -> list[DeviceSummary]:
    trials = {
        key: (environments, count, last)
        for key, environments, count, last in session.execute(
            select(
                TrialRow.device_key,
                func.count(TrialRow.environment_key.distinct()),
                func.count(),
                func.max(TrialRow.created_at),
            ).group_by(TrialRow.device_key)
        )
    }
    bests = {
        key: (kernels, problems, last)
        for key, kernels, problems, last in session.execute(
            select(
                BestRow.device_key,
                func.count(ProblemRow.kernel.distinct()),
                func.count(BestRow.problem_key.distinct()),
                func.max(BestRow.measured_at),
            )
            .join(ProblemRow, ProblemRow.key == BestRow.problem_key)
            .where(BestRow.until.is_(None))
            .group_by(BestRow.device_key)
        )
    }

    def summary(row: DeviceRow) -> DeviceSummary:
        environments, count, last_trial = trials.get(row.key, (0, 0, None))
        kernels, problems, last_best = bests.get(row.key, (0, 0, None))
        last = max((time for time in (last_trial, last_best) if isinstance(time, datetime)), default=None)
        return DeviceSummary(described(row), environments, kernels, problems, count, last)

    return readable(session.scalars(select(DeviceRow).order_by(DeviceRow.key)), summary)


def device(session: Session, key: str) -> Device | None:
    row = session.get(DeviceRow, key)
    return described(row) if row else None


def environments(session: Session, keys: Sequence[str] | None) -> dict[str, Environment]:
    statement = select(EnvironmentRow).order_by(EnvironmentRow.key)
    if keys is not None:
        statement = statement.where(EnvironmentRow.key.in_(keys))
    return dict(readable(session.scalars(statement), lambda row: (row.key, environment_of(row))))


def list_bests(
    session: Session, device: str | None, kernel: str | None, channel: str, after: str | None, limit: int
) -> Page[Best]:
    check_channel(channel)
    statement: Any = (
        select(BestRow, ProblemRow)
        .join(ProblemRow, ProblemRow.key == BestRow.problem_key)
        .join(ChannelRow, (ChannelRow.device_key == BestRow.device_key) & (ChannelRow.name == channel))
        .where(BestRow.rank == 0, valid_at(ChannelRow.revision))
    )
    statement = _where(statement, {BestRow.device_key: device, ProblemRow.kernel: kernel})
    order = (BestRow.device_key, ProblemRow.kernel, BestRow.id)
    return _page(
        session,
        statement,
        order,
        after,
        limit,
        place=lambda row: (row[0].device_key, row[1].kernel, row[0].id),
        item=lambda row: best_of(row[0], problem_of(row[1])),
    )


def list_trials(
    session: Session,
    device: str | None,
    kernel: str | None,
    problem: str | None,
    sweep: int | None,
    status: str | None,
    stage: str | None,
    after: str | None,
    limit: int,
) -> Page[Trial]:
    statement: Any = select(TrialRow, ProblemRow).join(ProblemRow, ProblemRow.key == TrialRow.problem_key)
    statement = _where(
        statement,
        {
            TrialRow.device_key: device,
            ProblemRow.kernel: kernel,
            TrialRow.problem_key: problem,
            TrialRow.sweep_id: sweep,
            TrialRow.stage: _one_of("stage", stage, [choice.value for choice in Stage]),
        },
    )
    if _one_of("status", status, [MEASURED, *(kind.value for kind in FailureKind)]) == MEASURED:
        statement = statement.where(TrialRow.failure.is_(None))
    elif status is not None:
        statement = statement.where(TrialRow.failure == status)
    return _page(
        session,
        statement,
        (TrialRow.id,),
        after,
        limit,
        newest_first=True,
        place=lambda row: (row[0].id,),
        item=lambda row: trial_of(row[0], problem_of(row[1])),
    )


def list_sweeps(session: Session, device: str | None, after: str | None, limit: int) -> Page[Sweep]:
    return _page(
        session,
        _where(select(SweepRow), {SweepRow.device_key: device}),
        (SweepRow.id,),
        after,
        limit,
        newest_first=True,
        place=lambda row: (row[0].id,),
        item=lambda row: sweep_of(row[0]),
    )


def list_misses(session: Session, device: str | None, kernel: str | None, after: str | None, limit: int) -> Page[Miss]:
    return _page(
        session,
        _where(select(MissRow), {MissRow.device_key: device, MissRow.kernel: kernel}),
        (MissRow.id,),
        after,
        limit,
        newest_first=True,
        place=lambda row: (row[0].id,),
        item=lambda row: miss_of(row[0]),
    )


def counts(session: Session) -> dict[str, int]:
    """The number of rows of every table, by the table's name without its prefix."""
    tables = sorted(Base.metadata.tables.items())
    return {
        name.removeprefix(PREFIX): session.scalar(select(func.count()).select_from(table)) or 0
        for name, table in tables
    }


def size_bytes(session: Session) -> int:
    """The size of a shared database on its server's disk."""
    return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def _where(statement: Any, equal: dict[Any, Any]) -> Any:
    return statement.where(*(column == value for column, value in equal.items() if value is not None))


def _one_of(name: str, value: str | None, choices: Sequence[str]) -> str | None:
    if value is not None and value not in choices:
        raise BadInput(f"{name} {value!r} is unknown; known are {', '.join(choices)}", field=name)
    return value


def _page(
    session: Session,
    statement: Any,
    order: Sequence[Any],
    after: str | None,
    limit: int,
    *,
    place: Callable[[Any], tuple[Any, ...]],
    item: Callable[[Any], T],
    newest_first: bool = False,
) -> Page[T]:
    """One page of ``statement`` by ``order``. ``place`` gives a row's values of the order's columns."""
    if not 1 <= limit <= MAX_LIMIT:
        raise BadInput(f"limit={limit} is not from 1 to {MAX_LIMIT}", field="limit")
    if after is not None:
        mark = _read_token(after, [column.type.python_type for column in order])
        here = tuple_(*order)
        statement = statement.where(here < mark if newest_first else here > mark)
    statement = statement.order_by(*(column.desc() if newest_first else column for column in order)).limit(limit + 1)
    rows = session.execute(statement).all()
    following = _token(place(rows[limit - 1])) if len(rows) > limit else None
    return Page(readable(rows[:limit], item), following)


def _token(place: tuple[Any, ...]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":"), default=str).encode()).decode().rstrip("=")


def _read_token(text: str, types: Sequence[type]) -> tuple[Any, ...]:
    """
    Raises:
        BadInput: the text is not the ``next`` of a page of this list.
    """
    try:
        values = json.loads(base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        values = None
    if (
        not isinstance(values, list)
        or [type(value) for value in values] != list(types)
        or any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in values)
    ):
        raise BadInput(f"after={text[:40]!r} is not the `next` of a page of this list", field="after")
    return tuple(values)
