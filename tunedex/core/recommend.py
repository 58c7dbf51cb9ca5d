"""Which batch to run: the choice for a caller who holds items one by one and may choose how many go into a call.

Server and client both call `recommend`, so the same question gets the same answer online and offline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tunedex.core.canonical import canonical_json
from tunedex.core.errors import BadInput
from tunedex.core.limits import NO_LIMITS, Limits, Objective
from tunedex.core.problem import Problem
from tunedex.core.question import Question, read_question
from tunedex.core.row import Row, beats, choose, memory_of
from tunedex.core.signature import Signature
from tunedex.core.snapshot import Answer, Snapshot


@dataclass(frozen=True)
class Recommendation:
    """The batch to run and the answer for the problem at that batch: ``answer.time_us`` is of one call, which
    computes ``batch`` items."""

    batch: int
    answer: Answer

    @property
    def items_per_s(self) -> float | None:
        """Items a second in calls one after another; None where the answer has no time."""
        time_us = self.answer.time_us
        return None if time_us is None else self.batch / time_us * 1e6

    def to_dict(self) -> dict[str, Any]:
        return {"batch": self.batch, "items_per_s": self.items_per_s, **self.answer.to_dict()}


def read_item(signature: Signature, parameters: Mapping[str, Any]) -> Question:
    """Read flat ``parameters``, those of `read_question` without the batch: a problem of one item, and limits.

    Raises:
        BadInput: the batch is among them, a parameter is wrong, or a dimension is zero.
    """
    if "batch" in parameters:
        raise BadInput(
            f"batch={parameters['batch']} is given, and the batch is what is recommended; leave it out, or look up "
            "the config for that batch",
            field="batch",
        )
    return read_question(signature, parameters)


def recommend(snapshot: Snapshot, item: Problem, limits: Limits = NO_LIMITS) -> Recommendation:
    """The tuned batch of ``item``, a problem of one item, that suits ``limits.objective`` best.

    For each batch that was tuned the row is chosen as for a lookup of that batch, so ``max_latency_us`` bounds the
    time of a call with all its items, ``max_memory`` what it allocates. Of the batches with a row the one is taken
    whose row has the least time of a call (``latency``), the least time an item (``throughput``), the least error or
    the least memory. A smaller batch that is worse by no more than the margin goes first: its callers wait less.
    Times with a cold and with a warm L2 cache are not compared; where both occur, the cold ones count. Eager and graph
    times are, for both are the device's alone, without the host's launch.

    Where no batch serves, the answer is the kernel's default for one item, and says why.

    Raises:
        UnknownKernel: the snapshot does not know the item's kernel.
    """
    tuned = {p: snapshot.rows[p.key] for p in snapshot.problems.values() if _same_item(p, item)}
    chosen = {problem: row for problem, rows in tuned.items() if (row := choose(rows, limits)) is not None}
    if not chosen:
        why = f"none of the {len(tuned)} tuned batches meets {canonical_json(limits.to_dict())}"
        if not tuned:
            why = f"{item} is not tuned at any batch on {snapshot.device.key}"
        return Recommendation(item.batch, snapshot.default_answer(item, why))
    cold = any(row.measurement.policy.cold for row in chosen.values())
    cost = _COSTS[limits.objective]
    costs = {p: cost(row, p.batch) for p, row in chosen.items() if row.measurement.policy.cold is cold}
    least = min(costs.values())
    best = min((p for p in costs if not beats(least, costs[p])), key=lambda p: p.batch)
    return Recommendation(best.batch, snapshot.answer(best, limits))


def _same_item(problem: Problem, item: Problem) -> bool:
    """Whether the two differ in nothing but the batch."""
    return problem.kernel == item.kernel and problem.at_batch(1) == item.at_batch(1)


#: What a call with a row costs at a batch, by objective: less is better.
_COSTS: Mapping[Objective, Callable[[Row, int], float]] = {
    Objective.LATENCY: lambda row, batch: row.measurement.time_us,
    Objective.THROUGHPUT: lambda row, batch: row.measurement.time_us / batch,
    Objective.ERROR: lambda row, batch: row.measurement.error,
    Objective.MEMORY: lambda row, batch: memory_of(row),
}
