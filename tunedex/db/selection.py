"""Which configs of a problem are published, and which of them is the best: the rules, in one place.

Pure, and indifferent to the order of what it is given: equal trials give equal rows.

1. The best is the fastest config that serves every caller (lossless, not bound to graphs) and beats both the
   default and the library call by more than the margin; else the faster of those two.
2. The incumbent stays unless it is beaten by more than the margin, or is slower than the default or the library. One
   of another environment or kernel version stands for its config alone: it counts with its time in this final.
3. After the best follow the Pareto set of (time, error, peak memory), for callers with other limits, and for those
   who pin the bits of one of these or of the incumbent, the Pareto set of the configs that give the same bits. These,
   the default and the library call are published whatever their number; the fastest of the rest fill up to 16 rows.
4. Only times of the final's policy are compared, and only rows measured here.
5. A config that failed when it was last tried is not served, whatever it did before.
6. A final that was disturbed takes no incumbent's place, of whatever environment, kernel version or policy that is:
   with its times comes an answer where nothing that was measured here is left, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tunedex.core.config import Config
from tunedex.core.limits import NO_LIMITS
from tunedex.core.measurement import Failure, Measurement, Policy
from tunedex.core.row import Row, allows, beats, memory_of
from tunedex.db.records import Trial
from tunedex.db.types import row_time

#: How many rows of a problem are published, unless more than that have a caller whom no other row serves as well.
MAX_ROWS = 16

#: The source of a row that was measured on the device it is served for.
LOCAL = "local"


def select(
    finals: Sequence[Trial],
    searched: Sequence[Trial],
    incumbent: Sequence[Row],
    *,
    default: Config | None,
    share: Callable[[Row], float | None],
) -> list[Row]:
    """The rows to publish for one problem on one device in one environment, by rank.

    Args:
        finals: the trials of one final. Several of one config count as their median.
        searched: trials of the search, which fill the Pareto set and the runners-up.
        incumbent: the rows published so far.
        default: the kernel's default config for the problem; None where it has none.
        share: the roofline share of a row's time, at its compute precision.

    Returns:
        Rows ranked from 0. The incumbent's, less those that now fail, where the final has no measurement.
    """
    failed = {trial.config.key for trial in finals if isinstance(trial.outcome, Failure)} | _failed_last(searched)
    passed = [trial for trial in finals if trial.config.key not in failed]
    policy = _policy(passed)
    if policy is None:
        return _without(failed, incumbent)

    timed = _medians(passed, policy)
    default_us = _time(timed.get(default.key)) if default is not None else None
    library = _fastest(row for row in timed.values() if row.config.library)
    library_us = _time(library)

    def complete(row: Row) -> Row:
        return replace(row, default_us=default_us, library_us=library_us, roofline_share=share(row))

    timed = {key: complete(row) for key, row in timed.items()}
    sample = next(iter(timed.values()))
    standing = [row for row in incumbent if row.config.key not in failed and row.source == LOCAL]
    if standing and any(trial.contended for trial in finals):
        return _without(failed, incumbent)
    published = [
        row
        for row in standing
        if (row.environment, row.kernel_version, row.measurement.policy)
        == (sample.environment, sample.kernel_version, policy)
    ]
    before = next((row for row in incumbent if row.rank == 0), None)
    held = timed.get(before.config.key, before if before in published else None) if before else None
    known = (default, library.config if library is not None else None)
    yours = [timed[config.key] for config in known if config is not None and config.key in timed]
    best = _best(timed.values(), yours, held)

    others = {row.config.key: row for row in map(complete, _medians(searched, policy).values())}
    others |= {row.config.key: row for row in published}
    others = {key: row for key, row in others.items() if key not in timed and key not in failed}
    if not _serves_all(best):
        best = min(filter(_serves_all, others.values()), key=_speed, default=best)
    proven = {**timed, best.config.key: best}
    rest = [row for key, row in others.items() if key not in proven and not _unproven(row, best, proven.values())]
    return _arranged([best, *yours], held, [*proven.values(), *rest])


def _best(timed: Iterable[Row], yours: Sequence[Row], held: Row | None) -> Row:
    """The best by rules 1 and 2 of ``timed`` and ``held``, the incumbent; ``yours`` are the default and the library."""
    candidates = {row.config.key: row for row in timed}
    if held is not None:
        candidates[held.config.key] = held
    pool = [row for row in candidates.values() if _serves_all(row)] or list(candidates.values())
    fastest = min(pool, key=_speed)
    base = min((row for row in yours if row in pool), key=_speed, default=None)
    winner = fastest if base is None or _outdoes(fastest, base) else base
    if held is None or held not in pool or _outdoes(winner, held):
        return winner
    return held if base is None or held.measurement.time_us <= base.measurement.time_us else winner


def _unproven(row: Row, best: Row, proven: Iterable[Row]) -> bool:
    """Whether ``row``, which was not timed in this final, would outdo who won it: older and rougher times are no proof.

    A lossless one is held against ``best``, a lossy one against the lossy configs of the final that serve all whom it
    serves. Where there is none, who allows an error has no other answer.
    """
    if row.measurement.lossless:
        return _outdoes(row, best)
    rivals = [rival for rival in proven if not rival.measurement.lossless and _serves_as_many(rival, row)]
    return bool(rivals) and all(_outdoes(row, rival) for rival in rivals)


def _arranged(kept: Sequence[Row], held: Row | None, rows: Sequence[Row]) -> list[Row]:
    """``kept``'s first, which is the best, then the Pareto set with who gives the same bits, then the rest, each by
    speed. Of the rest only runners-up are cut: not ``kept``'s others, the default and the library call."""
    front = _pareto(rows)
    bits = {row.measurement.output_hash for row in (*front, *kept, *([held] if held else []))}
    alike = [_pareto(row for row in rows if row.measurement.output_hash == pinned) for pinned in bits]
    front_keys = {row.config.key for group in (front, *alike) for row in group}
    best = kept[0].config.key
    order = sorted(rows, key=lambda row: (row.config.key != best, row.config.key not in front_keys, _speed(row)))
    sure = front_keys | {row.config.key for row in kept}
    spare = [row.config.key for row in order if row.config.key not in sure][: max(0, MAX_ROWS - len(sure))]
    return _ranked([row for row in order if row.config.key in sure.union(spare)])


def _pareto(rows: Iterable[Row]) -> list[Row]:
    """Those of ``rows`` that no other dominates."""
    rows = list(rows)
    return [row for row in rows if not any(_dominates(other, row) for other in rows)]


def _without(failed: set[str], incumbent: Sequence[Row]) -> list[Row]:
    """The incumbent's rows less those that failed, in their order; the first serves every caller if any does."""
    kept = sorted((row for row in incumbent if row.config.key not in failed), key=lambda row: row.rank)
    first = min(kept, key=lambda row: (not _serves_all(row), row.rank), default=None)
    return _ranked(sorted(kept, key=lambda row: row is not first))


def _failed_last(searched: Sequence[Trial]) -> set[str]:
    """The keys of the configs whose newest trial is a failure, also where another is as new."""
    newest: dict[str, bool] = {}
    for _, fails, key in sorted((_age(t), isinstance(t.outcome, Failure), t.config.key) for t in searched):
        newest[key] = fails
    return {key for key, fails in newest.items() if fails}


def _age(trial: Trial) -> tuple[int, datetime]:
    """What orders trials: as they were stored, for a clock may be set back."""
    return trial.id or 0, trial.created_at or datetime.min.replace(tzinfo=UTC)


def _policy(finals: Sequence[Trial]) -> Policy | None:
    """The policy of the newest measurement; None where there is none."""
    newest = max(
        ((*_age(trial), trial.outcome.policy.value) for trial in finals if isinstance(trial.outcome, Measurement)),
        default=None,
    )
    return Policy(newest[2]) if newest else None


def _medians(trials: Iterable[Trial], policy: Policy) -> dict[str, Row]:
    """One row for each config, by its key: the trial whose time is the median (the lower of two) under ``policy``."""
    groups: dict[str, list[tuple[float, str, Row]]] = {}
    for trial in trials:
        if isinstance(trial.outcome, Measurement) and trial.outcome.policy is policy:
            row = _row(trial, trial.outcome)
            groups.setdefault(trial.config.key, []).append((trial.outcome.time_us, repr(row), row))
    return {
        key: sorted(groups[key], key=lambda item: item[:2])[(len(groups[key]) - 1) // 2][2] for key in sorted(groups)
    }


def _row(trial: Trial, measurement: Measurement) -> Row:
    return Row(
        rank=0,
        config=trial.config,
        measurement=measurement,
        kernel_version=trial.kernel_version,
        environment=trial.environment,
        warm_us=trial.warm_us,
        source=LOCAL,
        measured_at=row_time(trial.created_at),
    )


def _serves_all(row: Row) -> bool:
    return allows(row, NO_LIMITS)


def _outdoes(row: Row, other: Row) -> bool:
    return beats(row.measurement.time_us, other.measurement.time_us)


def _fastest(rows: Iterable[Row]) -> Row | None:
    """The fastest row, a lossless one where there is one."""
    return min(rows, key=lambda row: (not row.measurement.lossless, *_speed(row)), default=None)


def _time(row: Row | None) -> float | None:
    return row.measurement.time_us if row is not None else None


def _speed(row: Row) -> tuple[float, str]:
    return row.measurement.time_us, row.config.key


def _dominates(row: Row, other: Row) -> bool:
    """Whether ``row`` is as good as ``other`` in everything and better in something; of two equals, the lower key."""
    mine, theirs = _merits(row), _merits(other)
    if mine == theirs:
        return row.config.key < other.config.key
    return all(a <= b for a, b in zip(mine, theirs, strict=True))


def _serves_as_many(row: Row, other: Row) -> bool:
    """Whether every caller whom ``other`` serves may have ``row``, however fast it is."""
    return all(a <= b for a, b in zip(_merits(row)[1:], _merits(other)[1:], strict=True))


def _merits(row: Row) -> tuple[float, ...]:
    """Time, error, peak memory, and whom the row cannot serve: less is better in each."""
    measurement = row.measurement
    bound_to_graph = not allows(replace(row, measurement=replace(measurement, lossless=True)), NO_LIMITS)
    return measurement.time_us, measurement.error, memory_of(row), not measurement.lossless, bound_to_graph


def _ranked(rows: Sequence[Row]) -> list[Row]:
    return [replace(row, rank=rank) for rank, row in enumerate(rows)]
