"""Which config to run for a problem that was never tuned: a ranking of what its tuned neighbours measured.

Pure, and indifferent to the order of what it is given. Server and client both ask it, by `Snapshot.answer`.

1. A neighbour is a tuned problem that differs in free dimensions only: kernel, attributes, dtypes, layout, alignment
   class and exact dimensions are the same, divisible(n) ones are both multiples of n or both not. Its distance is the
   sum of |log2| of the ratio of each size that may differ, in doublings, and is bounded.
2. Only what this kernel version measured counts, nothing imported, and only what the caller's limits allow wherever
   it was measured. What can be told only by measuring the problem itself (`UNTOLD`) has no near answer.
3. Configs are ordered by the mean of log(time / best time) over the neighbours, the nearer ones weighing more. A
   config that a neighbour does not list counts there as its slowest row. The default and the library call give way
   only to what is faster by more than the margin.
4. Served is what lies within what was verified: a config that passed verification at a problem no larger in any
   dimension, at one no smaller in any, and at one that is as ragged in all. The default and the library call are for
   every problem.
5. The expected loss is what leaving one out shows: each neighbour is answered from the others that are no nearer to
   it than the nearest neighbour is to what was asked, and the loss of that answer is looked up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tunedex.core.config import Config
from tunedex.core.limits import Limits, Objective
from tunedex.core.problem import Problem
from tunedex.core.row import MARGIN, Row, allows, beats
from tunedex.core.settings import NEARNESS
from tunedex.core.signature import Dimension, Signature

IMPORTED = "imported"


@dataclass(frozen=True)
class Tuned:
    """A tuned problem with the rows that may answer for another one: each config once, by its key, and how much
    slower than the best of them it is (0.1: by 10 %)."""

    problem: Problem
    rows: Mapping[str, Row]

    @cached_property
    def losses(self) -> Mapping[str, float]:
        best = min(row.measurement.time_us for row in self.rows.values())
        return {key: row.measurement.time_us / best - 1 for key, row in self.rows.items()}

    @cached_property
    def slowest(self) -> float:
        return max(self.losses.values())

    def loss(self, config: str) -> float:
        """The loss of the config of that key; where it is not listed, that of the slowest row, for it is not known to
        be less."""
        return self.losses.get(config, self.slowest)


@dataclass(frozen=True)
class Ranking:
    """Rows to try, the best first: each is what the nearest neighbour that lists its config measured. ``distance`` is
    to the ``nearest`` neighbour, in doublings; ``neighbours`` is how many were counted. ``expected_loss`` is a share
    of the best time; None where no neighbour can be left out."""

    rows: tuple[Row, ...]
    nearest: Problem
    distance: float
    neighbours: int
    expected_loss: float | None


def group_of(signature: Signature, problem: Problem) -> tuple[Any, ...] | None:
    """What two problems have in common of which one may answer for the other, however far apart they are; None for
    one that answers for no other: of other dimensions than the kernel's, or with nothing to compute."""
    if problem.dims.keys() != {dimension.name for dimension in signature.dimensions} or min(problem.dims.values()) < 1:
        return None
    fixed = (_fixed(dimension, problem.dims[dimension.name]) for dimension in signature.dimensions)
    named = (tuple(sorted(part.items())) for part in (problem.attributes, problem.dtypes))
    return problem.kernel, *named, problem.layout, problem.alignment, *fixed


def distance(signature: Signature, one: Problem, other: Problem) -> float:
    """How far apart the sizes that may differ are, in doublings. Both problems are of one group."""
    apart = sorted(abs(math.log2(one.dims[name] / other.dims[name])) for name in signature.varying)
    return math.fsum(apart)


def unlike(signature: Signature, asked: Problem, other: Problem) -> list[str]:
    """What of ``other`` keeps it from answering for ``asked``, field by field."""
    found = [
        f"{dimension.name} {other.dims[dimension.name]}"
        for dimension in signature.dimensions
        if _fixed(dimension, asked.dims[dimension.name]) != _fixed(dimension, other.dims[dimension.name])
    ]
    for part in ("attributes", "dtypes"):
        mine, theirs = getattr(asked, part), getattr(other, part)
        suffix = "_dtype" if part == "dtypes" else ""
        found += [f"{name}{suffix} {theirs.get(name)}" for name in mine if mine[name] != theirs.get(name)]
    for name in ("layout", "alignment"):
        if getattr(asked, name) != getattr(other, name):
            found.append(f"{name} {getattr(other, name)}")
    return found


def sizes(signature: Signature, problem: Problem) -> str:
    """The sizes of ``problem`` that may differ, for people; a batch of 1 is left out beside others."""
    shown = [f"{name} {problem.dims[name]}" for name in signature.varying if name != "batch" or problem.batch > 1]
    return ", ".join(shown) or "batch 1"


def untold(limits: Limits) -> list[str]:
    """Those of ``limits`` that a measurement of the problem itself alone can tell."""
    names = [name for name in ("max_latency_us", "max_memory", "same_bits") if getattr(limits, name) is not None]
    if limits.objective in (Objective.ERROR, Objective.MEMORY):
        names.append(f"objective={limits.objective.value}")
    return names


def tuned(problem: Problem, rows: Iterable[Row], version: str, limits: Limits) -> Tuned | None:
    """``problem`` with those of ``rows`` that kernel version ``version`` measured and ``limits`` allow, all under the
    policy and in the environment of the first of them, for only like is compared with like; None where none is left."""
    usable = sorted(
        (row for row in rows if row.kernel_version == version and row.source != IMPORTED and allows(row, limits)),
        key=lambda row: (row.rank, row.config.key),
    )
    if not usable:
        return None
    first = _taken(usable[0])
    listed: dict[str, Row] = {}
    for row in usable:
        if _taken(row) == first:
            listed.setdefault(row.config.key, row)
    return Tuned(problem, listed)


def ranked(signature: Signature, asked: Problem, group: Sequence[Tuned], default: Config | None) -> Ranking | None:
    """The ranking for ``asked`` of what ``group``, the tuned problems of its group, measured; None where none of them
    is near enough, or nothing but ``default``, the kernel's for ``asked``, lies within what was verified."""
    near = neighbours(signature, asked, group)
    if not near:
        return None
    keys = order(near, default)
    proven = {key for key in keys if _verified(signature, asked, key, group)}
    served = [key for key in keys if key in proven or _for_every_problem(key, near, default)]
    own = default.key if default else None
    if not served or (served[0] == own and not proven - {own}):
        return None
    rows = tuple(next(held.rows[key] for held, _ in near if key in held.rows) for key in served)
    nearest, apart = near[0]
    loss = _expected_loss(signature, near, group, apart, default)
    return Ranking(rows, nearest.problem, apart, len(near), loss)


def neighbours(
    signature: Signature, asked: Problem, group: Iterable[Tuned], least: float = 0.0
) -> list[tuple[Tuned, float]]:
    """Those of ``group`` within the bound, and no nearer than ``least``, each with its distance, the nearest first."""
    places = [(held, distance(signature, asked, held.problem)) for held in group]
    within = [place for place in places if least <= place[1] <= NEARNESS.most_doublings]
    within.sort(key=lambda place: (place[1], place[0].problem.key))
    return within[: NEARNESS.most_neighbours]


def order(near: Sequence[tuple[Tuned, float]], default: Config | None) -> list[str]:
    """The keys of the configs that the neighbours ``near`` list, each with its distance, the best first."""
    weights = [2 ** -(apart / NEARNESS.halving_doublings) for _, apart in near]
    total = math.fsum(weights)
    scores: dict[str, float] = {}
    for key in sorted({key for held, _ in near for key in held.rows}):
        terms = (weight * math.log1p(held.loss(key)) for weight, (held, _) in zip(weights, near, strict=True))
        scores[key] = math.fsum(terms) / total
    keys = sorted(scores, key=lambda key: (scores[key], key))
    kept = next((key for key in keys if _for_every_problem(key, near, default)), None)
    if kept is not None and not beats(math.exp(scores[keys[0]] - scores[kept]), 1.0):
        keys.remove(kept)
        keys.insert(0, kept)
    return keys


def _fixed(dimension: Dimension, size: int) -> int | bool | None:
    """What of ``size`` is the same in every problem of a group."""
    if dimension.matching == "exact":
        return size
    return size % dimension.divisor == 0 if dimension.divisor else None


def _for_every_problem(key: str, near: Iterable[tuple[Tuned, float]], default: Config | None) -> bool:
    """Whether the config of that key is the default or the library call, which need no proof at other sizes."""
    if default is not None and key == default.key:
        return True
    return any(key in held.rows and held.rows[key].config.library for held, _ in near)


def _verified(signature: Signature, asked: Problem, key: str, group: Iterable[Tuned]) -> bool:
    """Whether the config of that key passed verification around ``asked``: at a problem no larger in any dimension,
    at one no smaller in any, and at one as ragged in all."""
    sizes = [[held.problem.dims[name] for name in signature.varying] for held in group if key in held.rows]
    wanted = [asked.dims[name] for name in signature.varying]
    return (
        any(all(a <= b for a, b in zip(passed, wanted, strict=True)) for passed in sizes)
        and any(all(a >= b for a, b in zip(passed, wanted, strict=True)) for passed in sizes)
        and any(all(_regularity(a) <= _regularity(b) for a, b in zip(passed, wanted, strict=True)) for passed in sizes)
    )


def _regularity(size: int) -> int:
    """The largest power of two that divides ``size``, up to the size that counts as regular: less is more ragged."""
    return math.gcd(size, NEARNESS.regular_size)


def _expected_loss(
    signature: Signature,
    near: Iterable[tuple[Tuned, float]],
    group: Iterable[Tuned],
    least: float,
    default: Config | None,
) -> float | None:
    """The mean loss over ``near`` of leaving one out; one further loss of the margin is counted with them, since a few
    problems prove little and no two measurements agree by more than that."""
    losses = []
    for left_out, _ in near:
        others = [held for held in group if held is not left_out]
        if found := neighbours(signature, left_out.problem, others, least):
            losses.append(left_out.loss(order(found, default)[0]))
    mean = math.fsum([*losses, MARGIN]) / (len(losses) + 1)
    return mean if losses and math.isfinite(mean) else None


def _taken(row: Row) -> tuple[str, str]:
    return row.environment, row.measurement.policy.value
