"""How fast a sweep came to its best: the best time so far against trials and seconds, from the trials it stored."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunedex.core.errors import UnknownSweep
from tunedex.core.measurement import Measurement
from tunedex.core.problem import Problem
from tunedex.db.mapping import problem_of, trial_of
from tunedex.db.models import ProblemRow, TrialRow
from tunedex.db.reading import readable
from tunedex.db.recording import sweep as sweep_of
from tunedex.db.records import Curve, CurvePoint, Stage, Trial


def curves(session: Session, number: int) -> list[Curve]:
    """
    Raises:
        UnknownSweep: there is no sweep of that number.
    """
    sweep = sweep_of(session, number)
    if sweep is None or sweep.started_at is None:
        raise UnknownSweep(f"there is no sweep {number}", field="sweep")
    statement = select(TrialRow, ProblemRow).join(ProblemRow, ProblemRow.key == TrialRow.problem_key)
    statement = statement.where(TrialRow.sweep_id == number, TrialRow.stage == Stage.SEARCH.value)
    found = session.execute(statement.order_by(TrialRow.id)).all()
    tried: dict[Problem, list[Trial]] = {}
    for trial in readable(found, lambda pair: trial_of(pair[0], problem_of(pair[1]))):
        tried.setdefault(trial.problem, []).append(trial)
    begun = sweep.started_at.timestamp()
    return [_curve(problem, trials, begun) for problem, trials in tried.items()]


def _curve(problem: Problem, trials: list[Trial], begun: float) -> Curve:
    """``begun`` is when the sweep was, in seconds; what a clock set back would have before that is at 0."""
    points: list[CurvePoint] = []
    seconds = 0.0
    for number, trial in enumerate(trials, 1):
        if trial.created_at is not None:
            seconds = max(seconds, trial.created_at.timestamp() - begun)
        outcome = trial.outcome
        if isinstance(outcome, Measurement) and (not points or outcome.time_us < points[-1].best_us):
            points.append(CurvePoint(number, seconds, outcome.time_us, trial.config))
    return Curve(problem, len(trials), seconds, tuple(points))
