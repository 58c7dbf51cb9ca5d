"""Snapshots: every answer for one device as of any revision, and what tells one from another."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunedex.core.canonical import key_of
from tunedex.core.channel import check_channel
from tunedex.core.device import Device
from tunedex.core.errors import BadInput
from tunedex.core.family import Relative, device_distance
from tunedex.core.near import IMPORTED
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.settings import NEARNESS
from tunedex.core.snapshot import Snapshot
from tunedex.db.mapping import described, problem_of, row_of
from tunedex.db.models import BestRow, DeviceRow, ProblemRow, RevisionRow
from tunedex.db.publishing import current_revision, kernels_at, known_revision, valid_at
from tunedex.db.reading import readable
from tunedex.db.recording import latest_kernels, signatures_of
from tunedex.db.types import row_time


def stamp(session: Session, device: str, *, channel: str, revision: int | None) -> str:
    """A revision is written once, so its number and the time at which it was made tell its rows from those of any
    other, in another database or after a backup was restored; the rest of a snapshot is hashed itself."""
    described = _described(session, device)
    number = _number(session, device, channel, revision)
    kernels = _kernels(session, number, fixed=bool(revision))
    relatives = [[key, at, _made_at(session, at)] for key, at in _relatives(session, described, channel, revision)]
    parts = [described.to_dict(), channel, number, _made_at(session, number), sorted(kernels.values()), relatives]
    return key_of(parts)


def snapshot(session: Session, device: str, *, channel: str, revision: int | None) -> Snapshot:
    described = _described(session, device)
    number = _number(session, device, channel, revision)
    kernels = _kernels(session, number, fixed=bool(revision))
    problems, rows = _answers(session, device, number)
    return Snapshot(
        device=described,
        channel=channel,
        revision=number,
        signatures={signature.kernel: signature for signature in signatures_of(session, kernels.values())},
        problems=problems,
        rows=rows,
        relatives=tuple(
            Relative(Device.from_key(key), at, *_answers(session, key, at, for_others=True))
            for key, at in _relatives(session, described, channel, revision)
        ),
    )


def _answers(
    session: Session, device: str, number: int, *, for_others: bool = False
) -> tuple[dict[str, Problem], dict[str, Sequence[Row]]]:
    """The problems tuned on ``device`` at revision ``number`` and their rows by rank, by the problem's key;
    ``for_others``, only as many as travel in another device's snapshot, and nothing imported."""
    statement = (
        select(BestRow, ProblemRow)
        .join(ProblemRow, ProblemRow.key == BestRow.problem_key)
        .where(BestRow.device_key == device, valid_at(number))
        .order_by(BestRow.problem_key, BestRow.rank)
    )
    if for_others:
        statement = statement.where(BestRow.source != IMPORTED, BestRow.rank < NEARNESS.relative_rows)
        statement = statement.limit(NEARNESS.relative_most_rows)
    problems: dict[str, Problem] = {}
    rows: dict[str, list[Row]] = {}

    def read(pair: Any) -> tuple[str, Row]:
        best, problem = pair
        if problem.key not in problems:
            problems[problem.key] = problem_of(problem)
        return problem.key, row_of(best)

    for key, row in readable(session.execute(statement).all(), read):
        rows.setdefault(key, []).append(row)
    return {key: problems[key] for key in rows}, {key: tuple(group) for key, group in rows.items()}


def _relatives(session: Session, device: Device, channel: str, revision: int | None) -> list[tuple[str, int]]:
    """The nearest devices of ``device``'s family that have something to offer, the nearest first: key and revision,
    which is the one that is asked for, or what the channel offers there."""
    places: list[tuple[float, str]] = []
    for key in session.scalars(select(DeviceRow.key)):
        try:
            apart = device_distance(device, Device.from_key(key))
        except (BadInput, TypeError):  # not a key of ours, whoever put it there
            continue
        if apart is not None:
            places.append((apart, key))
    found: list[tuple[str, int]] = []
    for _, key in sorted(places):
        at = current_revision(session, key, channel) if revision is None else revision
        some = select(BestRow.id).where(BestRow.device_key == key, valid_at(at), BestRow.source != IMPORTED).limit(1)
        if len(found) < NEARNESS.relatives and at and session.scalar(some) is not None:
            found.append((key, at))
    return found


def _made_at(session: Session, revision: int) -> str:
    made = session.get(RevisionRow, revision)
    return row_time(made.created_at if made and isinstance(made.created_at, datetime) else None)


def _described(session: Session, device: str) -> Device:
    row = session.get(DeviceRow, device)
    return described(row) if row else Device.from_key(device)


def _number(session: Session, device: str, channel: str, revision: int | None) -> int:
    """The number of the revision that is asked for, by itself or by ``channel``.

    Raises:
        BadInput: there is no such channel.
        UnknownRevision: ``revision`` was never published.
    """
    check_channel(channel)
    if revision is None:
        return current_revision(session, device, channel)
    known_revision(session, revision, least=0)
    return revision


def _kernels(session: Session, revision: int, *, fixed: bool) -> dict[str, str]:
    """The keys of the kernels' signatures at ``revision``, by name; unless it is to stay ``fixed``, those of kernels
    registered since then too, of which it says nothing. Revision 0, which nobody made, says nothing of any."""
    recorded = kernels_at(session, revision)
    return recorded if fixed else {**latest_kernels(session), **recorded}
