"""What sweeps and servers write, and what a sweep that resumes reads back."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Insert, case, delete, func, insert, select, true, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tunedex.core.canonical import MAX_INT
from tunedex.core.device import Device, Environment
from tunedex.core.errors import BadInput
from tunedex.core.problem import Problem
from tunedex.core.signature import Signature
from tunedex.db.mapping import (
    ceilings_of,
    kernel_columns,
    problem_columns,
    problem_of,
    signature_of,
    sweep_columns,
    sweep_of,
    trial_columns,
    trial_of,
)
from tunedex.db.models import (
    Base,
    CeilingRow,
    DeviceRow,
    EnvironmentRow,
    KernelRow,
    MissRow,
    ProblemRow,
    SweepRow,
    TrialRow,
)
from tunedex.db.reading import read_or, readable
from tunedex.db.records import Ceilings, Stage, Sweep, SweepStatus, Trial, Tried
from tunedex.db.types import now

#: No more misses than this are kept; those not asked for the longest go first.
MAX_MISSES = 10_000

_Table = TypeVar("_Table", bound=type[Base])


def upsert(
    session: Session,
    table: _Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    key: Sequence[str],
    change: Sequence[str] = (),
) -> None:
    """Insert ``rows``; where a row with the same ``key`` is there, set its ``change`` columns, or leave it."""
    if not rows:
        return
    module: Any = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    statement: Any = module.insert(table).values(list(rows))
    if change:
        new = {name: statement.excluded[name] for name in change}
        statement = statement.on_conflict_do_update(index_elements=list(key), set_=new)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=list(key))
    session.execute(statement)


def register_device(session: Session, device: Device) -> None:
    time = now()
    row = {
        "key": device.key,
        "kind": device.kind,
        "name": device.name,
        "family": device.family,
        "description": device.to_dict(),
        "registered_at": time,
        "seen_at": time,
    }
    upsert(session, DeviceRow, [row], key=["key"], change=["name", "description", "seen_at"])


def register_environment(session: Session, environment: Environment) -> None:
    row = {"key": environment.key, **asdict(environment), "registered_at": now()}
    upsert(session, EnvironmentRow, [row], key=["key"])


def register_signatures(session: Session, signatures: Iterable[Signature]) -> None:
    """Record ``signatures``; one that is not its kernel's latest becomes it, so going back to older code works too, and
    so it does where the clock was ahead when that was registered."""
    latest = latest_kernels(session)
    found = session.execute(select(KernelRow.name, func.max(KernelRow.registered_at)).group_by(KernelRow.name))
    after = {name: last + timedelta(microseconds=1) for name, last in found if isinstance(last, datetime)}
    time = now()
    columns = [
        kernel_columns(signature, max(time, after.get(name, time)))
        for name, signature in {s.kernel: s for s in signatures}.items()
    ]
    rows = [row for row in columns if latest.get(row["name"]) != row["key"]]
    upsert(session, KernelRow, rows, key=["key"], change=["registered_at"])


def latest_kernels(session: Session) -> dict[str, str]:
    """The key of each kernel's signature that was registered last, by the kernel's name, in the order of the names."""
    place = func.row_number().over(
        partition_by=KernelRow.name, order_by=(KernelRow.registered_at.desc(), KernelRow.key)
    )
    ranked = select(KernelRow.name, KernelRow.key, place.label("place")).subquery()
    found = session.execute(select(ranked.c.name, ranked.c.key).where(ranked.c.place == 1).order_by(ranked.c.name))
    return named_keys(found)


def named_keys(found: Iterable[Any]) -> dict[str, str]:
    """The ``key`` of each row by its ``name``, less those that are no text."""
    return {row.name: row.key for row in found if isinstance(row.name, str) and isinstance(row.key, str)}


def signatures_of(session: Session, keys: Collection[str]) -> list[Signature]:
    """The signatures of ``keys``, by the kernels' names."""
    found = session.scalars(select(KernelRow).where(KernelRow.key.in_(keys)).order_by(KernelRow.name))
    return readable(found, signature_of)


def register_problems(session: Session, problems: Iterable[Problem]) -> None:
    # In the order of their keys: two writers that insert the same problems in unlike orders would wait for each other.
    rows = [problem_columns(problem) for problem in sorted(set(problems), key=lambda problem: problem.key)]
    upsert(session, ProblemRow, rows, key=["key"])


def start_sweep(session: Session, sweep: Sweep) -> int:
    return _new_id(session, insert(SweepRow).values(sweep_columns(sweep)), SweepRow.id)


def end_sweep(session: Session, sweep: int, status: SweepStatus) -> None:
    """
    Raises:
        BadInput: there is no such sweep.
    """
    statement = update(SweepRow).where(SweepRow.id == sweep).values(status=status.value, ended_at=now())
    if session.execute(statement.returning(SweepRow.id)).first() is None:
        raise BadInput(f"sweep {sweep} is unknown; `start_sweep` gives the number of one", field="sweep")


def sweep(session: Session, number: int) -> Sweep | None:
    row = session.get(SweepRow, number)
    return read_or(None, lambda: sweep_of(row)) if row else None


def add_trials(session: Session, trials: Sequence[Trial]) -> list[int]:
    """Record ``trials`` and the problems among them that are new; the numbers grow in the order given."""
    register_problems(session, [trial.problem for trial in trials])
    return [_new_id(session, insert(TrialRow).values(trial_columns(trial)), TrialRow.id) for trial in trials]


def trials_of(
    session: Session, problem: str, *, device: str, environment: str, kernel_version: str, stage: Stage | None
) -> list[Trial]:
    statement = select(TrialRow, ProblemRow).join(ProblemRow, ProblemRow.key == TrialRow.problem_key)
    statement = statement.where(
        TrialRow.problem_key == problem,
        TrialRow.device_key == device,
        TrialRow.environment_key == environment,
        TrialRow.kernel_version == kernel_version,
    )
    if stage is not None:
        statement = statement.where(TrialRow.stage == stage.value)
    found = session.execute(statement.order_by(TrialRow.id)).all()
    return readable(found, lambda pair: trial_of(pair[0], problem_of(pair[1])))


def tried(session: Session, kernel: str, kernel_version: str) -> list[Tried]:
    place = (TrialRow.problem_key, TrialRow.device_key, TrialRow.environment_key)
    ours = select(ProblemRow.key).where(ProblemRow.kernel == kernel)
    statement = select(*place, func.count()).where(
        TrialRow.problem_key.in_(ours), TrialRow.kernel_version == kernel_version
    )
    counts = session.execute(statement.group_by(*place).order_by(*place)).all()
    rows = session.scalars(select(ProblemRow).where(ProblemRow.key.in_({key for key, *_ in counts})))
    problems = dict(readable(rows, lambda row: (row.key, problem_of(row))))
    return [Tried(device, env, problems[key], count) for key, device, env, count in counts if key in problems]


def loosest_bound(session: Session, device: str, problem: str) -> float | None:
    # SQLite takes a text for larger than any number.
    of_problem = (
        TrialRow.problem_key == problem,
        TrialRow.device_key == device,
        TrialRow.max_error <= sys.float_info.max,
    )
    return session.scalar(select(func.max(TrialRow.max_error)).where(*of_problem))


def last_tried(session: Session, device: str) -> dict[str, int]:
    statement = select(TrialRow.problem_key, func.max(TrialRow.id).label("last")).where(TrialRow.device_key == device)
    return {row.problem_key: row.last for row in session.execute(statement.group_by(TrialRow.problem_key))}


def disturbed(session: Session, device: str, environment: str) -> set[str]:
    here = (TrialRow.device_key == device, TrialRow.environment_key == environment)
    finals = select(func.max(TrialRow.id)).where(*here, TrialRow.stage == Stage.FINAL.value)
    newest = finals.group_by(TrialRow.problem_key)
    disturbed = TrialRow.contended == true()
    return set(session.scalars(select(TrialRow.problem_key).where(disturbed, TrialRow.id.in_(newest))))


def ceilings(session: Session, device: str, environment: str) -> Ceilings | None:
    row = session.get(CeilingRow, (device, environment))
    return read_or(None, lambda: ceilings_of(row)) if row else None


def put_ceilings(session: Session, device: str, environment: str, ceilings: Ceilings) -> None:
    row = {
        "device_key": device,
        "environment_key": environment,
        "copy_bytes_s": ceilings.copy_bytes_s,
        "flops_s": dict(ceilings.flops_s),
        "cache_bytes_s": ceilings.cache_bytes_s,
        "measured_at": now(),
    }
    key = ["device_key", "environment_key"]
    upsert(session, CeilingRow, [row], key=key, change=[name for name in row if name not in key])


def add_misses(session: Session, device: str, counts: Mapping[Problem, int]) -> None:
    """Add to the counts of misses, and drop the oldest beyond the bound.

    Raises:
        BadInput: ``device`` is no device key, or a count is below one.
    """
    Device.from_key(device)
    if any(count < 1 for count in counts.values()):
        raise BadInput("a miss has a count of one or more", field="count")
    time = now()
    for problem, count in sorted(counts.items(), key=lambda item: item[0].key):
        _add_miss(session, device, problem, count, time)
    kept = select(MissRow.id).order_by(MissRow.last_seen.desc(), MissRow.id.desc()).limit(MAX_MISSES)
    if (session.scalar(select(func.count()).select_from(MissRow)) or 0) > MAX_MISSES:
        session.execute(delete(MissRow).where(MissRow.id.not_in(kept)))


def _add_miss(session: Session, device: str, problem: Problem, count: int, time: Any) -> None:
    module: Any = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    count = min(count, MAX_INT)
    statement = module.insert(MissRow).values(
        device_key=device,
        problem_key=problem.key,
        problem=problem.to_dict(),
        kernel=problem.kernel,
        count=count,
        first_seen=time,
        last_seen=time,
    )
    # The sum stays within 64 bits, whatever is reported.
    room = MAX_INT - count
    session.execute(
        statement.on_conflict_do_update(
            index_elements=["device_key", "problem_key"],
            set_={
                "count": case((MissRow.count > room, MAX_INT), else_=MissRow.count + count),
                "last_seen": time,
            },
        )
    )


def _new_id(session: Session, statement: Insert, column: Any) -> int:
    return int(session.execute(statement.returning(column)).scalar_one())
