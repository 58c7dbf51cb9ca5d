"""The unseen config that lies closest to one that a sampler proposed: what was tried, or never can be, is no waste."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunedex.core.config import Value
from tunedex.kernels.base import Tunable


@dataclass
class _Part:
    """The points of one implementation on one problem: a row of each, its places among each tunable's values."""

    tunables: tuple[Tunable, ...]
    points: np.ndarray[Any, np.dtype[np.float64]]
    unseen: np.ndarray[Any, np.dtype[np.bool_]]
    scale: np.ndarray[Any, np.dtype[np.float64]]


class Nearest:
    """Knows the points of a search by part (a key of whoever asks), and which of them are unseen."""

    def __init__(self, seed: int) -> None:
        self._parts: dict[object, _Part] = {}
        self._order: dict[object, list[Mapping[str, Value]]] = {}
        self._place: dict[object, dict[tuple[Value, ...], int]] = {}
        self._random = random.Random(seed)

    def add(self, part: object, tunables: tuple[Tunable, ...], points: Iterable[Mapping[str, Value]]) -> None:
        """Add a part with its points, all unseen. Of points that are equally close the seed chooses."""
        order = list(points)
        self._random.shuffle(order)
        places = [[float(t.values.index(point[t.name])) for t in tunables] for point in order]
        self._order[part] = order
        self._place[part] = {_values(tunables, point): n for n, point in enumerate(order)}
        self._parts[part] = _Part(
            tunables,
            np.array(places).reshape(len(order), len(tunables)),
            np.ones(len(order), dtype=bool),
            np.array([1 / max(1, len(t.values) - 1) if ordered(t) else 0.0 for t in tunables]),
        )

    def see(self, part: object, point: Mapping[str, Value]) -> None:
        """``point`` is no longer unseen, if it is one of the part's."""
        known = self._parts.get(part)
        if known is None or point.keys() != {tunable.name for tunable in known.tunables}:
            return
        place = self._place[part].get(_values(known.tunables, point))
        if place is not None:
            known.unseen[place] = False

    def closest(self, part: object, point: Mapping[str, Value]) -> Mapping[str, Value] | None:
        """The unseen point of ``part`` that is closest to ``point``; None where all are seen.

        The distance is the sum over the tunables: of an ordered one, how far apart the values lie in its list, the
        whole list being 1; of another, 1 where they differ.
        """
        known = self._parts[part]
        if not known.unseen.any():
            return None
        here = np.array([float(t.values.index(point[t.name])) for t in known.tunables])
        apart = np.abs(known.points - here)
        steps = np.where(known.scale > 0, apart * known.scale, (apart > 0).astype(float))
        distance = np.where(known.unseen, steps.sum(axis=1), np.inf)
        return self._order[part][int(distance.argmin())]


def ordered(tunable: Tunable) -> bool:
    """Whether the values of ``tunable`` are numbers, so that those beside each other are alike."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in tunable.values)


def _values(tunables: tuple[Tunable, ...], point: Mapping[str, Value]) -> tuple[Value, ...]:
    return tuple(point[tunable.name] for tunable in tunables)
