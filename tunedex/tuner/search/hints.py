"""What is known of the points of a search before it begins: what other devices and other shapes measured of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Hint:
    """The logarithms of the times of points by number, None for a failure, as measured elsewhere.

    Times of one hint are compared with one another alone. A hint of twice the ``weight`` counts twice as much.
    """

    times: Mapping[int, float | None]
    weight: float = 1.0
