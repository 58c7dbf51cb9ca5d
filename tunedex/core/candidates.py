"""The rows that may answer a question, the best first, and how they were found: the one order of all answers.

Rows of exactly this problem, else a ranking of its neighbours' rows, else those of a device of the family, else none:
the kernel's default. Pure; server and client both ask it, by way of a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from tunedex.core.canonical import canonical_json
from tunedex.core.device import Device
from tunedex.core.family import device_distance, fits
from tunedex.core.limits import Limits
from tunedex.core.near import Ranking, Tuned, distance, group_of, ranked, sizes, tuned, unlike, untold
from tunedex.core.problem import Problem
from tunedex.core.row import Row, allows, choose
from tunedex.core.settings import NEARNESS
from tunedex.core.signature import Signature


class Match(StrEnum):
    """How an answer was found."""

    EXACT = "exact"
    NEAR = "near"
    FAMILY = "family"
    DEFAULT = "default"


@dataclass(frozen=True)
class Candidates:
    """Rows that may answer, the best first; none where the default does. ``device`` is the key of the one that they
    were measured on, and ``revision`` the one that they are of. ``timed`` says that their times are of the very problem
    and device that were asked for. The rest is as in an answer."""

    match: Match
    device: str
    revision: int
    reason: str = ""
    rows: tuple[Row, ...] = ()
    distance: float | None = None
    expected_loss: float | None = None
    timed: bool = False


@dataclass(frozen=True)
class Holding:
    """What is tuned on one device at one revision: rows by the key of their problem."""

    device: Device
    revision: int
    signatures: Mapping[str, Signature]
    problems: Mapping[str, Problem]
    rows: Mapping[str, Sequence[Row]]

    @cached_property
    def groups(self) -> Mapping[tuple[Any, ...], Sequence[Problem]]:
        """The tuned problems that may answer for one another, by what they have in common."""
        found: dict[tuple[Any, ...], list[Problem]] = {}
        for key, problem in sorted(self.problems.items()):
            signature = self.signatures.get(problem.kernel)
            group = group_of(signature, problem) if signature and self.rows.get(key) else None
            if group is not None:
                found.setdefault(group, []).append(problem)
        return found

    def near(self, signature: Signature, asked: Problem, limits: Limits, target: Device) -> Ranking | None:
        """The ranking for ``asked`` on ``target``, this device or another one, of what is tuned here."""
        held = self._tuned(signature, asked, limits, target)
        return ranked(signature, asked, held, signature.default(asked, target)) if held else None

    def exact(self, signature: Signature, asked: Problem, limits: Limits, target: Device) -> tuple[Row, ...]:
        """The rows of exactly ``asked`` that serve on ``target``, another device, the best first."""
        held = tuned(asked, self._fitting(asked, target), signature.version, limits)
        return _in_order(held.rows.values(), limits) if held else ()

    def why_not_near(self, signature: Signature, asked: Problem, limits: Limits) -> str:
        """Why `near` gives nothing for ``asked`` on this device, field by field; "" where nothing is tuned."""
        group = group_of(signature, asked)
        peers = [problem for found, each in self.groups.items() if found[0] == asked.kernel for problem in each]
        if group is None or not peers:
            return ""
        alike = self.groups.get(group)
        if not alike:
            closest = min(peers, key=lambda p: (len(unlike(signature, asked, p)), p.key))
            apart = " and ".join(unlike(signature, asked, closest))
            return f"the tuned problem that is most like it has {apart}, which must be the same"
        nearest = min(alike, key=lambda p: (distance(signature, asked, p), p.key))
        doublings = distance(signature, asked, nearest)
        where = f"the nearest tuned problem, with {sizes(signature, nearest)}, is {doublings:.3g} doublings away"
        if doublings > NEARNESS.most_doublings:
            return f"{where}, more than {NEARNESS.most_doublings:g}"
        if nearest not in [held.problem for held in self._tuned(signature, asked, limits, self.device)]:
            return f"{where}, and has no config of this kernel version that meets what is asked"
        return f"{where}, and none of its configs was verified at smaller and at larger sizes and at ones as ragged"

    def _tuned(self, signature: Signature, asked: Problem, limits: Limits, target: Device) -> list[Tuned]:
        alike = self.groups.get(group, ()) if (group := group_of(signature, asked)) else ()
        found = (tuned(p, self._fitting(p, target), signature.version, limits) for p in alike)
        return [held for held in found if held is not None]

    def _fitting(self, problem: Problem, target: Device) -> list[Row]:
        rows = self.rows.get(problem.key, ())
        return list(rows) if target.key == self.device.key else [row for row in rows if fits(row, target)]


def candidates(
    own: Holding, relatives: Iterable[Holding], signature: Signature, asked: Problem, limits: Limits
) -> Candidates:
    """What may answer for ``asked`` on the device of ``own`` within ``limits``: from there, or from ``relatives``."""
    device = own.device
    if rows := own.rows.get(asked.key):
        return _of_itself(own, signature, rows, limits)
    reasons = [f"{asked} is not tuned on {device.key}"]
    found = None
    if names := untold(limits):
        reasons += [f"and only a measurement of it tells about {' and '.join(names)}"] if own.groups else []
    elif near := own.near(signature, asked, limits, device):
        found = Candidates(
            Match.NEAR,
            device.key,
            own.revision,
            _from(signature, near),
            near.rows,
            near.distance,
            near.expected_loss,
        )
    else:
        reasons.append(own.why_not_near(signature, asked, limits))
        found = _of_family(own, relatives, signature, asked, limits)
    if found is not None:
        return replace(found, reason="; ".join((reasons[0], found.reason)))
    return Candidates(Match.DEFAULT, device.key, own.revision, "; ".join(filter(None, reasons)))


def _of_itself(own: Holding, signature: Signature, rows: Sequence[Row], limits: Limits) -> Candidates:
    """The rows of the problem itself. Those of a device known by name only are no exact match: the name may be that
    of several."""
    allowed = _in_order(rows, limits)
    if not allowed:
        reason = f"none of the {len(rows)} tuned configs meets {canonical_json(limits.to_dict())}"
        return Candidates(Match.DEFAULT, own.device.key, own.revision, reason)
    reasons = []
    named = own.device.kind == "named"
    if named:
        reasons.append(f"{own.device.key} is known by its name only")
    if allowed[0].kernel_version != signature.version:
        reasons.append(f"measured with kernel version {allowed[0].kernel_version}, now {signature.version}")
    match, distance_ = (Match.FAMILY, None) if named else (Match.EXACT, 0.0)
    return Candidates(match, own.device.key, own.revision, "; ".join(reasons), allowed, distance_, timed=True)


def _of_family(
    own: Holding, relatives: Iterable[Holding], signature: Signature, asked: Problem, limits: Limits
) -> Candidates | None:
    """The rows of the nearest device of the family that has any for ``asked`` or near it; the distance is that of the
    device and of the problem together."""
    places = [(apart, held) for held in relatives if (apart := device_distance(own.device, held.device)) is not None]
    for apart, held in sorted(places, key=lambda place: (place[0], place[1].device.key)):
        revision = max(own.revision, held.revision)
        if rows := held.exact(signature, asked, limits, own.device):
            told = f"it is on {held.device.key}, {apart:.3g} doublings away"
            return Candidates(Match.FAMILY, held.device.key, revision, told, rows, apart)
        if near := held.near(signature, asked, limits, own.device):
            told = f"{_from(signature, near)}, on {held.device.key}, {apart:.3g} doublings away"
            return Candidates(Match.FAMILY, held.device.key, revision, told, near.rows, apart + near.distance)
    return None


def _from(signature: Signature, near: Ranking) -> str:
    count = f"{near.neighbours} tuned problem{'s' if near.neighbours > 1 else ''}"
    return f"ranked by {count}, the nearest with {sizes(signature, near.nearest)}"


def _in_order(rows: Iterable[Row], limits: Limits) -> tuple[Row, ...]:
    """Those of ``rows`` within ``limits``: the one to serve, then the others by time."""
    allowed = [row for row in rows if allows(row, limits)]
    best = choose(allowed, limits)
    return tuple(sorted(allowed, key=lambda row: (row is not best, row.measurement.time_us, row.rank)))
