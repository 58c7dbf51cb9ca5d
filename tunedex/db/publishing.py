"""Revisions and channels: what is published, and what is offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, and_, func, insert, or_, select, text, update
from sqlalchemy.orm import Session

from tunedex.core.channel import Channel, check_channel
from tunedex.core.errors import BadInput, UnknownDevice, UnknownRevision
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.db.mapping import best_columns, row_of
from tunedex.db.models import BestRow, ChannelRow, DeviceRow, KernelRow, RevisionKernelRow, RevisionRow
from tunedex.db.reading import readable, warn
from tunedex.db.recording import latest_kernels, named_keys, register_problems, upsert
from tunedex.db.types import now, row_time, time_of


def publish(
    session: Session,
    device: str,
    answers: Mapping[Problem, Sequence[Row]],
    *,
    sweep: int | None,
    note: str,
    stable: bool,
) -> int:
    """Replace the answers to ``answers``' problems in one new revision; `Store.publish` is the contract."""
    _known_device(session, device)
    _lock(session)
    before = {channel: current_revision(session, device, channel) for channel in Channel}
    candidate = before[Channel.CANDIDATE]
    kernels = latest_kernels(session)
    current = _current_rows(session, device, answers)
    given = {problem: _as_stored(rows) for problem, rows in answers.items()}
    changed = {problem: rows for problem, rows in given.items() if rows != current.get(problem.key, [])}
    recorded = kernels_at(session, candidate)
    if not changed and all(kernels[name] == key for name, key in recorded.items()):
        return candidate
    register_problems(session, changed)
    revision = newest_revision(session) + 1
    session.execute(
        insert(RevisionRow).values(number=revision, device_key=device, sweep_id=sweep, note=note, created_at=now())
    )
    if kernels:
        recorded_now = [{"revision": revision, "kernel_key": key} for key in kernels.values()]
        session.execute(insert(RevisionKernelRow), recorded_now)
    for key in sorted(problem.key for problem in changed):
        session.execute(
            update(BestRow)
            .where(BestRow.device_key == device, BestRow.problem_key == key, BestRow.until.is_(None))
            .values(until=revision)
        )
    rows = [best_columns(device, problem, row, revision) for problem in changed for row in changed[problem]]
    if rows:
        session.execute(insert(BestRow), rows)
    _move(session, device, Channel.CANDIDATE, revision)
    # Who has moved `stable` elsewhere, as a rollback does, has decided what is offered until it is promoted again.
    if stable and before[Channel.STABLE] == candidate:
        _move(session, device, Channel.STABLE, revision)
    return revision


def promote(session: Session, device: str | None, revision: int | None) -> dict[str, int]:
    """Move ``stable`` to the candidate, or to ``revision``, of one device or of all; gives what moved."""
    _lock(session)
    pointers = _pointers(session, device, revision, of=Channel.CANDIDATE)
    return _move_stable(session, {key: revision or candidate for key, candidate in pointers.items()})


def rollback(session: Session, revision: int, device: str | None) -> dict[str, int]:
    """Move ``stable`` back to ``revision``, of one device or of all that are beyond it; gives what moved."""
    _lock(session)
    pointers = _pointers(session, device, revision, of=Channel.STABLE)
    return _move_stable(session, {key: revision for key, stable in pointers.items() if stable > revision})


def kernels_at(session: Session, revision: int) -> dict[str, str]:
    """The keys of the kernels' signatures when ``revision`` was made, by name."""
    found = session.execute(
        select(KernelRow.name, KernelRow.key)
        .join(RevisionKernelRow, RevisionKernelRow.kernel_key == KernelRow.key)
        .where(RevisionKernelRow.revision == revision)
    )
    return named_keys(found)


def rows_of(session: Session, device: str, problem: str, channel: str) -> tuple[Row, ...]:
    """The rows of one problem, by its key, that the channel offers for the device."""
    revision = current_revision(session, device, channel)
    found = session.scalars(
        select(BestRow)
        .where(BestRow.device_key == device, BestRow.problem_key == problem, valid_at(revision))
        .order_by(BestRow.rank)
    )
    return tuple(readable(found, row_of))


def current_revision(session: Session, device: str, channel: str) -> int:
    """The revision that the channel offers for the device; 0 where nothing was published for it."""
    check_channel(channel)
    found = session.scalar(
        select(ChannelRow.revision).where(ChannelRow.device_key == device, ChannelRow.name == channel)
    )
    return _offered(device, channel, found)


def _offered(device: str, channel: str, revision: Any) -> int:
    """``revision`` as it stands in the table of channels; 0 for none, and, with a warning, for what is none."""
    if revision is None or isinstance(revision, int):
        return revision or 0
    warn([f"{ChannelRow.__tablename__} device_key {device!r}, name {channel!r}: revision is {revision!r}"])
    return 0


def newest_revision(session: Session) -> int:
    return session.scalar(select(func.max(RevisionRow.number))) or 0


def valid_at(revision: Any) -> ColumnElement[bool]:
    """Which published rows were valid at ``revision``, a number or a column."""
    return and_(BestRow.since <= revision, or_(BestRow.until.is_(None), BestRow.until > revision))


def _pointers(session: Session, device: str | None, revision: int | None, *, of: Channel) -> dict[str, int]:
    """Where the channel ``of`` points, by device: of one or of all.

    Raises:
        UnknownDevice: the device is not registered.
        UnknownRevision: ``revision`` was never published.
    """
    if device is not None:
        _known_device(session, device)
    if revision is not None:
        known_revision(session, revision, least=1)
    pointers = select(ChannelRow.device_key, ChannelRow.revision).where(ChannelRow.name == of)
    if device is not None:
        pointers = pointers.where(ChannelRow.device_key == device)
    found = session.execute(pointers.order_by(ChannelRow.device_key))
    return {row.device_key: _offered(row.device_key, of, row.revision) for row in found}


def _move_stable(session: Session, targets: Mapping[str, int]) -> dict[str, int]:
    """Move ``stable`` of each device to its target, and give those that were not there already."""
    moved = {key: to for key, to in targets.items() if current_revision(session, key, Channel.STABLE) != to}
    for key, to in moved.items():
        _move(session, key, Channel.STABLE, to)
    return moved


def _move(session: Session, device: str, channel: str, revision: int) -> None:
    row = {"device_key": device, "name": channel, "revision": revision, "moved_at": now()}
    upsert(session, ChannelRow, [row], key=["device_key", "name"], change=["revision", "moved_at"])


def _current_rows(
    session: Session, device: str, answers: Mapping[Problem, Sequence[Row]]
) -> dict[str, list[Row] | None]:
    """The rows published now for ``answers``' problems, by rank; None where one cannot be read, which equals none."""
    wanted = {problem.key for problem in answers}
    stored: dict[str, list[BestRow]] = {}
    statement = select(BestRow).where(BestRow.device_key == device, BestRow.until.is_(None)).order_by(BestRow.rank)
    for best in session.scalars(statement):
        if best.problem_key in wanted:
            stored.setdefault(best.problem_key, []).append(best)
    rows = {key: readable(group, row_of) for key, group in stored.items()}
    return {key: group if len(group) == len(stored[key]) else None for key, group in rows.items()}


def _as_stored(rows: Sequence[Row]) -> list[Row]:
    """``rows`` by rank, with their times spelled as they are read back.

    Raises:
        BadInput: a ``measured_at`` is not a time.
    """
    try:
        spelled = [replace(row, measured_at=row_time(time_of(row.measured_at))) for row in rows]
    except ValueError as error:
        raise BadInput(f"a row's measured_at is wrong: {error}", field="measured_at") from error
    return sorted(spelled, key=lambda row: row.rank)


def _known_device(session: Session, device: str) -> None:
    if session.get(DeviceRow, device) is None:
        known = ", ".join(session.scalars(select(DeviceRow.key).order_by(DeviceRow.key).limit(10))) or "none"
        raise UnknownDevice(f"device {device!r} is unknown; known are {known}", field="device")


def known_revision(session: Session, revision: int, *, least: int) -> None:
    newest = newest_revision(session)
    if not least <= revision <= newest:
        known = f"known are {least} to {newest}" if newest >= least else "nothing is published yet"
        raise UnknownRevision(f"revision {revision} is unknown; {known}", field="revision")


def _lock(session: Session) -> None:
    """Let one transaction at a time number a revision; readers go on. SQLite's write lock does this already."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text(f"LOCK TABLE {RevisionRow.__tablename__} IN SHARE ROW EXCLUSIVE MODE"))
