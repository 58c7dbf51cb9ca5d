"""What a search may start from: trials of the same kernel at other shapes, on other devices, in other environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunedex.core.device import Device
from tunedex.core.errors import BadInput
from tunedex.core.family import device_distance
from tunedex.core.near import distance, unlike
from tunedex.core.problem import Problem
from tunedex.core.signature import Signature
from tunedex.db.records import Tried
from tunedex.tuner.search.listing import Candidate
from tunedex.tuner.settings import SETTINGS


@dataclass(frozen=True)
class Source:
    """What was tried elsewhere, and what it says of ``near``, the nearest of the problems that are searched.

    ``distance`` is in doublings. ``times`` are of one item in microseconds, None for a failure; they are compared with
    one another alone.
    """

    tried: Tried
    near: Problem
    distance: float
    times: Mapping[Candidate, float | None] = field(default_factory=dict, repr=False)

    @property
    def weight(self) -> float:
        """How much it counts beside other sources."""
        return float(2 ** -(self.distance / SETTINGS.sourcing.halving_doublings))

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": self.tried.device,
            "environment": self.tried.environment,
            "problem": self.tried.problem.to_dict(),
            "distance": self.distance,
            "configs": len(self.times),
        }


def nearest(
    signature: Signature, device: Device, environment: str, problems: Sequence[Problem], tried: Iterable[Tried]
) -> list[Source]:
    """The nearest of ``tried`` to ``problems``, still without times; none of what was tried of them here."""
    here = {(device.key, environment, problem.key) for problem in problems}
    found = []
    for each in tried:
        if (each.device, each.environment, each.problem.key) in here:
            continue
        places = ((_apart(signature, device, problem, each), problem) for problem in problems)
        within = [(apart, problem) for apart, problem in places if apart is not None]
        if within:
            apart, problem = min(within, key=lambda place: (place[0], place[1].key))
            found.append(Source(each, problem, apart))
    found = [source for source in found if source.distance <= SETTINGS.sourcing.most_doublings]
    found.sort(key=lambda source: (source.distance, -source.tried.trials, source.tried.problem.key))
    return found[: SETTINGS.sourcing.most]


def _apart(signature: Signature, device: Device, problem: Problem, tried: Tried) -> float | None:
    """How far what was tried is from ``problem`` on ``device``, in doublings; None where it says nothing of it."""
    devices = _devices_apart(device.key, tried.device)
    dims = tried.problem.dims
    if devices is None or dims.keys() != problem.dims.keys() or min(*dims.values(), *problem.dims.values()) < 1:
        return None
    different = SETTINGS.sourcing.unlike_doublings * len(unlike(signature, problem, tried.problem))
    return devices + different + distance(signature, problem, tried.problem)


def _devices_apart(here: str, there: str) -> float | None:
    if here == there:
        return 0.0
    try:
        return device_distance(Device.from_key(here), Device.from_key(there))
    except BadInput:
        return None
