"""How good are answers for problems that were never tuned? Every tuned problem is left out once and answered.

    python benchmarks/near.py trials.json.gz tunedex.db --out benchmarks/results/cpu/near.json

Takes databases, and files that `tuner export trials` writes, best of whole spaces (`tuner sweep --sampler
brute-force`). From the trials of each problem the rows are chosen that a sweep publishes. Then one problem is left out
and asked for, and the config that would run is looked up among its own trials: one that was not measured there counts
as one that cannot run, and the next of the ranking is taken, at last the default. Loss = its time / the best time - 1,
both as searching took them.

A problem counts only beside others that may answer for it: same kernel, attributes, dtypes, layout, alignment and exact
dimensions, such as one m of an (n, k) pair. `served` are the answers as a client gets them, whatever their match;
`near` those of them that are near ones; `ranking` is what the ranking's first would lose were everything verified
everywhere, for the problems at the edges too, which nothing brackets. Needs no GPU; no kernel runs.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tunedex.cli.output import print_table
from tunedex.core.candidates import Match
from tunedex.core.catalog import builtin_signatures
from tunedex.core.errors import TunedexError
from tunedex.core.limits import NO_LIMITS
from tunedex.core.measurement import Measurement
from tunedex.core.near import group_of, neighbours, order, tuned
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.signature import Signature
from tunedex.core.snapshot import Snapshot
from tunedex.db import open_store
from tunedex.db.records import Stage
from tunedex.db.selection import select
from tunedex.interop.trials import TrialSet, read_trial_sets, trial_sets


@dataclass(frozen=True)
class Case:
    """A tuned problem: the rows that a sweep publishes of it, and the time of every config that is lossless, in
    microseconds, by the config's key."""

    found: TrialSet
    signature: Signature
    rows: tuple[Row, ...]
    times_us: dict[str, float]

    @property
    def problem(self) -> Problem:
        return self.found.problem

    def loss(self, keys: Iterable[str]) -> float | None:
        """The loss of the first of ``keys`` that was measured; None where none was."""
        time_us = next((self.times_us[key] for key in keys if key in self.times_us), None)
        return None if time_us is None else time_us / min(self.times_us.values()) - 1


def measure(trials_files: Sequence[str | Path]) -> dict[str, Any]:
    """What leaving out one problem of ``trials_files`` loses: ``{problems, near, served, ranking, rows: [...]}``. Each
    of the three is ``{count, mean_loss, worst_loss, within_3_percent}``, shares of 1."""
    rows = [row for group in _groups(trials_files) for row in _left_out(group)]
    near = [row["loss"] for row in rows if row["match"] == Match.NEAR.value]
    foreseen = [row["expected_loss"] for row in rows if row["expected_loss"] is not None]
    return {
        "problems": len(rows),
        "near": {**_summary(near), "mean_expected_loss": fmean(foreseen) if foreseen else None},
        "served": _summary([row["loss"] for row in rows]),
        "ranking": _summary([row["ranking_loss"] for row in rows]),
        "rows": rows,
    }


def _left_out(group: Sequence[Case]) -> Iterable[dict[str, Any]]:
    """One row for each problem of ``group``, answered from the others."""
    for case in group:
        others = [other for other in group if other is not case]
        device, signature = case.found.device, case.signature
        held = {other.problem.key: other for other in others}
        snapshot = Snapshot(
            device,
            "stable",
            1,
            {signature.kernel: signature},
            {key: other.problem for key, other in held.items()},
            {key: other.rows for key, other in held.items()},
        )
        answer, found = snapshot.answer(case.problem), snapshot.candidates(case.problem)
        default = signature.default(case.problem, device)
        last = [default.key] if default else []
        tried = [row.config.key for row in found.rows] + last
        yield {
            "problem": str(case.problem),
            "device": device.key,
            "match": answer.match.value,
            "distance": answer.distance,
            "expected_loss": answer.expected_loss,
            "loss": case.loss(tried),
            "ranking_loss": case.loss(_ranking(case, others) + last),
            "default_loss": case.loss(last),
            "reason": answer.reason,
        }


def _ranking(case: Case, others: Sequence[Case]) -> list[str]:
    """The keys of the configs in the order of the ranking, whatever was verified."""
    signature, problem = case.signature, case.problem
    held = [each for other in others if (each := tuned(other.problem, other.rows, signature.version, NO_LIMITS))]
    return order(neighbours(signature, problem, held), signature.default(problem, case.found.device))


def _groups(files: Sequence[str | Path]) -> list[list[Case]]:
    """The cases that may answer for one another: on one device, in one environment, with one version of the kernel."""
    groups: dict[Any, list[Case]] = {}
    for found in _read(files):
        signature = next((s for s in builtin_signatures() if s.kernel == found.problem.kernel), None)
        case = _case(found, replace(signature, version=found.kernel_version)) if signature else None
        if case is not None:
            group = group_of(case.signature, case.problem)
            key = found.device.key, found.environment, found.kernel_version, group
            groups.setdefault(key, []).append(case)
    return [group for group in groups.values() if len(group) > 1]


def _case(found: TrialSet, signature: Signature) -> Case | None:
    """``found`` with the rows that would be published of it; None where nothing would be, or no config is lossless."""
    searched = [trial for trial in found.trials if trial.stage is Stage.SEARCH]
    finals = [trial for trial in found.trials if trial.stage is Stage.FINAL]
    default = signature.default(found.problem, found.device)
    rows = select(finals, searched, (), default=default, share=lambda row: None)
    times = {
        trial.config.key: trial.outcome.time_us
        for trial in searched
        if isinstance(trial.outcome, Measurement) and trial.outcome.lossless
    }
    return Case(found, signature, tuple(rows), times) if rows and times else None


def _read(files: Sequence[str | Path]) -> Iterable[TrialSet]:
    """The sets of exports, and of databases."""
    for file in files:
        if "://" in str(file) or Path(file).suffix not in (".json", ".gz"):
            with open_store(str(file), create=False) as store:
                yield from trial_sets(store)
        else:
            yield from read_trial_sets(Path(file))


def _summary(losses: Sequence[float | None]) -> dict[str, Any]:
    known = [loss for loss in losses if loss is not None]
    return {
        "count": len(known),
        "mean_loss": fmean(known) if known else None,
        "worst_loss": max(known, default=None),
        "within_3_percent": fmean(loss <= 0.03 for loss in known) if known else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a database, or an export of trials (.json, .json.gz)")
    parser.add_argument("--out", type=Path, help="where the JSON document goes")
    options = parser.parse_args()
    try:
        found = measure(options.files)
    except TunedexError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sets = [each.to_dict() for each in _read(options.files)]
    document = {
        **{part: _only([each[part] for each in sets]) for part in ("device", "environment")},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        **found,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document, indent=2) + "\n")
    columns = ["<problem", "<match", "doublings", "expected", "loss", "ranking", "default"]
    print_table(columns, [_line(row) for row in found["rows"]])
    for name in ("near", "served", "ranking"):
        part = found[name]
        losses = f"mean loss {_share(part['mean_loss'])}, worst {_share(part['worst_loss'])}"
        print(f"{name}: {part['count']} answers, {losses}")
    return 0 if found["rows"] else 1


def _only(found: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """What all of ``found`` are; None where there are several, which the rows tell apart."""
    return found[0] if len({each["key"] for each in found}) == 1 else None


def _line(row: dict[str, Any]) -> list[object]:
    losses = [_share(row[name]) for name in ("expected_loss", "loss", "ranking_loss", "default_loss")]
    apart = "-" if row["distance"] is None else f"{row['distance']:.2f}"
    return [row["problem"], row["match"], apart, *losses]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


if __name__ == "__main__":
    sys.exit(main())
