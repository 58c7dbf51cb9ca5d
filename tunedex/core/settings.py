"""The numbers that steer which tuned problems and devices answer for others, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Nearness:
    """How far an answer may come from what was asked, and how much of that travels in a snapshot.

    Distances are in doublings: a size of 4 is two doublings from one of 1. A problem further than ``most_doublings``
    from every tuned one gets the default; of the tuned ones within that, the ``most_neighbours`` nearest count, each
    with a weight that halves every ``halving_doublings``. Sizes count as equally ragged where both are multiples of
    ``regular_size``, no less than what any kernel cuts a dimension into.

    A device further than ``most_device_doublings`` answers for no other. A snapshot carries the ``relatives`` nearest
    devices of the family, of each the ``relative_rows`` best rows of a problem and ``relative_most_rows`` in all.
    """

    most_doublings: float = 2.0
    most_neighbours: int = 8
    halving_doublings: float = 1.0
    regular_size: int = 256
    most_device_doublings: float = 1.5
    relatives: int = 2
    relative_rows: int = 4
    relative_most_rows: int = 2048


NEARNESS = Nearness()
